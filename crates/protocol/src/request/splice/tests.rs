use super::*;
use crate::request::{Api, scan};
use serde_json::Value;

const RANKS: &[&str] = &["routed_dp_rank", "data_parallel_rank"];

fn spliced(body: &str, set: &Set<'_>) -> String {
    let bytes = Bytes::copy_from_slice(body.as_bytes());
    let facts = scan(Api::Generate, &bytes).unwrap();
    String::from_utf8(splice(&bytes, &facts, set).concat()).unwrap()
}

#[test]
fn nothing_set_changes_nothing() {
    for body in [r#" {"text":"a","rid":null,"priority":5} "#, r#"{ "text" : "}" }"#] {
        assert_eq!(spliced(body, &Set::default()), body);
    }
}

#[test]
fn a_rid_is_spliced_and_nothing_else_changes() {
    let set = Set { rid: Some("R"), ..Set::default() };
    for (body, wanted) in [
        (r#"{"text":"a"}"#, r#"{"rid":"R","text":"a"}"#),
        (r#" { "text":"a","rid": "old" ,"z":1}"#, r#" { "text":"a","rid": "R" ,"z":1}"#),
        (r#"{"text":"a","rid":["p","q"]}"#, r#"{"text":"a","rid":"R"}"#),
        (r#"{"text":"a","rid":null}"#, r#"{"text":"a","rid":"R"}"#),
    ] {
        assert_eq!(spliced(body, &set), wanted);
    }
}

#[test]
fn a_rank_comes_last_so_that_the_client_has_no_say() {
    let set = Set { rid: Some("R"), rank: Some((RANKS, 3)), ..Set::default() };
    for (body, wanted) in [
        (r#"{"text":"a"}"#, r#"{"rid":"R","text":"a","routed_dp_rank":3,"data_parallel_rank":3}"#),
        (r#"{"text":"a","rid": "old"}"#, r#"{"text":"a","rid": "R","routed_dp_rank":3,"data_parallel_rank":3}"#),
        (r#"{"rid":null,"text":"}" }  "#, r#"{"rid":"R","text":"}" ,"routed_dp_rank":3,"data_parallel_rank":3}  "#),
        (
            r#"{"data_parallel_rank":7,"text":"a","routed_dp_rank":7}"#,
            r#"{"rid":"R","data_parallel_rank":7,"text":"a","routed_dp_rank":7,"routed_dp_rank":3,"data_parallel_rank":3}"#,
        ),
    ] {
        let joined = spliced(body, &set);
        assert_eq!(joined, wanted);
        let read: Value = serde_json::from_str(&joined).unwrap();
        let three = Value::from(3);
        assert_eq!((&read["rid"], &read[RANKS[0]], &read[RANKS[1]]), (&"R".into(), &three, &three));
    }
}

/// Strict readers refuse two equal keys, so the client's own is replaced where it stands.
#[test]
fn a_priority_is_set_once() {
    let alone = Set { priority: Some(-4), ..Set::default() };
    let all = Set { rid: Some("R"), rank: Some((&["rank"], 1)), priority: Some(8) };
    for (body, set, wanted) in [
        (r#"{"text":"a"}"#, &alone, r#"{"text":"a","priority":-4}"#),
        (r#"{"priority": 900 ,"text":"a"}"#, &alone, r#"{"priority": -4 ,"text":"a"}"#),
        (r#"{"text":"a","priority":null}"#, &alone, r#"{"text":"a","priority":-4}"#),
        (r#"{"text":"a"}"#, &all, r#"{"rid":"R","text":"a","priority":8,"rank":1}"#),
        (r#"{"priority":0,"text":"a","rid":7}"#, &all, r#"{"priority":8,"text":"a","rid":"R","rank":1}"#),
        (r#"{"rid":7,"text":"a","priority":0}"#, &all, r#"{"rid":"R","text":"a","priority":8,"rank":1}"#),
    ] {
        assert_eq!(spliced(body, set), wanted);
    }
}
