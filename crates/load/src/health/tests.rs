use super::HealthState::{Ejected, HalfOpen, Healthy, Unproven};
use super::{Health, HealthState};
use crate::ask::AttemptEnd;
use crate::config::HealthConfig;

#[derive(Clone, Copy, Debug)]
enum Event {
    ProbeOk,
    ProbeFailed,
    Progress,
    /// An attempt placed now and ended so at once.
    Attempt(AttemptEnd),
    /// An attempt placed now that gets its first token and goes on.
    FirstToken,
}

use Event::{Attempt, FirstToken, ProbeFailed, ProbeOk, Progress};

const REFUSED: AttemptEnd = AttemptEnd::Refused { retry_after: None };

fn run(events: &[Event]) -> HealthState {
    let (mut health, config) = (Health::new(), HealthConfig::default());
    for event in events {
        let before = health.state();
        let change = match event {
            ProbeOk => health.probe_ok(),
            ProbeFailed => health.probe_failed(&config),
            Progress => {
                health.progress();
                None
            }
            Attempt(end) => {
                let stamp = health.placed();
                health.ended(stamp, *end, &config)
            }
            FirstToken => {
                let stamp = health.placed();
                health.first_token(stamp)
            }
        };
        assert_eq!(
            change.map(|(from, to, _)| (from, to)),
            (before != health.state()).then_some((before, health.state()))
        );
    }
    health.state()
}

#[test]
fn table() {
    use AttemptEnd::{Cancelled, ClientFault, ConnectFailed, Failed, Ok, Stalled};
    let out = [ProbeOk, ProbeFailed, ProbeFailed];
    let half = [ProbeOk, ProbeFailed, ProbeFailed, ProbeOk];
    let cases: &[(&[Event], &[Event], HealthState)] = &[
        (&[], &[], Unproven),
        (&[], &[ProbeFailed, ProbeFailed, ProbeFailed], Unproven),
        (&[], &[ProbeOk], Healthy),
        (&[], &[FirstToken], Healthy),
        (&[], &[Attempt(Failed)], Unproven),
        (&[ProbeOk], &[ProbeFailed], Healthy),
        (&[ProbeOk], &[ProbeFailed, ProbeFailed], Ejected),
        (&[ProbeOk], &[ProbeFailed, Progress, ProbeFailed], Healthy),
        (&[ProbeOk], &[ProbeFailed, FirstToken, ProbeFailed], Healthy),
        (&[ProbeOk], &[ProbeFailed, Attempt(Ok), ProbeFailed], Healthy),
        (&[ProbeOk], &[ProbeFailed, Attempt(ClientFault), ProbeFailed], Healthy),
        (&[ProbeOk], &[ProbeFailed, Attempt(Cancelled), Attempt(REFUSED), ProbeFailed], Ejected),
        (&[ProbeOk], &[Attempt(Failed); 4], Healthy),
        (&[ProbeOk], &[Attempt(Failed); 5], Ejected),
        (&[ProbeOk], &[Attempt(Stalled); 5], Ejected),
        (&[ProbeOk], &[Attempt(Failed), Attempt(Failed), Attempt(Ok), Attempt(Failed), Attempt(Failed)], Healthy),
        // A token before it died is not an answer.
        (
            &[ProbeOk],
            &[Attempt(Failed), FirstToken, Attempt(Failed), Attempt(Failed), Attempt(Failed), Attempt(Failed)],
            Ejected,
        ),
        // Answering cheap endpoints does not excuse failing requests.
        (
            &[ProbeOk],
            &[Attempt(Failed), ProbeOk, Attempt(Failed), ProbeOk, Attempt(Failed), Attempt(Failed), Attempt(Failed)],
            Ejected,
        ),
        // Nor do 4xx.
        (
            &[ProbeOk],
            &[
                Attempt(Failed),
                Attempt(Failed),
                Attempt(ClientFault),
                Attempt(Failed),
                Attempt(Failed),
                Attempt(Failed),
            ],
            Ejected,
        ),
        (&[ProbeOk], &[Attempt(ConnectFailed)], Healthy),
        (&[ProbeOk], &[Attempt(ConnectFailed), Attempt(ConnectFailed)], Ejected),
        (&[ProbeOk], &[Attempt(ConnectFailed), Progress, Attempt(ConnectFailed)], Healthy),
        (&[ProbeOk], &[Attempt(ConnectFailed), Attempt(Failed), Attempt(ConnectFailed)], Healthy),
        (&[ProbeOk], &[Attempt(ClientFault), Attempt(Cancelled), Attempt(REFUSED)], Healthy),
        (&out, &[ProbeFailed], Ejected),
        (&out, &[ProbeOk], HalfOpen),
        (&out, &[Attempt(Ok)], Healthy),
        (&out, &[Attempt(Failed)], Ejected),
        (&half, &[FirstToken], Healthy),
        (&half, &[Attempt(Ok)], Healthy),
        (&half, &[Attempt(ClientFault)], Healthy),
        (&half, &[Attempt(Failed)], Ejected),
        (&half, &[Attempt(ConnectFailed)], Ejected),
        (&half, &[Attempt(Stalled)], Ejected),
        (&half, &[Attempt(REFUSED)], HalfOpen),
        (&half, &[Attempt(Cancelled)], HalfOpen),
        (&half, &[ProbeOk], HalfOpen),
        (&half, &[ProbeOk, ProbeOk], Healthy),
        (&half, &[ProbeOk, Attempt(Cancelled), ProbeOk], HalfOpen),
        (&half, &[ProbeOk, ProbeFailed, ProbeOk], HalfOpen),
        (&half, &[ProbeFailed], HalfOpen),
        (&half, &[ProbeFailed, ProbeFailed], Ejected),
    ];
    for (before, events, expected) in cases {
        let all: Vec<Event> = before.iter().chain(*events).copied().collect();
        assert_eq!(run(&all), *expected, "{all:?}");
    }
}

