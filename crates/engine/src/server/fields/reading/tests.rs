use super::*;
use proptest::prelude::*;
use serde_json::json;

fn read_all(body: &Value) -> Read {
    read(body.to_string().as_bytes(), 10_000).unwrap()
}

#[test]
fn lists_of_ids_are_read_as_such_where_they_are_due() {
    let body = json!({
        "input_ids": [1, 2, 4294967295_u32], "prompt": [[1], [], [2, 3]], "input": [], "tokens": [[]],
        "stop_token_ids": [1, 2],
    });
    let Read { values, ids } = read_all(&body);
    assert_eq!(ids["input_ids"], IdLists::One(vec![1, 2, u32::MAX]));
    assert_eq!(ids["prompt"], IdLists::Many(vec![vec![1], vec![], vec![2, 3]]));
    assert_eq!(ids["tokens"], IdLists::Many(vec![vec![]]));
    assert_eq!(Value::Object(values), json!({"input": [], "stop_token_ids": [1, 2]}));
    // Of a name that comes twice the last one counts, whatever it is.
    let twice = read(br#"{"prompt": [1], "prompt": "a", "tokens": "a", "tokens": [1]}"#, 100).unwrap();
    assert_eq!(Value::Object(twice.values), json!({"prompt": "a"}));
    assert_eq!(twice.ids.keys().collect::<Vec<_>>(), ["tokens"]);
}

#[test]
fn values_are_counted_and_ids_are_not() {
    let numbers = |count: usize| vec!["0"; count].join(",");
    let ids = format!("{{\"input_ids\": [{}]}}", numbers(100_000));
    assert!(read(ids.as_bytes(), 10).is_ok());
    for other in
        ["{\"x\": [N]}", "{\"input_ids\": [N, -1]}", "{\"input_ids\": [{\"a\": [N]}]}", "{\"prompt\": [[[N]]]}"]
    {
        let body = |count| other.replace('N', &numbers(count));
        assert!(read(body(900).as_bytes(), 1000).is_ok(), "{other}");
        assert!(matches!(read(body(1001).as_bytes(), 1000), Err(Unreadable::TooMany)), "{other}");
    }
    // Lists without an id in them take memory too.
    let empty = format!("{{\"prompt\": [{}]}}", vec!["[]"; 1001].join(","));
    assert!(matches!(read(empty.as_bytes(), 1000), Err(Unreadable::TooMany)));
}

#[test]
fn what_is_no_object_is_told_apart_from_what_is_no_json() {
    for (body, is_json) in
        [("[1]", true), (" 7 ", true), ("[1", false), ("", false), ("{} x", false), ("{\"a\":}", false)]
    {
        let error = read(body.as_bytes(), 100).unwrap_err();
        assert_eq!(matches!(error, Unreadable::NoObject), is_json, "{body}: {error:?}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e6..1e6f64).prop_map(Value::from),
        "[a-z\\\\\"]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Nothing is lost or changed: what was read makes the body again.
    #[test]
    fn reading_keeps_everything(value in any_json(), other in any_json()) {
        let body = json!({"prompt": value, "x": other});
        let Read { mut values, ids } = read_all(&body);
        // As it is read without any bounds: not every number has the same last bit that was written.
        let body: Value = serde_json::from_str(&body.to_string()).unwrap();
        for (name, ids) in ids {
            let list = match ids {
                IdLists::One(ids) => json!(ids),
                IdLists::Many(lists) => json!(lists),
            };
            prop_assert!(values.insert(name, list).is_none());
        }
        prop_assert_eq!(&values["prompt"], &body["prompt"]);
        prop_assert_eq!(&values["x"], &body["x"]);
        prop_assert_eq!(values.len(), 2);
    }
}
