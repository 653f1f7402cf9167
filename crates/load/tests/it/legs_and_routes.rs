//! Who is meant at all: prefill and decode engines never get whole requests, nobody gets a route it does not offer.

use crate::fleet::{MODEL, T0, spec};
use plimsoll_core::{InstanceId, LegRole, RequestId};
use plimsoll_load::{Ask, InstanceSpec, PlaceError, Placed, PolicyKind, RouteSet, Scheduler, SchedulerConfig};
use proptest::prelude::*;

fn scheduler(policy: PolicyKind, instances: &[(LegRole, RouteSet)]) -> Scheduler {
    let mut scheduler = Scheduler::new(SchedulerConfig { policy, ..SchedulerConfig::default() });
    for (id, &(role, routes)) in (0..).map(InstanceId).zip(instances) {
        scheduler.add_instance(id, InstanceSpec { role, routes, ..spec() });
        scheduler.probe_ok(id, T0);
    }
    scheduler
}

fn place(s: &mut Scheduler, model: Option<&str>, role: LegRole, route: RouteSet) -> Result<Placed, PlaceError> {
    let request = RequestId(u128::from(s.totals(T0).entries));
    s.place(T0, &Ask { request, model, role, route, ..Ask::default() })
}

fn reasons(of: Result<Placed, PlaceError>) -> Vec<(u32, &'static str)> {
    match of {
        Err(PlaceError::NoCandidate { reasons }) => reasons.into_iter().map(|(id, why)| (id.0, why)).collect(),
        other => panic!("{other:?}"),
    }
}

const UNIFIED: LegRole = LegRole::Unified;

#[test]
fn a_route_that_nobody_offers_is_named_as_the_reason() {
    let chat = RouteSet::CHAT | RouteSet::COMPLETIONS;
    let mut s = scheduler(PolicyKind::LeastWait, &[(UNIFIED, chat), (UNIFIED, chat)]);
    for model in [Some(MODEL), None] {
        assert!(place(&mut s, model, UNIFIED, RouteSet::CHAT).is_ok());
        assert!(place(&mut s, model, UNIFIED, RouteSet::NONE).is_ok(), "does not filter");
        let why = "does not offer this route";
        assert_eq!(reasons(place(&mut s, model, UNIFIED, RouteSet::EMBEDDINGS)), [(0, why), (1, why)]);
    }
    assert!(s.model_status(MODEL).serving);
    let unknown = place(&mut s, Some("other"), UNIFIED, RouteSet::EMBEDDINGS);
    assert_eq!(unknown, Err(PlaceError::UnknownModel), "rather than a missing route");
}

#[test]
fn prefill_and_decode_engines_get_their_legs_only() {
    let mut s =
        scheduler(PolicyKind::RoundRobin, &[(LegRole::Prefill, RouteSet::ALL), (LegRole::Decode, RouteSet::ALL)]);
    for _ in 0..4 {
        assert_eq!(place(&mut s, Some(MODEL), LegRole::Prefill, RouteSet::CHAT).unwrap().target.instance.0, 0);
        assert_eq!(place(&mut s, Some(MODEL), LegRole::Decode, RouteSet::CHAT).unwrap().target.instance.0, 1);
    }
    let expected = [(0, "takes prefill legs only"), (1, "takes decode legs only")];
    for model in [Some(MODEL), None] {
        assert_eq!(reasons(place(&mut s, model, UNIFIED, RouteSet::CHAT)), expected);
    }
    let status = s.model_status(MODEL);
    let told: Vec<_> = status.reasons.iter().map(|&(id, why)| (id.0, why)).collect();
    assert_eq!((status.serving, told), (false, expected.to_vec()));
    assert!(s.all_refusing(Some(MODEL), T0, &[]), "a retry would find nobody");
    s.add_instance(InstanceId(2), spec());
    s.probe_ok(InstanceId(2), T0);
    assert!(s.model_status(MODEL).serving);
    assert_eq!(place(&mut s, Some(MODEL), UNIFIED, RouteSet::CHAT).unwrap().target.instance.0, 2);
    assert_eq!(s.totals(T0).entries, 9);
}

