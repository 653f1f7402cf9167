//! What is said to wait for prefill is what will have to be computed.

use super::*;
use crate::scheduler::policy::{Order, SchedulePolicy};
use crate::stats::RecentHits;

/// A prompt of 100 tokens waits that was served before, twice; says how many tokens wait, and how many of them are not
/// cached.
fn waiting(policy: SchedulePolicy) -> (usize, usize) {
    let config = EngineConfig { order: Order { policy, ..Order::default() }, ..config(64, 1, 64) };
    let mut core = Core::new(&config);
    let rids = RidSet::default();
    let prompt: Vec<u32> = (300..400).collect();
    let submit = |core: &mut Core, name, prompt: &[u32], new| {
        let (sequence, mailbox) = sequence(&config, &rids, name, Task::Generate(params(new)), prompt);
        core.submit(sequence);
        mailbox
    };
    for name in 0..2 {
        let _mailbox = submit(&mut core, name, &prompt, 1);
        while !core.is_idle() {
            core.step();
        }
    }
    let running = submit(&mut core, 2, &prompt[50..70], 30);
    core.step();
    let waits = submit(&mut core, 3, &prompt, 1);
    assert_eq!((core.stats.running, core.stats.waiting), (1, 1));
    let counted = (core.stats.waiting_tokens, core.stats.waiting_uncached_tokens);
    while !core.is_idle() {
        core.step();
    }
    assert_eq!((core.stats.waiting_tokens, core.stats.waiting_uncached_tokens), (0, 0));
    assert_eq!(taken(&waits).cached_tokens, 96);
    drop(running);
    counted
}

#[test]
fn what_is_cached_does_not_wait_to_be_computed() {
    // Six full pages of it are cached, and that was looked up.
    assert_eq!(waiting(SchedulePolicy::Slo), (100, 4));
    // Here nothing was looked up: as many as lately.
    let mut recent = RecentHits::default();
    assert_eq!(recent.miss_rate(), 1.0, "nothing is known");
    [(100, 0), (100, 96), (20, 0)].iter().for_each(|(prompt, cached)| recent.observe(*prompt, *cached));
    let share = (100.0 * recent.miss_rate()).ceil() as usize;
    assert!((50..65).contains(&share), "{share}");
    assert_eq!(waiting(SchedulePolicy::Fcfs), (100, share));
    assert_eq!(waiting(SchedulePolicy::Priority), (100, share));
}
