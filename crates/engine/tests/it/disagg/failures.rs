//! When it does not: both legs end, soon, with a reason, and nothing is kept.

use super::*;

/// Short for whoever waits for it, long for a machine that is busy with other tests.
const QUICK: Duration = Duration::from_secs(1);

fn quick(role: Role) -> EngineConfig {
    EngineConfig { disagg: DisaggConfig { handshake: QUICK, deadline: QUICK, ..disagg(role) }, ..config() }
}

fn failed((status, text): &(u16, String), part: &str) {
    assert_eq!(*status, 500, "{text}");
    let error: Value = serde_json::from_str(text).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains(part), "{message:?} does not say {part:?}");
}

/// Status and text of an answer that is to come.
type Hanging = JoinHandle<(u16, String)>;

/// A leg that hangs: its answer comes later.
fn hang(server: &Server, body: &Value) -> Hanging {
    let (address, body) = (server.address, body.to_string());
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(crate::client::PATIENCE)).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST /generate HTTP/1.1\r\nhost: e\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    })
}

/// Both legs of one request, prefill slow enough to be in its midst: a chunk a step.
fn in_transfer(pair: &Pair) -> (Hanging, Hanging) {
    pair.prefill.ask("/admin/faults", &json!({"step_delay_us": 20_000}));
    // Another salt each time: no cache has it.
    let body = pair.body(&with(&generate(2000, 50), &json!({"cache_salt": room().to_string()})));
    let legs = (hang(&pair.prefill, &body), hang(&pair.decode, &body));
    pair.decode.wait_load("pages are on their way", |load| load["disaggregation"]["decode_transfer_queue_reqs"] == 1);
    pair.prefill.wait_load("prefill is at it", |load| load["num_running_reqs"] == 1);
    legs
}

fn chunked(role: Role) -> EngineConfig {
    EngineConfig { token_budget: 32, ..engine(role) }
}

#[test]
fn a_leg_without_a_partner_ends_after_the_handshake() {
    let pair = Pair::of(quick(Role::Prefill), quick(Role::Decode));
    let alone = answer(&pair.prefill, "/generate", &pair.body(&generate(20, 4)));
    failed(&alone, "Prefill bootstrap failed for request rank=0 req.rid='");
    failed(&alone, "no decode leg in this room within 1000 ms");
    let alone = answer(&pair.decode, "/generate", &pair.body(&generate(20, 4)));
    failed(&alone, "Decode handshake failed for request rank=0 decode_req.req.rid='");
    failed(&alone, "bootstrap_room=");
    // Nobody is at that port at all.
    let body = with(&pair.body(&generate(20, 4)), &json!({"bootstrap_port": 1}));
    failed(&answer(&pair.decode, "/generate", &body), "cannot connect");
    pair.wait_empty();
    assert_eq!(metric(&pair.prefill, "num_bootstrap_failed_reqs_total"), 1.0);
    assert_eq!(metric(&pair.decode, "num_bootstrap_failed_reqs_total"), 2.0);
    // In a stream the same comes as SGLang sends it: inside a 200.
    let body = with(&pair.body(&generate(20, 4)), &json!({"stream": true}));
    let last = pair.decode.post("/generate", &body).events().pop().unwrap();
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "abort");
    assert_eq!(last["meta_info"]["finish_reason"]["status_code"], 500);
    pair.wait_empty();
}

#[test]
fn an_abort_of_either_leg_ends_the_other() {
    let pair = Pair::of(chunked(Role::Prefill), chunked(Role::Decode));
    let began = Instant::now();
    let (prefill, decode) = in_transfer(&pair);
    pair.decode.post("/abort_request", &json!({"abort_all": true}));
    failed(&prefill.join().unwrap(), "the decode leg was cancelled");
    assert!(decode.join().unwrap().1.contains("abort"));
    pair.wait_empty();
    let (prefill, decode) = in_transfer(&pair);
    pair.prefill.post("/abort_request", &json!({"abort_all": true}));
    failed(&decode.join().unwrap(), "Decode transfer failed");
    assert!(prefill.join().unwrap().1.contains("abort"));
    pair.wait_empty();
    assert!(began.elapsed() < SOON, "no deadline was waited for");
    assert_eq!(metric(&pair.decode, "num_transfer_failed_reqs_total"), 1.0);
}

#[test]
fn a_reader_that_leaves_either_leg_ends_the_other() {
    let pair = Pair::of(chunked(Role::Prefill), chunked(Role::Decode));
    pair.prefill.ask("/admin/faults", &json!({"step_delay_us": 20_000}));
    for side in 0..2 {
        let body = pair.body(&with(&generate(2000, 50), &json!({"cache_salt": room().to_string()})));
        let (leaves, stays) = if side == 0 { (&pair.prefill, &pair.decode) } else { (&pair.decode, &pair.prefill) };
        let mut stream = TcpStream::connect(leaves.address).unwrap();
        let text = body.to_string();
        write!(stream, "POST /generate HTTP/1.1\r\nhost: e\r\ncontent-length: {}\r\n\r\n{text}", text.len()).unwrap();
        let other = hang(stays, &body);
        pair.decode
            .wait_load("pages are on their way", |load| load["disaggregation"]["decode_transfer_queue_reqs"] == 1);
        drop(stream);
        failed(&other.join().unwrap(), "transfer failed");
        pair.wait_empty();
    }
}

