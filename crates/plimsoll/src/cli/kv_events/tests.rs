use super::*;
use crate::cli::{Cli, Command};
use clap::Parser;

fn config(flags: &[&str]) -> Result<Option<KvEventsConfig>, String> {
    let cli = Cli::try_parse_from([&["plimsoll", "engine"], flags].concat()).map_err(|error| error.to_string())?;
    let Command::Engine(args) = cli.command else { return Err("not the engine".to_owned()) };
    args.kv_events.config()
}

#[test]
fn flags_make_the_configuration_and_stand_over_the_json() {
    assert_eq!(config(&[]), Ok(None));
    let events = config(&["--kv-events-endpoint", "tcp://127.0.0.1:0"]).unwrap().unwrap();
    assert_eq!((events.publisher, events.bind, events.buffer_steps), (Publisher::Zmq, Some(true), 10_000));
    let json = r#"{"publisher":"zmq","endpoint":"tcp://*:5557","topic":"a","buffer_steps":5}"#;
    let flags = ["--kv-events-config", json, "--kv-events-topic", "b", "--kv-events-format", "vllm"];
    let events = config(&flags).unwrap().unwrap();
    assert_eq!((events.topic.as_str(), events.buffer_steps, events.bind), ("b", 5, None));
    assert_eq!(events.format, Format::Vllm);
}

#[test]
fn what_cannot_work_is_said() {
    for (flags, says) in [
        (&["--kv-events-topic", "a"][..], "--kv-events-endpoint"),
        (&["--kv-events-config", "{"], "--kv-events-config: "),
        (&["--kv-events-endpoint", "tcp://*:0", "--kv-events-buffer-steps", "0"], "buffer_steps is 0"),
        (&["--kv-events-endpoint", "tcp://*:0", "--kv-events-format", "xml"], "sglang-array"),
    ] {
        let error = config(flags).unwrap_err();
        assert!(error.contains(says), "{flags:?}: {error}");
    }
}
