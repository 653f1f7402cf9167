//! Gateways that hear each other through a store which loses, delays and ends.

use super::*;
use proptest::prelude::*;

const MODEL: &str = "m";
const RULES: LeaseRules = LeaseRules { lease: Nanos::from_secs(5), assumed_gateways: 2 };

fn second(s: u64) -> Nanos {
    Nanos::from_secs(s)
}

fn report(gateway: u64, sequence: u64, asked: [f64; 3]) -> GatewayReport {
    let demand = ModelDemand { asked_tokens_per_s: asked, ..ModelDemand::default() };
    let models = [(MODEL.to_owned(), demand)].into();
    GatewayReport { gateway: GatewayId(gateway), sequence, leaving: false, models }
}

/// Gateways 0.. and the store between them.
struct Fleet {
    gateways: Vec<Leases>,
    asked: Vec<[f64; 3]>,
    now: u64,
}

impl Fleet {
    fn new(asked: &[[f64; 3]]) -> Fleet {
        let gateways = (0..asked.len() as u64).map(|id| Leases::new(GatewayId(id), RULES)).collect();
        Fleet { gateways, asked: asked.to_vec(), now: 0 }
    }

    /// A second in which each of `talking` is heard by each of `hearing`.
    fn second(&mut self, talking: &[usize], hearing: &[usize]) {
        self.now += 1;
        for from in talking {
            self.gateways[*from].saying(self.now);
            for to in hearing {
                let said = report(*from as u64, self.now, self.asked[*from]);
                self.gateways[*to].hear(second(self.now), said);
            }
        }
    }

    fn seconds(&mut self, seconds: u64, among: &[usize]) {
        (0..seconds).for_each(|_| self.second(among, among));
    }

    fn share(&self, gateway: usize, class: Class) -> f64 {
        self.gateways[gateway].lease(MODEL, second(self.now)).share[class as usize]
    }