#[test]
fn evidence_from_before_an_ejection_is_void() {
    let config = HealthConfig::default();
    let mut health = Health::new();
    health.probe_ok();
    let old = health.placed();
    health.probe_failed(&config);
    health.probe_failed(&config);
    assert_eq!(health.ended(old, AttemptEnd::Ok, &config), None, "a stream that was buffered on the way");
    health.probe_ok();
    assert_eq!(health.first_token(old), None);
    assert_eq!(health.ended(old, AttemptEnd::Failed, &config), None);
    assert_eq!((health.state(), health.trials()), (HalfOpen, 0));
    // What was sent after it counts, also when it was sent in panic.
    let mut health = Health::new();
    health.probe_ok();
    health.probe_failed(&config);
    health.probe_failed(&config);
    let panic = health.placed();
    health.probe_ok();
    assert_eq!(health.ended(panic, AttemptEnd::Failed, &config), None, "not a trial");
    assert_eq!(health.state(), HalfOpen);
    assert_eq!(health.ended(panic, AttemptEnd::Ok, &config).map(|c| c.1), Some(Healthy));
}

#[test]
fn trials_are_given_back() {
    let config = HealthConfig { half_open_requests: 2, ..HealthConfig::default() };
    let mut health = Health::new();
    health.probe_ok();
    for _ in 0..2 {
        health.probe_failed(&config);
    }
    assert!(!health.open(&config));
    health.probe_ok();
    let (first, second) = (health.placed(), health.placed());
    assert!(!health.open(&config));
    health.ended(first, AttemptEnd::Cancelled, &config);
    assert!(health.open(&config));
    health.ended(second, AttemptEnd::Failed, &config);
    assert_eq!((health.state(), health.trials()), (Ejected, 0));
}

#[test]
fn a_threshold_of_zero_is_read_as_one() {
    let config = HealthConfig { probe_failures: 0, request_failures: 0, connect_failures: 0, half_open_requests: 0 };
    let mut health = Health::new();
    health.probe_ok();
    assert!(health.open(&config));
    health.probe_failed(&config);
    assert_eq!(health.state(), Ejected);
    health.probe_ok();
    assert!(health.open(&config), "one trial");
}
