use super::*;
use crate::faults::Faults;

fn fates(disorder: &mut Disorder, count: usize) -> Vec<(Fate, u64)> {
    let mut number = 10;
    (0..count)
        .map(|_| {
            let fate = disorder.next(&mut number);
            number += 1;
            (fate, number - 1)
        })
        .collect()
}

#[test]
fn every_nth_batch_is_dropped_in_its_way() {
    let switch = FaultSwitch::default();
    let mut disorder = Disorder::new(switch.clone());
    assert_eq!(fates(&mut disorder, 2), [(Fate::Sent, 10), (Fate::Sent, 11)]);
    for (mode, fate) in [(DropMode::Live, Fate::Kept), (DropMode::Lost, Fate::Lost), (DropMode::Silent, Fate::Unheard)]
    {
        switch.set(Faults { drop_events: Some(DropEvents { every: 3, mode }), ..Faults::default() });
        let got: Vec<Fate> = fates(&mut disorder, 6).into_iter().map(|pair| pair.0).collect();
        assert_eq!(got, [Fate::Sent, Fate::Sent, fate, Fate::Sent, Fate::Sent, fate]);
        switch.set(Faults::default());
        fates(&mut disorder, 1);
    }
}

#[test]
fn a_wrong_number_comes_once() {
    let switch = FaultSwitch::default();
    let mut disorder = Disorder::new(switch.clone());
    let wrong = |wrong_seq| Faults { wrong_seq, ..Faults::default() };
    switch.set(wrong(Some(WrongSeq::Reset)));
    assert_eq!(fates(&mut disorder, 2), [(Fate::Sent, 0), (Fate::Sent, 1)]);
    assert_eq!(fates(&mut disorder, 1), [(Fate::Sent, 10)]);
    switch.set(wrong(Some(WrongSeq::Jump(5))));
    assert_eq!(fates(&mut disorder, 2), [(Fate::Sent, 15), (Fate::Sent, 16)]);
    switch.set(wrong(None));
    assert_eq!(fates(&mut disorder, 1), [(Fate::Sent, 10)]);
    switch.set(wrong(Some(WrongSeq::Jump(-20))));
    assert_eq!(fates(&mut disorder, 1), [(Fate::Sent, 0)]);
}
