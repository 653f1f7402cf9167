//! Which engines a model name, or no model name, stands for.

use crate::fleet::{T0, spec};
use plimsoll_core::{EngineKind, InstanceId, RequestId};
use plimsoll_load::{Ask, AttemptEnd, InstanceSpec, PlaceError, Placed, Scheduler, SchedulerConfig};

fn scheduler(instances: &[(&[&str], EngineKind)]) -> Scheduler {
    let mut scheduler = Scheduler::new(SchedulerConfig::default());
    for (id, (models, kind)) in instances.iter().enumerate() {
        let models = models.iter().map(|&m| m.to_owned()).collect();
        let id = InstanceId(id as u32);
        scheduler.add_instance(id, InstanceSpec { models, kind: *kind, ..spec() });
        scheduler.probe_ok(id, T0);
    }
    scheduler
}

fn ask(scheduler: &mut Scheduler, model: Option<&str>, kinds: Option<&[EngineKind]>) -> Result<Placed, PlaceError> {
    let request = RequestId(u128::from(scheduler.totals(T0).entries));
    scheduler.place(T0, &Ask { request, model, kinds, ..Ask::default() })
}

const SGLANG: Option<&[EngineKind]> = Some(&[EngineKind::Sglang]);

#[test]
fn each_model_has_its_engines() {
    let mut s = scheduler(&[(&["a"], EngineKind::Sglang), (&["b"], EngineKind::Vllm)]);
    for _ in 0..5 {
        assert_eq!(ask(&mut s, Some("a"), None).unwrap().target.instance, InstanceId(0));
        assert_eq!(ask(&mut s, Some("b"), None).unwrap().target.instance, InstanceId(1));
    }
    assert_eq!(ask(&mut s, Some("c"), None), Err(PlaceError::UnknownModel));
    assert_eq!(ask(&mut s, None, None), Err(PlaceError::ModelRequired));
    assert!(!s.model_status("c").serving);
}

#[test]
fn without_a_name_the_only_model_of_the_family_is_meant() {
    let mut s = scheduler(&[(&["a"], EngineKind::Sglang), (&["b"], EngineKind::Vllm)]);
    assert_eq!(ask(&mut s, None, SGLANG).unwrap().target.instance, InstanceId(0));
    let mut s = scheduler(&[(&["a", "a-alias"], EngineKind::Sglang), (&["a-alias", "a"], EngineKind::Sglang)]);
    assert!(ask(&mut s, None, None).is_ok(), "two names of the same engines");
}

#[test]
fn a_refusal_without_a_model_name_looks_at_every_engine() {
    let mut s = scheduler(&[(&["a"], EngineKind::Sglang), (&["b"], EngineKind::Vllm)]);
    let placed = ask(&mut s, None, SGLANG).unwrap();
    s.settle(placed.ticket, T0, AttemptEnd::Refused { retry_after: None });
    assert!(s.all_refusing(Some("a"), T0, &[]));
    assert!(!s.all_refusing(None, T0, &[]));
    assert!(s.all_refusing(None, T0, &[InstanceId(1)]));
}

#[test]
fn an_engine_family_can_be_asked_for() {
    let mut s = scheduler(&[(&["a"], EngineKind::Vllm), (&["a"], EngineKind::Sglang)]);
    for _ in 0..10 {
        assert_eq!(ask(&mut s, Some("a"), SGLANG).unwrap().target.instance, InstanceId(1));
    }
    let mut s = scheduler(&[(&["a"], EngineKind::Vllm)]);
    let reasons = vec![(InstanceId(0), "its engine family does not serve this endpoint")];
    assert_eq!(ask(&mut s, Some("a"), SGLANG), Err(PlaceError::NoCandidate { reasons: reasons.clone() }));
    assert_eq!(ask(&mut s, None, SGLANG), Err(PlaceError::NoCandidate { reasons }));
}

#[test]
fn before_the_first_probe_a_model_is_not_unknown_yet() {
    let mut s = scheduler(&[]);
    assert_eq!(ask(&mut s, Some("a"), None), Err(PlaceError::UnknownModel));
    s.add_instance(InstanceId(0), InstanceSpec { models: Vec::new(), ..spec() });
    let reasons = vec![(InstanceId(0), "its models are not known yet")];
    assert_eq!(ask(&mut s, Some("a"), None), Err(PlaceError::NoCandidate { reasons }));
    s.add_instance(InstanceId(1), InstanceSpec { models: vec!["b".into()], ..spec() });
    assert_eq!(ask(&mut s, Some("a"), None), Err(PlaceError::UnknownModel));
}

#[test]
fn a_model_named_twice_counts_once() {
    let mut s = scheduler(&[(&["a", "a"], EngineKind::Sglang)]);
    s.check_invariants().unwrap();
    assert_eq!(ask(&mut s, Some("a"), None).unwrap().considered, 1);
    s.remove_instance(InstanceId(0));
    assert!(s.models().is_empty());
}
