//! A client that goes away stops the engine's work within 200 ms, whatever the request was doing.

use crate::{CHAT, COMPLETIONS, GENERATE, body, fake, is_rid, until};
use plimsoll_end_to_end::{Connection, Gateway, PATIENCE, Plan, eventually};
use plimsoll_fakes::{Control, Dialect, FakeEngine, Fault, Snapshot};
use std::time::{Duration, Instant};

const PROMISE: Duration = Duration::from_millis(200);
const ROUNDS: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    BeforeHeaders,
    AfterHeaders,
    MidStream,
    Whole,
}

fn prepare(engine: &FakeEngine, stage: Stage) {
    let slow = Control { fault: Some(Fault::None), ttft_ms: Some(60_000), ..Control::default() };
    engine.control(match stage {
        Stage::BeforeHeaders => Control { fault: Some(Fault::HangBeforeHeaders), ..slow },
        Stage::AfterHeaders | Stage::Whole => Control { early_headers: Some(true), ..slow },
        Stage::MidStream => Control { ttft_ms: Some(0), itl_ms: Some(10), ..slow },
    });
}

/// The engine was told, by whatever this family listens to.
fn told(dialect: Dialect, seen: &Snapshot) -> u64 {
    if dialect == Dialect::Sglang { seen.aborted_by_rid } else { seen.clients_lost }
}

/// Goes away at this stage, [`ROUNDS`] times; answers how long the engine took to hear of it, shortest first.
async fn leave(engine: &FakeEngine, gateway: &Gateway, dialect: Dialect, route: &str, stage: Stage) -> Vec<Duration> {
    prepare(engine, stage);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let before = engine.snapshot();
        let mut connection = Connection::open(gateway.addr).await;
        connection.post(route, &[], &body(route, stage != Stage::Whole, 100_000).to_string()).await;
        until(engine, "the request to run", |seen| seen.in_flight == 1).await;
        if stage == Stage::MidStream {
            connection.head().await;
            for _ in 0..3 {
                connection.data().await.unwrap();
            }
        } else {
            // The gateway has read the head of the answer by then, where there is one.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        drop(connection);
        let start = Instant::now();
        let seen = until(engine, "the engine to be told", |seen| told(dialect, seen) > told(dialect, &before)).await;
        times.push(start.elapsed());
        if dialect == Dialect::Sglang {
            let rid = seen.abort_rids.last().unwrap();
            assert!(is_rid(rid), "SGLang matches by prefix, so every rid has one length: {rid}");
            assert_eq!(Some(rid), seen.rids.last(), "the very rid of the request");
        }
        until(engine, "the engine to be idle", |seen| seen.in_flight == 0).await;
    }
    times.sort();
    times
}

async fn at_every_stage(dialect: Dialect, routes: &[&str]) {
    let engine = fake(dialect).await;
    let gateway = Plan::with([engine.url()]).start().await;
    for stage in [Stage::BeforeHeaders, Stage::AfterHeaders, Stage::MidStream, Stage::Whole] {
        for route in routes {
            let times = leave(&engine, &gateway, dialect, route, stage).await;
            // Two of five in time is enough to show that nothing waits; a busy machine may delay the others.
            assert!(times[1] <= PROMISE, "{dialect:?} {route} {stage:?}: {times:?}");
            assert!(times[4] < Duration::from_millis(1_500), "{dialect:?} {route} {stage:?}: {times:?}");
        }
    }
    gateway.settled().await;
    assert_eq!(gateway.states().await, ["healthy"], "a client's going is nobody's fault");
    let outcomes = gateway.metric("plimsoll_requests_total", &["outcome=\"cancelled\""]).await;
    assert_eq!(outcomes, (4 * ROUNDS * routes.len() as u64) as f64);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglang_is_told_by_rid_at_every_stage() {
    at_every_stage(Dialect::Sglang, &[CHAT, GENERATE]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm_sees_its_connection_close_at_every_stage() {
    at_every_stage(Dialect::Vllm, &[CHAT, COMPLETIONS]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_servers_see_it_too() {
    at_every_stage(Dialect::Openai, &[CHAT]).await;
}

/// Stands before an engine and can stop accepting while its address stays open: connects then hang in the kernel.
async fn door(engine: &FakeEngine) -> (std::net::SocketAddr, tokio::sync::oneshot::Sender<()>) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let (addr, behind) = (listener.local_addr().unwrap(), engine.addr());
    let (close, mut closed) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let mut passing = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let (mut outer, _) = accepted.unwrap();
                    passing.spawn(async move {
                        let mut inner = tokio::net::TcpStream::connect(behind).await.unwrap();
                        let _ = tokio::io::copy_bidirectional(&mut outer, &mut inner).await;
                    });
                }
                _ = &mut closed => break,
            }
        }
        passing.shutdown().await;
        let _listening = listener;
        std::future::pending::<()>().await;
    });
    (addr, close)
}

/// The engine's accept queue is full, so the gateway hangs in its connect when the client leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn during_connect_the_charge_is_given_back() {
    let engine = fake(Dialect::Vllm).await;
    let (addr, close) = door(&engine).await;
    let gateway = Plan::with([format!("http://{addr}")])
        .set("upstream.connect_timeout_ms", 25_000)
        .set("health.probe_failures", 1_000)
        .start()
        .await;
    close.send(()).unwrap();
    let connect = || tokio::time::timeout(Duration::from_millis(300), tokio::net::TcpStream::connect(addr));
    let mut filling = Vec::new();
    while let Ok(Ok(stream)) = connect().await {
        filling.push(stream);
    }
    let mut connection = Connection::open(gateway.addr).await;
    connection.post(CHAT, &[], &body(CHAT, true, 10).to_string()).await;
    eventually("the request to be charged", PATIENCE, || async {
        let ledger = gateway.ledger().await;
        if ledger["totals"]["entries"] == 1 { Ok(()) } else { Err(ledger) }
    })
    .await;
    drop(connection);
    let start = Instant::now();
    gateway.settled().await;
    assert!(start.elapsed() < Duration::from_secs(3), "settled after {:?}", start.elapsed());
    assert_eq!(engine.snapshot().generations, 0);
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leave_at_once_and_nothing_stays() {
    let engine = fake(Dialect::Sglang).await;
    engine.control(Control { ttft_ms: Some(60_000), ..Control::default() });
    let gateway = Plan::with([engine.url()]).start().await;
    let mut connections = Vec::new();
    for n in 0..100 {
        let mut connection = Connection::open(gateway.addr).await;
        connection.post(CHAT, &[], &body(CHAT, n % 2 == 0, 50).to_string()).await;
        connections.push(connection);
    }
    until(&engine, "all of them", |seen| seen.in_flight == 100).await;
    drop(connections);
    let seen = until(&engine, "none of them", |seen| seen.in_flight == 0).await;
    assert_eq!(seen.aborted_by_rid, 100, "each by its own rid, none by SGLang's own slow way");
    gateway.finish().await;
}
