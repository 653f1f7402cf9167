use super::*;

fn parse(text: &str) -> Option<(String, u16)> {
    text.parse::<Endpoint>().ok().map(|endpoint| (endpoint.host, endpoint.port))
}

#[test]
fn addresses_are_read_as_zmq_writes_them() {
    for (text, host, port) in [
        ("tcp://*:5557", "*", 5557),
        ("tcp://127.0.0.1:0", "127.0.0.1", 0),
        ("tcp://[::1]:65535", "::1", 65535),
        ("tcp://gateway.local:1", "gateway.local", 1),
    ] {
        assert_eq!(parse(text), Some((host.to_owned(), port)), "{text}");
        assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
    }
    for wrong in
        ["", "tcp://", "tcp://*", "tcp://*:", "tcp://:1", "tcp://*:65536", "tcp://::1:5", "ipc:///tmp/x", "*:1"]
    {
        assert_eq!(parse(wrong), None, "{wrong}");
    }
}

#[test]
fn ranks_get_ports_in_a_row() {
    let any: Endpoint = "tcp://127.0.0.1:0".parse().unwrap();
    let row = any.bind_ranks(4).unwrap();
    let base = row[0].1.port;
    let ports: Vec<u16> = row.iter().map(|(_, endpoint)| endpoint.port - base).collect();
    assert_eq!(ports, [0, 1, 2, 3]);
    // A fixed row that is partly taken is refused.
    let taken = Endpoint { port: base.saturating_sub(1), ..any };
    assert!(matches!(taken.bind_ranks(2), Err(EndpointError::Bind { .. })));
    let last: Endpoint = "tcp://127.0.0.1:65535".parse().unwrap();
    assert_eq!(last.of_rank(1), None);
}
