//! PUB and SUB.

use crate::{PATIENCE, local, publisher, wait};
use bytes::Bytes;
use plimsoll_zmtp::{Client, Endpoint, Limits, Publisher, Role, encode};
use tokio::time::timeout;

async fn subscriber(endpoint: &Endpoint, topic: &str) -> Client {
    let limits = Limits { incoming_bytes: 1 << 20, ..Limits::default() };
    let mut client = Client::connect(endpoint, Role::Sub, &limits).await.unwrap();
    client.subscribe(topic.as_bytes()).await.unwrap();
    client
}

fn send(publisher: &Publisher, topic: &str, number: u64, payload: &[u8]) {
    publisher.send(topic.as_bytes(), &encode(&[topic.as_bytes(), &number.to_be_bytes(), payload]));
}

async fn number(client: &mut Client) -> u64 {
    let frames = timeout(PATIENCE, client.recv()).await.unwrap().unwrap();
    u64::from_be_bytes(frames[1][..].try_into().unwrap())
}

/// A subscription has arrived when a message sent after it is received.
async fn settle(publisher: &Publisher, client: &mut Client, topic: &str) {
    for _ in 0..1000 {
        send(publisher, topic, u64::MAX, b"");
        let wait = std::time::Duration::from_millis(20);
        if timeout(wait, client.recv()).await.is_ok() {
            // Swallow further ones that are under way.
            while timeout(wait, client.recv()).await.is_ok() {}
            return;
        }
    }
    panic!("the subscription never arrived");
}

#[tokio::test]
async fn everybody_gets_what_they_asked_for_in_order() {
    let (publisher, endpoint) = publisher(Limits::default());
    let (mut all, mut some) = (subscriber(&endpoint, "").await, subscriber(&endpoint, "kv@a").await);
    settle(&publisher, &mut all, "kv@a").await;
    settle(&publisher, &mut some, "kv@a").await;
    while timeout(std::time::Duration::from_millis(50), all.recv()).await.is_ok() {}
    for number in 0..500u64 {
        send(&publisher, if number % 2 == 0 { "kv@a" } else { "kv@b" }, number, &[number as u8; 700]);
    }
    for expected in 0..500 {
        assert_eq!(number(&mut all).await, expected);
    }
    for expected in (0..500).step_by(2) {
        assert_eq!(number(&mut some).await, expected);
    }
    assert_eq!(publisher.stats().dropped, 0);
    assert_eq!(publisher.stats().subscribers, 2);
    drop(all);
    wait("the one who left is forgotten", || publisher.stats().subscribers == 1).await;
    send(&publisher, "kv@a", 1000, b"");
    assert_eq!(number(&mut some).await, 1000);
}

#[tokio::test]
async fn a_slow_subscriber_loses_messages_and_costs_nobody_else_any() {
    let limits = Limits { queued_messages: 10, ..Limits::default() };
    let (publisher, endpoint) = publisher(limits);
    let mut slow = subscriber(&endpoint, "t").await;
    settle(&publisher, &mut slow, "t").await;
    // More than the sockets' buffers hold, without a reader: the queue fills and the rest is dropped.
    let payload = Bytes::from(vec![0; 60_000]);
    let mut sent = 0;
    while publisher.stats().dropped < 50 {
        send(&publisher, "t", sent, &payload);
        sent += 1;
        tokio::task::yield_now().await;
        assert!(sent < 100_000, "nothing is ever dropped");
    }
    // One who reads gets everything meanwhile.
    let mut quick = subscriber(&endpoint, "u").await;
    settle(&publisher, &mut quick, "u").await;
    for expected in 0..300 {
        send(&publisher, "u", expected, b"");
        assert_eq!(number(&mut quick).await, expected);
    }
    // The slow one goes on: in order, with holes, and the last number shows that some are missing.
    let received = sent - publisher.stats().dropped;
    let mut numbers = Vec::new();
    while (numbers.len() as u64) < received {
        numbers.push(number(&mut slow).await);
    }
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    assert_eq!(numbers[0], 0);
    assert!(numbers.len() as u64 + 50 <= sent);
}

#[tokio::test]
async fn bytes_are_bounded_too() {
    let limits = Limits { queued_bytes: 100_000, ..Limits::default() };
    let (publisher, endpoint) = publisher(limits);
    let mut client = subscriber(&endpoint, "").await;
    settle(&publisher, &mut client, "t").await;
    // Larger than the whole queue: never taken.
    send(&publisher, "t", 1, &vec![0; 100_000]);
    assert_eq!(publisher.stats().dropped, 1);
    send(&publisher, "t", 2, &[]);
    assert_eq!(number(&mut client).await, 2);
}

#[tokio::test]
async fn a_publisher_that_connects_finds_its_subscriber_and_finds_it_again() {
    // libzmq's SUB may listen; here the wire is played by hand.
    let (listener, endpoint) = local().bind().unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let publisher = Publisher::connect(endpoint, Limits::default());
    for round in 0..2 {
        let (mut stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
        crate::hostile::shake_by_hand(&mut stream, "SUB").await;
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"\x00\x01\x01").await.unwrap();
        wait("connected", || publisher.stats().subscribers == 1).await;
        let mut input = Vec::new();
        while !input.windows(3).any(|window| window == [b'a', b'0' + round, b'z']) {
            publisher.send(b"", &encode(&[[b'a', b'0' + round, b'z']]));
            let _ = timeout(
                std::time::Duration::from_millis(10),
                tokio::io::AsyncReadExt::read_buf(&mut stream, &mut input),
            )
            .await;
        }
        drop(stream);
        wait("gone", || publisher.stats().subscribers == 0).await;
    }
}