#[test]
fn an_engine_that_stops_takes_the_other_leg_along() {
    for side in 0..2 {
        let drain = |role| EngineConfig { drain: Duration::from_millis(50), ..chunked(role) };
        let mut pair = Pair::of(drain(Role::Prefill), drain(Role::Decode));
        let (prefill, decode) = in_transfer(&pair);
        let stays = if side == 0 {
            pair.prefill.begin_stop();
            drop(prefill);
            decode
        } else {
            pair.decode.begin_stop();
            drop(decode);
            prefill
        };
        failed(&stays.join().unwrap(), "transfer failed");
        let left = if side == 0 { &pair.decode } else { &pair.prefill };
        left.wait_empty();
    }
}

#[test]
fn a_frozen_engine_is_noticed_within_the_deadline() {
    let frozen = |role| EngineConfig {
        disagg: DisaggConfig { deadline: Duration::from_millis(500), ..disagg(role) },
        ..chunked(role)
    };
    for side in 0..2 {
        let pair = Pair::of(frozen(Role::Prefill), frozen(Role::Decode));
        let (prefill, decode) = in_transfer(&pair);
        let (ill, well) = if side == 0 { (&pair.prefill, &pair.decode) } else { (&pair.decode, &pair.prefill) };
        let began = Instant::now();
        ill.ask("/admin/faults", &json!({"no_respond": true}));
        let answers = if side == 0 { (prefill, decode) } else { (decode, prefill) };
        failed(&answers.1.join().unwrap(), "within 500 ms");
        assert!(began.elapsed() < SOON);
        well.wait_empty();
        ill.ask("/admin/faults", &json!({"no_respond": null, "step_delay_us": null}));
        assert_eq!(answers.0.join().unwrap().0, 500);
        pair.wait_empty();
        // And both are as good as new.
        pair.ask("/generate", &generate(40, 4));
    }
}

#[test]
fn a_cut_transfer_fails_both_legs_and_the_next_one_works() {
    let pair = Pair::of(chunked(Role::Prefill), chunked(Role::Decode));
    for after_pages in [0, 3, 12, 1000] {
        pair.prefill.ask("/admin/faults", &json!({"transfer_error": {"nth": 2, "after_pages": after_pages}}));
        pair.ask("/generate", &with(&generate(200, 4), &json!({"cache_salt": format!("a{after_pages}")})));
        let [prefill, decode] =
            pair.both("/generate", &with(&generate(200, 4), &json!({"cache_salt": format!("b{after_pages}")})));
        failed(&prefill, "Prefill transfer failed");
        failed(&prefill, "a fault that was switched on");
        failed(&decode, "Decode transfer failed");
        pair.wait_empty();
        pair.ask("/generate", &with(&generate(200, 4), &json!({"cache_salt": format!("c{after_pages}")})));
    }
    pair.wait_empty();
}

#[test]
fn engines_that_do_not_fit_say_so_on_both_legs() {
    let mut other_seed = engine(Role::Decode);
    other_seed.model.seed = 9;
    let cases =
        [(EngineConfig { page_tokens: 32, ..engine(Role::Decode) }, "page size is"), (other_seed, "another model")];
    for (decode, part) in cases {
        let pair = Pair::of(engine(Role::Prefill), decode);
        let began = Instant::now();
        let [prefill, decode] = pair.both("/generate", &generate(20, 4));
        failed(&prefill, part);
        failed(&decode, part);
        failed(&decode, "Decode handshake failed");
        // A decode leg that is over before its prefill leg comes leaves word.
        let body = pair.body(&generate(20, 4));
        failed(&answer(&pair.decode, "/generate", &body), part);
        failed(&answer(&pair.prefill, "/generate", &body), part);
        assert!(began.elapsed() < SOON, "no deadline was waited for");
        pair.wait_empty();
    }
}

#[test]
fn a_wrong_secret_is_refused_and_fails_nobody_elses_room() {
    let of = |role, secret: &str, handshake| EngineConfig {
        disagg: DisaggConfig { secret: Some(Secret::new(secret)), handshake, ..disagg(role) },
        ..config()
    };
    let pair = Pair::of(of(Role::Prefill, "anchor", SOON), of(Role::Decode, "buoy", SOON));
    let right = Server::start(of(Role::Decode, "anchor", SOON));
    let body = pair.body(&generate(20, 4));
    let prefill = hang(&pair.prefill, &body);
    pair.prefill.wait_load("it waits", |load| load["num_waiting_reqs"] == 1);
    failed(&answer(&pair.decode, "/generate", &body), "does not know the transfer secret");
    assert_eq!(answer(&right, "/generate", &body).0, 200);
    assert_eq!(prefill.join().unwrap().0, 200);
    pair.wait_empty();
}

