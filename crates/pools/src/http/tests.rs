use super::*;
use bytes::Bytes;
use http::{HeaderMap, Method};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

async fn server() -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, Endpoint::new(&url, EndpointOptions::default()).unwrap())
}

fn post(endpoint: &Endpoint, body: &'static str) -> http::Request<OutBody> {
    let body = OutBody::whole(Bytes::from_static(body.as_bytes()));
    endpoint.request(Method::POST, "/x?y=1", HeaderMap::new(), Key::Inference, body)
}

/// Reads until the request's body has come; returns all of it as text.
async fn read_request(socket: &mut TcpStream, body: &str) -> String {
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    while !text.ends_with(body.as_bytes()) || !text.windows(4).any(|w| w == b"\r\n\r\n") {
        let n = tokio::time::timeout(Duration::from_secs(5), socket.read(&mut piece)).await.unwrap().unwrap();
        assert!(n > 0, "the client closed early");
        text.extend_from_slice(&piece[..n]);
    }
    String::from_utf8(text).unwrap()
}

async fn whole(mut exchange: Exchange) -> Bytes {
    exchange.collect(1 << 20).await.unwrap()
}

#[tokio::test]
async fn a_finished_exchange_gives_its_connection_back() {
    let (listener, endpoint) = server().await;
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        for body in ["one", "two"] {
            let text = read_request(&mut socket, body).await;
            assert!(text.starts_with("POST /x?y=1 HTTP/1.1\r\n"), "{text}");
            assert!(text.contains("content-length: 3\r\n"), "{text}");
            socket.write_all(OK).await.unwrap();
        }
        socket
    });
    for body in ["one", "two"] {
        let exchange = endpoint.send(post(&endpoint, body)).await.unwrap();
        assert_eq!(whole(exchange).await, "ok");
        assert_eq!(endpoint.idle_connections(), 1);
    }
    serving.await.unwrap();
}

#[tokio::test]
async fn dropping_an_exchange_closes_its_socket() {
    let (listener, endpoint) = server().await;
    let exchange = tokio::spawn({
        let endpoint = endpoint.clone();
        async move { endpoint.send(post(&endpoint, "b")).await }
    });
    let (mut socket, _) = listener.accept().await.unwrap();
    read_request(&mut socket, "b").await;
    socket.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n").await.unwrap();
    let mut exchange = exchange.await.unwrap().unwrap();
    assert_eq!(exchange.frame().await.unwrap().unwrap(), "abc");
    drop(exchange);
    let n = tokio::time::timeout(Duration::from_secs(5), socket.read(&mut [0; 16])).await.unwrap().unwrap_or(0);
    assert_eq!(n, 0);
    assert_eq!(endpoint.idle_connections(), 0);
}

#[tokio::test]
async fn a_connection_closed_while_idle_is_passed_over() {
    let (listener, endpoint) = server().await;
    let serving = tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        read_request(&mut first, "one").await;
        first.write_all(OK).await.unwrap();
        drop(first);
        let (mut second, _) = listener.accept().await.unwrap();
        read_request(&mut second, "two").await;
        second.write_all(OK).await.unwrap();
    });
    whole(endpoint.send(post(&endpoint, "one")).await.unwrap()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(whole(endpoint.send(post(&endpoint, "two")).await.unwrap()).await, "ok");
    serving.await.unwrap();
}

/// The engine closes in the very moment of use: it has the request's bytes and gives no answer.
#[tokio::test]
async fn a_pooled_connection_closed_on_use_is_stale_and_says_that_it_was_sent() {
    let (listener, endpoint) = server().await;
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        read_request(&mut socket, "one").await;
        socket.write_all(OK).await.unwrap();
        read_request(&mut socket, "two").await;
    });
    whole(endpoint.send(post(&endpoint, "one")).await.unwrap()).await;
    let error = endpoint.send(post(&endpoint, "two")).await.err().unwrap();
    assert!(matches!(error, SendError::Stale { sent: true }), "{error:?}");
    serving.await.unwrap();
}

#[tokio::test]
async fn what_is_no_answer_has_its_own_error() {
    for (answer, bad_http) in [
        (&b"SSH-2.0-OpenSSH_9\r\n\r\n"[..], true),
        (b"HTTP/1.1 200 OK\r\ncontent-length: nonsense\r\n\r\n", true),
        (b"", false),
        (b"HTTP/1.1 200 OK\r\nx: ", false),
    ] {
        let (listener, endpoint) = server().await;
        let serving = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            read_request(&mut socket, "b").await;
            socket.write_all(answer).await.unwrap();
        });
        let error = endpoint.send(post(&endpoint, "b")).await.err().unwrap();
        let is_bad_http = matches!(error, SendError::BadAnswer(_));
        assert_eq!(is_bad_http, bad_http, "{error:?} for {answer:?}");
        assert!(is_bad_http || matches!(error, SendError::Broken(_)), "{error:?}");
        serving.await.unwrap();
    }
}

#[tokio::test]
async fn endless_headers_end_at_the_bound() {
    let (listener, endpoint) = server().await;
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        read_request(&mut socket, "b").await;
        socket.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        let line = format!("x: {}\r\n", "y".repeat(1000));
        let mut written = 0usize;
        while socket.write_all(line.as_bytes()).await.is_ok() {
            written += line.len();
            assert!(written < 64 << 20, "nobody stops this");
        }
    });
    let error = endpoint.send(post(&endpoint, "b")).await.err().unwrap();
    assert!(matches!(error, SendError::BadAnswer(_)), "{error:?}");
    serving.await.unwrap();
}

#[tokio::test]
async fn a_body_cut_short_is_an_error_and_a_large_one_is_not_collected() {
    for (answer, limit, cut) in [
        (&b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"[..], 100, true),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789", 5, false),
    ] {
        let (listener, endpoint) = server().await;
        let serving = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            read_request(&mut socket, "b").await;
            socket.write_all(answer).await.unwrap();
        });
        let mut exchange = endpoint.send(post(&endpoint, "b")).await.unwrap();
        assert_eq!(exchange.collect(limit).await.unwrap_err().is_some(), cut);
        serving.await.unwrap();
    }
}

#[test]
fn urls_that_are_none_are_refused() {
    for bad in ["", "127.0.0.1:8000", "ftp://h", "http://", "http://user:key@h", "http://h?x=1"] {
        assert!(Endpoint::new(bad, EndpointOptions::default()).is_err(), "{bad}");
    }
    let endpoint = Endpoint::new("http://[::1]:8000/base/", EndpointOptions::default()).unwrap();
    assert_eq!(endpoint.url(), "http://[::1]:8000/base");
    let request = endpoint.request(Method::GET, "/v1/models", HeaderMap::new(), Key::Admin, OutBody::empty());
    assert_eq!(request.uri().path(), "/base/v1/models");
}
