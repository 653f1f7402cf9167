use super::*;

#[test]
fn sglangs_own_configurations_are_read() {
    let config = KvEventsConfig::from_json(
        r#"{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657", "topic": "kv",
            "buffer_steps": 100, "hwm": 7, "max_queue_size": 9, "bind": true, "format": "dynamo"}"#,
    )
    .unwrap()
    .unwrap();
    assert_eq!((config.scheme(), config.form()), (Scheme::Dynamo, Form::SglangMap));
    assert_eq!((config.buffer_steps, config.hwm, config.max_queue_size, config.bind), (100, 7, 9, Some(true)));
    let least = KvEventsConfig::from_json(r#"{"publisher": "zmq"}"#).unwrap().unwrap();
    assert_eq!(least, KvEventsConfig { publisher: Publisher::Zmq, ..KvEventsConfig::default() });
    for off in ["{}", r#"{"publisher": "null"}"#] {
        assert_eq!(KvEventsConfig::from_json(off), Ok(None));
    }
}

#[test]
fn what_cannot_work_is_said() {
    for (text, says) in [
        (r#"{"publisher": "kafka"}"#, "kafka"),
        (r#"{"publisher": "zmq", "hwm": 0}"#, "hwm is 0"),
        (r#"{"publisher": "zmq", "buffer_steps": -1}"#, "-1"),
        (r#"{"publisher": "zmq", "replay": "tcp://*:1"}"#, "replay"),
        (r#"{"publisher": "zmq", "format": "map"}"#, "map"),
        ("tcp://*:5557", "expected"),
    ] {
        let error = KvEventsConfig::from_json(text).unwrap_err();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn it_writes_what_it_reads() {
    let config = KvEventsConfig { publisher: Publisher::Zmq, format: Format::Vllm, ..KvEventsConfig::default() };
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(KvEventsConfig::from_json(&text), Ok(Some(config)));
}