#[test]
fn a_room_has_one_request_and_is_free_after_it() {
    let pair = Pair::of(quick(Role::Prefill), engine(Role::Decode));
    let slow = Pair::new();
    let room = json!({"bootstrap_room": 77});
    // Twice in the same room, one after the other.
    for _ in 0..2 {
        let body = with(&slow.body(&generate(20, 4)), &room);
        let prefill = hang(&slow.prefill, &body);
        assert_eq!(answer(&slow.decode, "/generate", &body).0, 200);
        assert_eq!(prefill.join().unwrap().0, 200);
    }
    // A second prefill leg is told at once; the first one has its partner.
    let body = with(&slow.body(&generate(20, 4)), &room);
    let first = hang(&slow.prefill, &body);
    slow.prefill.wait_load("it waits", |load| load["num_waiting_reqs"] == 1);
    let (status, text) = answer(&slow.prefill, "/generate", &body);
    assert_eq!(status, 400);
    assert!(text.contains("bootstrap_room: 77 belongs to another request"), "{text}");
    assert_eq!(answer(&slow.decode, "/generate", &body).0, 200);
    assert_eq!(first.join().unwrap().0, 200);
    // So is a second decode leg, whichever of them called second.
    let legs = [hang(&slow.decode, &body), hang(&slow.decode, &body)];
    slow.decode.wait_load("both came", |_| metric(&slow.decode, "num_requests_total") >= 5.0);
    slow.decode.wait_load("one is refused", |load| load["num_waiting_reqs"] == 1);
    assert_eq!(answer(&slow.prefill, "/generate", &body).0, 200);
    let answers = legs.map(|leg| leg.join().unwrap());
    assert_eq!(answers.iter().filter(|(status, _)| *status == 200).count(), 1);
    failed(answers.iter().find(|(status, _)| *status != 200).unwrap(), "already has its decode leg");
    slow.wait_empty();
    // A room that timed out is free as well.
    let body = with(&pair.body(&generate(20, 4)), &room);
    failed(&answer(&pair.prefill, "/generate", &body), "no decode leg");
    let prefill = hang(&pair.prefill, &body);
    assert_eq!(answer(&pair.decode, "/generate", &body).0, 200);
    assert_eq!(prefill.join().unwrap().0, 200);
    pair.wait_empty();
}

#[test]
fn two_requests_in_one_room_are_told_apart() {
    let pair = Pair::new();
    let body = pair.body(&generate(20, 4));
    let other = with(&body, &json!({"text": prompt(21)}));
    let prefill = hang(&pair.prefill, &body);
    failed(&answer(&pair.decode, "/generate", &other), "different requests");
    failed(&prefill.join().unwrap(), "different requests");
    // The same words under another salt are another prompt.
    let body = pair.body(&generate(20, 4));
    let prefill = hang(&pair.prefill, &body);
    failed(&answer(&pair.decode, "/generate", &with(&body, &json!({"cache_salt": "b"}))), "different requests");
    failed(&prefill.join().unwrap(), "different requests");
    pair.wait_empty();
}

#[test]
fn bad_fields_are_refused_at_once() {
    let pair = Pair::new();
    for (more, part) in [
        (json!({"bootstrap_room": null}), "received without bootstrap room id"),
        (json!({"bootstrap_room": -1}), "bootstrap_room"),
        (json!({"bootstrap_room": "7"}), "bootstrap_room"),
        (json!({"bootstrap_port": 70_000}), "bootstrap_port"),
        (json!({"bootstrap_host": 3}), "bootstrap_host"),
    ] {
        let body = with(&pair.body(&generate(5, 2)), &more);
        for server in [&pair.prefill, &pair.decode] {
            let (status, text) = answer(server, "/generate", &body);
            assert_eq!(status, 400, "{text}");
            assert!(text.contains(part), "{text}");
        }
    }
    let body = with(&pair.body(&generate(5, 2)), &json!({"bootstrap_host": null}));
    let (status, text) = answer(&pair.decode, "/generate", &body);
    assert_eq!(status, 400);
    assert!(text.contains("bootstrap_host"), "{text}");
    pair.wait_empty();
}

#[test]
fn noise_at_the_bootstrap_port_harms_nobody() {
    let pair = Pair::new();
    for noise in [&b"\xff\xff\xff\xff\xff\xff\xff\xff"[..], b"E", b"EHLO there\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0"] {
        let mut stream = TcpStream::connect(("127.0.0.1", pair.port as u16)).unwrap();
        stream.write_all(noise).unwrap();
        drop(stream);
    }
    let _silent = TcpStream::connect(("127.0.0.1", pair.port as u16)).unwrap();
    pair.ask("/generate", &generate(20, 4));
    pair.wait_empty();
}
