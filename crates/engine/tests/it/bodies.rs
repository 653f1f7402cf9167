//! Bodies and connections are bounded together, and whoever is slow or greedy hurts nobody else.

use crate::client::{PATIENCE, Server, config};
use plimsoll_engine::EngineConfig;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A body that is announced to be longer than what is sent of it.
fn begin(server: &Server, length: usize, part: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: {length}\r\n\r\n{part}").unwrap();
    stream
}

fn status(mut stream: TcpStream) -> String {
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    String::from_utf8(head[9..].to_vec()).unwrap()
}

#[test]
fn a_body_has_to_arrive_in_time_and_the_place_is_free_again() {
    let deadline = Duration::from_secs(3);
    let server = Server::start(EngineConfig { max_connections: 2, body_deadline: deadline, ..config() });
    let body = json!({"prompt": " ship", "max_tokens": 1});
    let slow = [begin(&server, 1000, "{"), begin(&server, 1000, "{\"prompt\"")];
    // All places are taken, and yet the engine says that it lives.
    let until = Instant::now() + PATIENCE;
    let mut refused = false;
    for stream in slow {
        refused |= server.post("/v1/completions", &body).status == 503;
        assert_eq!(server.get("/health").status, 200);
        assert_eq!(status(stream), "408");
    }
    assert!(refused, "a third connection has no place");
    while server.post("/v1/completions", &body).status != 200 {
        assert!(Instant::now() < until, "the places are not free again");
    }
}

#[test]
fn bodies_have_room_together() {
    let server = Server::start(EngineConfig { bodies_bytes: 1 << 20, ..config() });
    let spaces = " ".repeat(700 << 10);
    // Two that do not fit together: one of them is refused, and the other goes on.
    let mut both = [begin(&server, 2 << 20, &spaces), begin(&server, 2 << 20, &spaces)];
    for stream in &both {
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    }
    let until = Instant::now() + PATIENCE;
    let refused = loop {
        let mut head = [0; 12];
        if let Some(at) = both.iter_mut().position(|stream| stream.read_exact(&mut head).is_ok()) {
            assert_eq!(&head[9..], b"503");
            break at;
        }
        assert!(Instant::now() < until, "both had room");
    };
    let other = &mut both[1 - refused];
    assert!(other.read(&mut [0]).is_err(), "the other one waits for its rest");
    // A small one has room beside it.
    server.ask("/v1/completions", &json!({"prompt": " ship", "max_tokens": 1}));
    drop(both);
    // What was read is given back, whether it came to its end or not.
    let whole = format!("{spaces}?");
    while server.send("POST", "/v1/completions", "", &whole).status == 503 {
        assert!(Instant::now() < until, "the room is still taken");
    }
    for _ in 0..8 {
        assert_eq!(server.send("POST", "/v1/completions", "", &whole).status, 400, "read, and no JSON");
    }
}

#[test]
fn many_ids_are_read_and_many_values_are_not() {
    let server = Server::start(config());
    let zeros = vec!["0"; 400_000].join(",");
    let answer = server.send("POST", "/generate", "", &format!("{{\"input_ids\": [{zeros}]}}"));
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (400, json!("context_length_exceeded")));
    let answer = server.send("POST", "/generate", "", &format!("{{\"text\": \" ship\", \"x\": [{zeros}]}}"));
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (413, json!("body_too_large")));
    // Ids on every route.
    let answer = server.ask("/detokenize", &json!({"tokens": [300, 301]}));
    assert_eq!(server.ask("/tokenize", &json!({"prompt": answer["prompt"]}))["tokens"], json!([300, 301]));
    let batch = json!({"input_ids": [[300], [301, 302]], "sampling_params": {"max_new_tokens": 1}});
    assert_eq!(server.ask("/generate", &batch)[1]["meta_info"]["prompt_tokens"], 2);
    let both = json!({"prompt": [[300], [301, 302]], "max_tokens": 1});
    assert_eq!(server.ask("/v1/completions", &both)["usage"]["prompt_tokens"], 3);
    assert_eq!(server.post("/generate", &json!({"input_ids": [[300], [1024]]})).json()["error"]["param"], "input_ids");
}

/// Writes everything before it reads, as many clients do, and gives the status that it then finds.
fn write_first(server: &Server, path: &str, length: usize) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "POST {path} HTTP/1.1\r\nhost: e\r\ncontent-length: {length}\r\n\r\n").unwrap();
    let piece = vec![b' '; 1 << 20];
    for _ in 0..length >> 20 {
        stream.write_all(&piece).unwrap();
    }
    status(stream)
}

#[test]
fn who_writes_too_much_before_reading_finds_the_answer_and_no_broken_pipe() {
    let server = Server::start(EngineConfig { body_bytes: 1 << 20, api_key: Some("key".to_owned()), ..config() });
    // Far more than the buffers of a socket.
    assert_eq!(write_first(&server, "/admin/faults", 24 << 20), "401");
    assert_eq!(write_first(&server, "/nowhere", 24 << 20), "404");
    let server = Server::start(EngineConfig { body_bytes: 1 << 20, ..config() });
    for path in ["/generate", "/v1/completions", "/admin/faults", "/tokenize"] {
        assert_eq!(write_first(&server, path, 24 << 20), "413", "{path}");
    }
    // And the connection is good for another one.
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = 3 << 20;
    write!(stream, "POST /generate HTTP/1.1\r\nhost: e\r\ncontent-length: {length}\r\n\r\n").unwrap();
    stream.write_all(&vec![b' '; length]).unwrap();
    write!(stream, "GET /health HTTP/1.1\r\nhost: e\r\nconnection: close\r\n\r\n").unwrap();
    let mut both = String::new();
    stream.read_to_string(&mut both).unwrap();
    assert!(both.starts_with("HTTP/1.1 413 ") && both.contains("HTTP/1.1 200 "), "{both}");
}

#[test]
fn who_goes_on_writing_without_end_is_cut_off() {
    let server = Server::start(EngineConfig { body_bytes: 1 << 20, ..config() });
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "POST /generate HTTP/1.1\r\nhost: e\r\ncontent-length: {}\r\n\r\n", 1u64 << 40).unwrap();
    let piece = vec![b' '; 1 << 20];
    let taken = (0..1024).take_while(|_| stream.write_all(&piece).is_ok()).count();
    // One to read, 64 to throw away, and what lies in the buffers of two sockets.
    assert!((64..256).contains(&taken), "{taken} MiB were taken");
    server.wait_empty();
}
