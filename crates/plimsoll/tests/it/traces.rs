//! Spans reach a collector.

use crate::serving::{SERVE, Server, address};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

/// Reads one HTTP/1.1 request with a content length; gives its head and body.
fn receive(stream: &mut TcpStream) -> (String, Vec<u8>) {
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time limit");
    let mut bytes = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length: usize = head
                .lines()
                .find_map(|line| line.to_lowercase().strip_prefix("content-length:").map(|n| n.trim().to_owned()))
                .and_then(|length| length.parse().ok())
                .unwrap_or(0);
            if bytes.len() >= head.len() + 4 + length {
                return (head.to_owned(), bytes[head.len() + 4..].to_vec());
            }
        }
        let count = stream.read(&mut buffer).expect("the request arrives");
        assert_ne!(count, 0, "closed in the middle of {text}");
        bytes.extend_from_slice(&buffer[..count]);
    }
}

#[test]
fn a_request_with_a_sampled_context_becomes_a_span_of_that_trace() {
    let collector = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("telemetry.otlp_endpoint=http://{}", collector.local_addr().expect("address"));
    let server = Server::start(&[SERVE, &["--set", &endpoint]].concat(), Stdio::null());

    let body = "{\"model\":\"m\",\"prompt\":\"hello\"}";
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut client = TcpStream::connect(address(&server.announced)).expect("it accepts");
    client.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 404") || answer.starts_with("HTTP/1.1 503"), "{answer}");

    let (mut stream, _) = collector.accept().expect("the exporter connects");
    let (head, body) = receive(&mut stream);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").expect("answered");
    assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
    let spans: Value = serde_json::from_slice(&body).expect("json");
    let span = &spans["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(span["parentSpanId"], "00f067aa0ba902b7");
    assert_eq!(span["name"], "POST /v1/completions");
    assert!(!String::from_utf8_lossy(&body).contains("hello"), "no prompt text in traces");
}