/// Found by hand: the choices of both legs come in turns, and one cursor for both sent each to its first engine for ever.
#[test]
fn engines_of_each_role_go_round_by_themselves() {
    let (prefill, decode) = (LegRole::Prefill, LegRole::Decode);
    let engines = [prefill, prefill, decode, decode].map(|role| (role, RouteSet::ALL));
    let mut s = scheduler(PolicyKind::RoundRobin, &engines);
    let mut took = Vec::new();
    for _ in 0..4 {
        for role in [prefill, decode] {
            took.push(place(&mut s, Some(MODEL), role, RouteSet::CHAT).unwrap().target.instance.0);
        }
    }
    assert_eq!(took, [0, 2, 1, 3, 0, 2, 1, 3]);
}

/// Without a model name the route may leave one model that can be meant.
#[test]
fn the_only_model_with_the_route_is_meant() {
    let mut s = scheduler(PolicyKind::LeastWait, &[(UNIFIED, RouteSet::CHAT)]);
    let models = vec!["embedder".to_owned()];
    s.add_instance(InstanceId(7), InstanceSpec { models, routes: RouteSet::EMBEDDINGS, ..spec() });
    s.probe_ok(InstanceId(7), T0);
    assert_eq!(place(&mut s, None, UNIFIED, RouteSet::EMBEDDINGS).unwrap().target.instance.0, 7);
    assert_eq!(place(&mut s, None, UNIFIED, RouteSet::NONE), Err(PlaceError::ModelRequired));
}

/// That everybody who offers the route is out does not open the door to those that do not.
#[test]
fn panic_stays_among_those_that_are_meant() {
    let mut s = scheduler(PolicyKind::LeastWait, &[(UNIFIED, RouteSet::CHAT), (UNIFIED, RouteSet::EMBEDDINGS)]);
    for _ in 0..4 {
        s.probe_failed(InstanceId(0), T0);
    }
    let placed = place(&mut s, Some(MODEL), UNIFIED, RouteSet::CHAT).unwrap();
    assert_eq!((placed.target.instance.0, placed.panic, placed.considered), (0, true, 1));
}

#[test]
fn paths_are_read_as_routes() {
    let listed = ["/health", "/generate", "/v1/embeddings", "/generate"];
    assert_eq!(RouteSet::of_paths(listed), RouteSet::GENERATE | RouteSet::EMBEDDINGS);
    assert_eq!(RouteSet::of_paths([]), RouteSet::NONE);
    let all = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/generate"];
    assert_eq!(RouteSet::of_paths(all), RouteSet::ALL);
    for path in all {
        let route = RouteSet::of_path(path);
        assert!(RouteSet::ALL.contains(route) && !RouteSet::NONE.contains(route) && route.contains(RouteSet::NONE));
        assert_eq!(all.iter().filter(|&&other| route.contains(RouteSet::of_path(other))).count(), 1);
    }
}

fn roles() -> impl Strategy<Value = LegRole> {
    prop_oneof![Just(LegRole::Unified), Just(LegRole::Prefill), Just(LegRole::Decode)]
}

/// Any set of routes, the empty one included.
fn sets() -> impl Strategy<Value = RouteSet> {
    let paths = vec!["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/generate"];
    proptest::sample::subsequence(paths, 0..=4).prop_map(RouteSet::of_paths)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The walk's filter and the reasons agree, under every policy.
    #[test]
    fn a_choice_falls_only_on_those_that_are_meant(
        instances in proptest::collection::vec((roles(), sets()), 1..8),
        policy in prop_oneof![Just(PolicyKind::LeastDelay), Just(PolicyKind::LeastWait), Just(PolicyKind::RoundRobin), Just(PolicyKind::PowerOfTwo)],
        asks in proptest::collection::vec((roles(), sets()), 1..20),
    ) {
        let mut s = scheduler(policy, &instances);
        for (role, route) in asks {
            let meant = |&&(r, routes): &&(LegRole, RouteSet)| r == role && routes.contains(route);
            let count = instances.iter().filter(meant).count();
            match place(&mut s, Some(MODEL), role, route) {
                Ok(placed) => {
                    prop_assert_eq!(placed.considered, count);
                    prop_assert!(meant(&&instances[placed.target.instance.0 as usize]));
                }
                Err(PlaceError::NoCandidate { reasons }) => {
                    prop_assert_eq!((count, reasons.len()), (0, instances.len()));
                    for (id, why) in reasons {
                        let takes_role = instances[id.0 as usize].0 == role;
                        prop_assert_eq!(takes_role, why == "does not offer this route", "{}: {}", id, why);
                    }
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}
