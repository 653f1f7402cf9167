use super::*;

fn tenant() -> Arc<str> {
    Arc::from("t")
}

fn run(claim: Claim) -> Guard {
    match claim {
        Claim::Run(Some(guard)) => guard,
        other => panic!("{other:?} where the first should run"),
    }
}

fn attach(claim: Claim) -> Waiting {
    match claim {
        Claim::Attach(waiting) => waiting,
        other => panic!("{other:?} where one runs already"),
    }
}

fn answer(status: u16, code: Option<&'static str>) -> Response<GatewayBody> {
    let mut response = Response::new(GatewayBody::full(Bytes::from_static(b"{}")));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    if let Some(code) = code {
        response.headers_mut().insert("x-plimsoll-code", HeaderValue::from_static(code));
    }
    response
}

#[tokio::test]
async fn all_that_attach_get_the_first_ones_answer() {
    let table = Idempotency::default();
    let first = run(table.claim(&tenant(), b"k", [1; 32], false).unwrap());
    let waiting: Vec<Waiting> = (0..3).map(|_| attach(table.claim(&tenant(), b"k", [1; 32], false).unwrap())).collect();
    assert_eq!(table.len(), 1);
    // An error is an answer too.
    first.answered(&answer(429, Some("quota_class")));
    assert!(table.is_empty());
    for waiting in waiting {
        let response = waiting.answer().await.unwrap().unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["x-plimsoll-attached"]),
            (429, &"true".parse().unwrap())
        );
    }
    run(table.claim(&tenant(), b"k", [1; 32], false).unwrap());
}

#[tokio::test]
async fn a_first_that_leaves_frees_its_place() {
    let table = Idempotency::default();
    let first = run(table.claim(&tenant(), b"k", [1; 32], false).unwrap());
    let waiting = attach(table.claim(&tenant(), b"k", [1; 32], false).unwrap());
    drop(first);
    assert!(waiting.answer().await.is_none());
    let second = run(table.claim(&tenant(), b"k", [1; 32], false).unwrap());
    let waiting = attach(table.claim(&tenant(), b"k", [1; 32], false).unwrap());
    second.answered(&answer(504, Some("deadline_exceeded")));
    assert!(waiting.answer().await.is_none(), "the deadline was the first one's own");
}

#[test]
fn what_is_not_the_same_does_not_attach() {
    let table = Idempotency::default();
    let code = |claim: Result<Claim, ApiError>| claim.unwrap_err().code;
    let _first = run(table.claim(&tenant(), b"k", [1; 32], false).unwrap());
    assert_eq!(code(table.claim(&tenant(), b"k", [2; 32], false)), ErrorCode::IdempotencyMismatch);
    let _other = run(table.claim(&Arc::from("another"), b"k", [2; 32], false).unwrap());
    let _stream = run(table.claim(&tenant(), b"s", [3; 32], true).unwrap());
    assert_eq!(code(table.claim(&tenant(), b"s", [3; 32], true)), ErrorCode::IdempotencyInFlight);
    assert_eq!(table.len(), 3);
}

#[test]
fn the_table_is_bounded() {
    let table = Idempotency::default();
    let guards: Vec<Guard> = (0..MOST_KEYS)
        .map(|i| run(table.claim(&tenant(), i.to_string().as_bytes(), [0; 32], false).unwrap()))
        .collect();
    assert!(matches!(table.claim(&tenant(), b"more", [0; 32], false), Ok(Claim::Run(None))));
    assert!(matches!(table.claim(&tenant(), b"5", [0; 32], false), Ok(Claim::Attach(_))));
    drop(guards);
    assert!(table.is_empty());
}

#[test]
fn keys_are_bounded_and_plain() {
    let read = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_str(value).unwrap());
        }
        key(&headers).map(|key| key.map(<[u8]>::to_vec))
    };
    assert_eq!(read(&[]).unwrap(), None);
    assert_eq!(read(&["\"8e03978e-40d5\""]).unwrap().unwrap(), b"\"8e03978e-40d5\"");
    assert!(read(&["a", "a"]).is_ok());
    for bad in [&[""][..], &["a", "b"], &["k".repeat(256).as_str()], &["tab\there"]] {
        assert!(read(bad).is_err(), "{bad:?}");
    }
    assert_ne!(digest("/a", Some("b"), b"c"), digest("/a", None, b"bc"));
}