    fn sum(&self, of: &[usize], class: Class) -> f64 {
        of.iter().map(|one| self.share(*one, class)).sum()
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn alone_it_has_everything_once_it_knows_that_it_is_alone() {
    let mut fleet = Fleet::new(&[[0.0; 3]]);
    assert_eq!(fleet.gateways[0].standing(second(0)), Standing::Unknown);
    assert_eq!(fleet.share(0, Class::Low), 0.5, "of two that there may be");
    fleet.seconds(5, &[0]);
    assert_eq!((fleet.share(0, Class::Low), fleet.gateways[0].standing(second(5))), (0.5, Standing::Joining));
    fleet.seconds(1, &[0]);
    assert_eq!((fleet.share(0, Class::Low), fleet.gateways[0].standing(second(6))), (1.0, Standing::Held));
}

#[test]
fn shares_follow_demand_and_leave_a_floor() {
    let mut fleet = Fleet::new(&[[300.0, 0.0, 0.0], [100.0, 0.0, 50.0]]);
    fleet.seconds(6, &[0, 1]);
    assert!(near(fleet.share(0, Class::High), 0.05 + 0.9 * 0.75));
    assert!(near(fleet.share(1, Class::High), 0.05 + 0.9 * 0.25));
    assert!(near(fleet.share(0, Class::Medium), 0.5), "nobody asks");
    assert!(near(fleet.share(0, Class::Low), 0.05), "room for its first");
    fleet.asked[0] = [0.0, 0.0, 50.0];
    fleet.seconds(1, &[0, 1]);
    assert!(near(fleet.share(0, Class::High), 0.05) && near(fleet.share(0, Class::Low), 0.5));
    assert_eq!(
        fleet.gateways[1].lease(MODEL, second(7)).long_between.map(|at| (at * 1e6) as u32),
        [500_000, 1_000_000]
    );
    assert_eq!(fleet.gateways[0].lease(MODEL, second(7)).others.asked_tokens_per_s, [100.0, 0.0, 50.0]);
    assert!(near(fleet.gateways[0].lease("another", second(7)).share[0], 0.5));
}

#[test]
fn a_newcomer_takes_its_equal_part_at_most_until_it_knows_all() {
    let mut fleet = Fleet::new(&[[100.0; 3], [100.0; 3], [1e6; 3]]);
    fleet.seconds(9, &[0, 1]);
    assert_eq!(fleet.share(2, Class::High), 0.5, "it has heard nobody");
    fleet.second(&[0, 1, 2], &[0, 1, 2]);
    assert!(near(fleet.share(2, Class::High), 1.0 / 3.0), "however much it asks for");
    fleet.seconds(5, &[0, 1, 2]);
    assert!(fleet.share(2, Class::High) > 0.9);
}

#[test]
fn the_dead_are_given_up_after_the_lease_and_the_leaving_at_once() {
    let mut fleet = Fleet::new(&[[100.0; 3], [100.0; 3], [100.0; 3]]);
    fleet.seconds(6, &[0, 1, 2]);
    fleet.seconds(5, &[0, 1]);
    assert!(near(fleet.sum(&[0, 1], Class::High), 2.0 / 3.0), "five seconds may be a slow network");
    fleet.seconds(1, &[0, 1]);
    assert!(near(fleet.sum(&[0, 1], Class::High), 1.0));
    let goodbye = GatewayReport { leaving: true, ..report(1, 99, [0.0; 3]) };
    fleet.gateways[0].hear(second(fleet.now), goodbye);
    assert_eq!(fleet.share(0, Class::High), 1.0);
    let late = report(2, 1, [1.0; 3]);
    assert_eq!(fleet.gateways[0].hear(second(fleet.now), late), Heard::Peer, "whoever comes back is back");
    assert!(fleet.share(0, Class::High) < 1.0);
}

/// The store ends between a peer's last report and one's own: peers whose reports are a little older than a lease when contact is judged were
/// nearly given up for its silence.
#[test]
fn without_the_store_everybody_keeps_what_he_had_and_says_so() {
    let mut fleet = Fleet::new(&[[300.0; 3], [100.0; 3]]);
    fleet.seconds(8, &[0, 1]);
    fleet.second(&[0], &[0]);
    let shares = [fleet.share(0, Class::High), fleet.share(1, Class::High)];
    fleet.asked = vec![[0.0; 3], [1e9; 3]];
    for _ in 0..1_000 {
        fleet.now += 1;
        assert_eq!([fleet.share(0, Class::High), fleet.share(1, Class::High)], shares);
    }
    assert_eq!(fleet.gateways[0].standing(second(fleet.now)), Standing::Kept { since: second(9) });
    // Each hears itself first. The other is not given up: contact has only just begun again.
    fleet.now += 1;
    for one in 0..2 {
        let said = report(one as u64, fleet.now, [50.0; 3]);
        fleet.gateways[one].saying(fleet.now);
        fleet.gateways[one].hear(second(fleet.now), said);
        assert_eq!(fleet.gateways[one].gateways(), 2);
    }
    fleet.asked = vec![[50.0; 3], [50.0; 3]];
    fleet.seconds(1, &[0, 1]);
    assert!(near(fleet.share(0, Class::High), 0.5) && near(fleet.share(1, Class::High), 0.5));
    assert_eq!(fleet.gateways[0].standing(second(fleet.now)), Standing::Held, "it knew all before");
}

#[test]
fn a_gateway_that_stood_still_gives_nobody_up_for_it() {
    let mut fleet = Fleet::new(&[[100.0; 3], [100.0; 3]]);
    fleet.seconds(6, &[0, 1]);
    // Gateway 1 is stopped; the other takes all.
    fleet.seconds(20, &[0]);
    assert_eq!(fleet.share(0, Class::High), 1.0);
    // Thawed, it reads what lay in its socket: its own report of before, the other's.
    let last = report(1, fleet.now, [100.0; 3]);
    fleet.gateways[1].saying(fleet.now);
    fleet.gateways[1].hear(second(fleet.now), last);
    assert_eq!(fleet.gateways[1].gateways(), 2);
    fleet.seconds(1, &[0, 1]);
    assert!(near(fleet.sum(&[0, 1], Class::High), 1.0));
}

#[test]
fn what_waits_elsewhere_counts_only_while_it_is_news() {
    let mut leases = Leases::new(GatewayId(1), RULES);
    let waiting = ModelDemand { waiting_prefill_tokens: 7e4, ..ModelDemand::default() };
    let theirs = GatewayReport { models: [(MODEL.to_owned(), waiting)].into(), ..report(2, 1, [0.0; 3]) };
    leases.saying(1);
    leases.hear(second(1), report(1, 1, [0.0; 3]));
    leases.hear(second(1), theirs);
    assert_eq!(leases.lease(MODEL, second(2)).others.waiting_prefill_tokens, 7e4);
    assert_eq!(leases.lease(MODEL, second(9)).others.waiting_prefill_tokens, 0.0);
}

/// Its name is on the subject for everybody to read.
#[test]
fn what_it_has_not_said_is_not_taken_for_its_own() {
    let mut fleet = Fleet::new(&[[100.0; 3], [100.0; 3]]);
    fleet.seconds(7, &[0, 1]);
    let forged = report(0, u64::MAX, [1e9; 3]);
    assert_eq!(fleet.gateways[0].hear(second(7), forged), Heard::NotMine);
    assert!(near(fleet.share(0, Class::High), 0.5));
    fleet.seconds(1, &[0, 1]);
    assert_eq!(fleet.gateways[0].standing(second(fleet.now)), Standing::Held, "its own are still heard");
}

/// A slow store delivers every report, and each of long ago.
#[test]
fn reports_that_come_late_are_no_contact() {
    let mut leases = Leases::new(GatewayId(0), RULES);
    for now in 1..=40 {
        leases.saying(now);
        // Two seconds behind, then ten.
        let behind = if now <= 20 { 2 } else { 10 };
        if now > behind {
            leases.hear(second(now), report(0, now - behind, [1.0; 3]));
        }
        if now == 20 {
            assert_eq!(leases.standing(second(now)), Standing::Held);
        }
    }
    assert_eq!(leases.standing(second(40)), Standing::Kept { since: second(20) });
}

#[test]
fn gateways_beyond_the_bound_change_nothing() {
    let mut leases = Leases::new(GatewayId(0), RULES);
    for id in 1..=MOST_PEERS as u64 {
        assert_eq!(leases.hear(second(1), report(id, 1, [1.0; 3])), Heard::Peer);
    }
    assert_eq!(leases.hear(second(1), report(u64::MAX, 1, [1.0; 3])), Heard::TooMany);
    assert_eq!(leases.gateways(), MOST_PEERS + 1);
    assert_eq!(leases.hear(second(2), report(1, 2, [1.0; 3])), Heard::Peer, "those that are known go on");
}

fn asked() -> impl Strategy<Value = [f64; 3]> {
    let number = prop_oneof![Just(0.0), Just(ModelDemand::MOST), 1e-9..1e6f64];
    prop::array::uniform3(number)
}

proptest! {
    /// Whoever heard the same, in whatever order and however often, computes the same; together they have one.
    #[test]
    fn shares_of_the_same_reports_add_up_to_one(
        all in prop::collection::vec(asked(), 1..12), order in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let mut fleet = Fleet::new(&all);
        let everybody: Vec<usize> = (0..all.len()).collect();
        fleet.seconds(6, &everybody);
        let before: Vec<[f64; 3]> = everybody.iter().map(|one| Class::ALL.map(|class| fleet.share(*one, class))).collect();
        for class in Class::ALL {
            prop_assert!(near(fleet.sum(&everybody, class), 1.0), "{}", fleet.sum(&everybody, class));
        }
        // Engines are whole, and none is left over or given twice.
        for engines in 0..9 {
            let sum: usize = fleet.gateways.iter().map(|one| one.lease(MODEL, second(fleet.now)).of_engines(engines)).sum();
            prop_assert_eq!(sum, engines);
        }
        // The same again in any order, and old ones among them.
        for index in order {
            let from = index.index(all.len());
            for to in &everybody {
                let age = index.index(3) as u64;
                let then = if age == 0 { all[from] } else { [age as f64; 3] };
                let old = report(from as u64, fleet.now - age, then);
                fleet.gateways[*to].hear(second(fleet.now), old);
            }
        }
        let after: Vec<[f64; 3]> = everybody.iter().map(|one| Class::ALL.map(|class| fleet.share(*one, class))).collect();
        prop_assert_eq!(before, after);
    }

    /// More demand is never less share, and no share is below the floor or no number.
    #[test]
    fn more_demand_is_never_less(others in prop::collection::vec(asked(), 1..6), own in asked(), more in 0.0..1e6f64) {
        let mut fleet = Fleet::new(&[vec![own], others.clone()].concat());
        let everybody: Vec<usize> = (0..=others.len()).collect();
        fleet.seconds(6, &everybody);
        let before = fleet.share(0, Class::High);
        let floor = FLOOR / everybody.len() as f64;
        prop_assert!((floor - 1e-12..=1.0).contains(&before), "{}", before);
        let others_before = fleet.share(1, Class::High);
        fleet.asked[0][0] += more;
        fleet.seconds(1, &everybody);
        prop_assert!(fleet.share(0, Class::High) >= before);
        // Of nothing and nothing an equal part is more than of nothing and something.
        let nobody_asked = own[0] == 0.0 && others.iter().all(|other| other[0] == 0.0);
        prop_assert!(nobody_asked || fleet.share(1, Class::High) <= others_before);
    }

    /// Reports are lost, gateways hear and are heard as it happens, the store goes and comes: nobody's share is ever out of bounds, and
    /// once all hear all for a lease and a second they have one together.
    #[test]
    fn whatever_is_lost_it_comes_right_when_all_hear_all(
        all in prop::collection::vec(asked(), 2..6),
        seconds in prop::collection::vec((any::<u8>(), any::<u8>()), 0..60),
    ) {
        let mut fleet = Fleet::new(&all);
        let everybody: Vec<usize> = (0..all.len()).collect();
        for (talking, hearing) in seconds {
            let of = |mask: u8| everybody.iter().copied().filter(|one| mask >> one & 1 == 1).collect::<Vec<_>>();
            fleet.second(&of(talking), &of(hearing));
            for one in &everybody {
                for class in Class::ALL {
                    prop_assert!((0.0..=1.0).contains(&fleet.share(*one, class)));
                }
            }
        }
        fleet.seconds(7, &everybody);
        for class in Class::ALL {
            prop_assert!(near(fleet.sum(&everybody, class), 1.0), "{}", fleet.sum(&everybody, class));
        }
    }

    /// Two hear each other or one is cut off, in any turn: never more than one and what the one that is cut off kept.
    #[test]
    fn a_cut_adds_no_more_than_the_last_share_of_whom_it_cuts_off(
        all in prop::collection::vec(asked(), 2..6), cut in any::<prop::sample::Index>(), seconds in 1u64..30,
    ) {
        let mut fleet = Fleet::new(&all);
        let everybody: Vec<usize> = (0..all.len()).collect();
        fleet.seconds(7, &everybody);
        let cut = cut.index(all.len());
        let kept = fleet.share(cut, Class::Low);
        let rest: Vec<usize> = everybody.iter().copied().filter(|one| *one != cut).collect();
        fleet.seconds(seconds, &rest);
        prop_assert_eq!(fleet.share(cut, Class::Low), kept);
        prop_assert!(fleet.sum(&rest, Class::Low) <= 1.0 + 1e-9);
        fleet.seconds(1, &everybody);
        prop_assert!(near(fleet.sum(&everybody, Class::Low), 1.0));
    }
}
