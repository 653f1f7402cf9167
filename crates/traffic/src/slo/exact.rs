//! The largest set round work that stands fixed.
//!
//! Moore's rule drops one request for each that is late. With fixed work between the promised ones two long ones may have to leave at
//! once for several short ones behind it, and a rule that looks at one does not see that. So where something stands fixed and the rule
//! dropped anybody, the set is found by dynamic programming, as for late jobs with weights (E. Lawler, J. M. Moore, "A functional equation and its
//! application to resource allocation and sequencing problems", Management Science 16(1), 1969): the least work with which each number of
//! requests can be kept, request by request in deadline order. O(n^2), so for at most [`MOST`] of them:
//! admission looks under its lock every few milliseconds while it is overloaded.

use super::{Job, Serving, Standing};

/// Beyond so many promised requests the rule's answer stands: in time, and perhaps fewer than could be.
pub(super) const MOST: usize = 64;

/// Which of the jobs, in deadline order, are kept. `duties` as in the rule.
pub(super) fn largest<K>(order: &[&Job<K>], duties: &[bool], pool: &impl Serving) -> Vec<bool> {
    let promised = order.iter().filter(|job| job.standing == Standing::Promised).count();
    // Least work of promised requests with which `k` of them are kept, by `k`.
    let mut least: Vec<Option<u128>> = vec![None; promised + 1];
    least[0] = Some(0);
    let words = promised / 64 + 1;
    // Bit `k` of row `i`: job `i` is the one that makes it `k`.
    let mut taken = vec![0u64; words * order.len()];
    let mut fixed = 0u128;
    let mut seen = 0;
    for (index, job) in order.iter().enumerate() {
        let service = u128::from(job.service.0);
        let in_time = |work: u128| pool.finish(work, job.service) <= job.deadline;
        if job.standing != Standing::Promised {
            fixed += service;
            if duties[index] {
                for work in &mut least[..=seen] {
                    *work = work.filter(|work| in_time(work + fixed));
                }
            }
            continue;
        }
        for k in (0..=seen).rev() {
            let Some(work) = least[k].map(|work| work + service).filter(|work| in_time(work + fixed)) else { continue };
            if least[k + 1].is_none_or(|other| work < other) {
                least[k + 1] = Some(work);
                taken[index * words + (k + 1) / 64] |= 1 << ((k + 1) % 64);
            }
        }
        seen += 1;
    }
    // With nobody promised every duty is met, so there is always an answer.
    let mut k = least.iter().rposition(Option::is_some).unwrap_or(0);
    let mut kept: Vec<bool> = order.iter().map(|job| job.standing != Standing::Promised).collect();
    for index in (0..order.len()).rev() {
        if taken[index * words + k / 64] >> (k % 64) & 1 == 1 {
            kept[index] = true;
            k -= 1;
        }
    }
    kept
}
