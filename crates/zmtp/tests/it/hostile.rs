//! Peers that do not mean well, or are something else.

use crate::{PATIENCE, publisher, wait};
use plimsoll_zmtp::{Client, Endpoint, Limits, Role, encode};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

async fn raw(endpoint: &Endpoint) -> TcpStream {
    TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await.unwrap()
}

fn greeting() -> Vec<u8> {
    let mut greeting = vec![0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn ready(socket: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    body.push(socket.len() as u8);
    body.extend_from_slice(socket.as_bytes());
    [&[4, body.len() as u8], &body[..]].concat()
}

/// The other half of a handshake, as libzmq does it.
pub(crate) async fn shake_by_hand(stream: &mut TcpStream, socket: &str) {
    stream.write_all(&greeting()).await.unwrap();
    stream.write_all(&ready(socket)).await.unwrap();
    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs).await.unwrap();
    assert_eq!((theirs[0], theirs[9], &theirs[12..16]), (0xff, 0x7f, &b"NULL"[..]));
}

/// Waits until the other side has closed.
async fn is_cut_off(mut stream: TcpStream, what: &str) {
    let mut rest = [0; 4096];
    loop {
        match timeout(PATIENCE, stream.read(&mut rest)).await {
            Err(_) => panic!("never cut off: {what}"),
            Ok(Ok(0) | Err(_)) => return,
            Ok(Ok(_)) => {}
        }
    }
}

#[tokio::test]
async fn broken_peers_are_cut_off_and_disturb_nobody() {
    let (publisher, endpoint) = publisher(Limits::default());
    let mut client = Client::connect(&endpoint, Role::Sub, &Limits::default()).await.unwrap();
    client.subscribe(b"").await.unwrap();
    let before = [
        ("an HTTP client", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec()),
        ("an old peer", vec![0x01, 0x00]),
        ("another mechanism", {
            let mut greeting = greeting();
            greeting[12..17].copy_from_slice(b"PLAIN");
            greeting
        }),
        ("a message for a handshake", [greeting(), encode(&[b"\x01"]).to_vec()].concat()),
        ("a socket that is no partner", [greeting(), ready("PUSH")].concat()),
        ("a READY without a type", [greeting(), b"\x04\x06\x05READY".to_vec()].concat()),
    ];
    for (what, bytes) in before {
        let mut stream = raw(&endpoint).await;
        stream.write_all(&bytes).await.unwrap();
        is_cut_off(stream, what).await;
    }
    let after = [
        ("a frame of 64 TiB", [&[2][..], &(1u64 << 46).to_be_bytes()].concat()),
        ("a frame of 2^64 - 1 bytes", [2, 255, 255, 255, 255, 255, 255, 255, 255].to_vec()),
        ("a message without end", b"\x01\x00".repeat(1000)),
        ("flags that do not exist", vec![0xf0, 0]),
        ("a command without a name", vec![4, 0]),
    ];
    for (what, bytes) in after {
        let mut stream = raw(&endpoint).await;
        shake_by_hand(&mut stream, "SUB").await;
        // It may be cut off before all is written.
        let _ = stream.write_all(&bytes).await;
        is_cut_off(stream, what).await;
    }
    wait("only the good one is left", || publisher.stats().subscribers == 1).await;
    publisher.send(b"t", &encode(&[&b"t"[..], b"still here"]));
    let frames = timeout(PATIENCE, client.recv()).await.unwrap().unwrap();
    assert_eq!(&frames[1][..], b"still here");
}

#[tokio::test]
async fn a_handshake_that_stands_still_ends_and_places_are_limited() {
    let limits = Limits { handshake: Duration::from_millis(200), peers: 2, ..Limits::default() };
    let (publisher, endpoint) = publisher(limits);
    let mut silent = raw(&endpoint).await;
    silent.write_all(&greeting()[..11]).await.unwrap();
    is_cut_off(silent, "silent").await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        kept.push(Client::connect(&endpoint, Role::Sub, &Limits::default()).await.unwrap());
    }
    assert!(Client::connect(&endpoint, Role::Sub, &Limits::default()).await.is_err(), "a third one");
    kept.pop();
    wait("a place is free", || publisher.stats().subscribers == 1).await;
    assert!(Client::connect(&endpoint, Role::Sub, &Limits::default()).await.is_ok());
}

#[tokio::test]
async fn a_ping_is_answered_and_a_subscription_can_be_a_command() {
    let (publisher, endpoint) = publisher(Limits::default());
    let mut stream = raw(&endpoint).await;
    shake_by_hand(&mut stream, "XSUB").await;
    stream.write_all(b"\x04\x0b\x09SUBSCRIBEt").await.unwrap();
    stream.write_all(b"\x04\x0a\x04PING\0\x64ctx").await.unwrap();
    let mut input = Vec::new();
    while !input.windows(10).any(|window| window == b"\x04\x08\x04PONGctx") {
        assert_ne!(timeout(PATIENCE, stream.read_buf(&mut input)).await.unwrap().unwrap(), 0);
    }
    publisher.send(b"topic", &encode(&[b"topic"]));
    while !input.ends_with(b"\x00\x05topic") {
        assert_ne!(timeout(PATIENCE, stream.read_buf(&mut input)).await.unwrap().unwrap(), 0);
    }
}
