use super::*;
use plimsoll_cache::chain::{NameFormat, Namespace};
use plimsoll_cache::funnel::Layer;
use plimsoll_cache::view::Family;
use plimsoll_core::{Class, InstanceId};

fn target(instance: u32) -> Target {
    Target { instance: InstanceId(instance), rank: Rank(0) }
}

fn fleet() -> Capacities {
    BTreeMap::from([("m".to_owned(), BTreeMap::from([(target(0), Some(1_600)), (target(1), None)]))])
}

fn placed(request: u128, to: u32) -> Told {
    let families = [Family { format: NameFormat::Own, block_tokens: 16 }];
    let tokens: Vec<u32> = (0..100).collect();
    Told::Placed(Box::new(Place {
        model: "m".to_owned(),
        at: Nanos::ZERO,
        prompt: Arc::new(Prompt::new(&families, Namespace::default(), &tokens)),
        request: RequestId(request),
        attempt: 0,
        key: CellKey { class: Class::High, tenant: "t".into() },
        target: target(to),
        believed: None,
        answer: None,
    }))
}

fn ended(request: u128, tokens: u64) -> Told {
    let reported = Some(Reported { tokens, tiers: None });
    Told::Ended { model: "m".to_owned(), at: Nanos::ZERO, request: RequestId(request), reported }
}

#[test]
fn a_rank_is_known_by_its_first_request_and_forgotten_when_it_leaves() {
    let funnels = Funnels::new(&Settings::default());
    funnels.take(&fleet, vec![placed(1, 0), ended(1, 0), placed(2, 0), ended(2, 96), placed(3, 1), ended(3, 0)]);
    let (_, report) = funnels.reports(Nanos::ZERO).remove(0);
    let sums = report.cells[0].1;
    assert_eq!((sums.requests, sums[Layer::Ceiling], sums[Layer::Placed], sums[Layer::Actual]), (2, 96, 96, 96));
    assert_eq!((report.ranks, report.capacity_tokens, report.ranks_without_capacity), (2, 1_600, 1));
    assert_eq!(report.unmeasured.iter().map(|(_, count)| count).sum::<u64>(), 1);
    funnels.refit(&Capacities::new());
    assert_eq!(funnels.reports(Nanos::ZERO)[0].1.ranks, 0);
}

#[test]
fn tiers_are_summed_where_they_are_told() {
    let funnels = Funnels::new(&Settings::default());
    let told = |request, tiers| Told::Ended {
        model: "m".to_owned(),
        at: Nanos::ZERO,
        request: RequestId(request),
        reported: Some(Reported { tokens: 96, tiers }),
    };
    let ends = [placed(1, 0), told(1, Some([64, 32, 0])), placed(2, 0), told(2, None)];
    funnels.take(&fleet, ends.into());
    assert_eq!(funnels.reports(Nanos::ZERO)[0].1.cells[0].1.tiers, [64, 32, 0]);
}

#[test]
fn a_full_queue_counts_and_never_waits() {
    let funnels = Funnels::new(&Settings::default());
    for request in 0..QUEUE as u128 + 7 {
        funnels.tell(|| ended(request, 0));
    }
    assert_eq!(funnels.lost(), 7);
    let off = Funnels::new(&Settings {
        funnel: plimsoll_settings::Funnel { enabled: false, ..Default::default() },
        ..Settings::default()
    });
    off.tell(|| unreachable!("nobody wants it"));
    assert_eq!(off.lost(), 0);
}

#[test]
fn names_of_models_are_bounded() {
    let funnels = Funnels::new(&Settings::default());
    funnels.take(&Capacities::new, (0..100).map(|n| Told::Unnamed { model: format!("m{n}") }).collect());
    assert!(funnels.reports(Nanos::ZERO).len() <= MOST_MODELS + 1);
}
