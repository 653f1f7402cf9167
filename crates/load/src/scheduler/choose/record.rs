//! The candidates that go into the decision record.

use crate::place::Candidate;
use smallvec::SmallVec;

/// Most candidates ever recorded, whatever the settings say.
const MAX_RECORDED: usize = 64;

/// The best `limit` candidates by tier, then score; the chosen one always among them. The first `best_tier` are of
/// the best tier, so the others matter only where those are too few.
pub(super) fn best(all: &[Candidate], best_tier: usize, chosen: usize, limit: usize) -> SmallVec<[usize; 16]> {
    let limit = limit.min(MAX_RECORDED).min(all.len());
    let mut best = SmallVec::new();
    if limit == 0 {
        return best;
    }
    let within = if best_tier < limit { all.len() } else { best_tier };
    let mut worst_s = f64::INFINITY;
    for (index, candidate) in all[..within].iter().enumerate() {
        if best.len() == limit {
            // Beyond the first tier only where the record has room, so a full record compares scores alone.
            if index < best_tier && candidate.score_s >= worst_s {
                continue;
            }
            if !before(all, index, best[limit - 1]) {
                continue;
            }
            best.pop();
        }
        let at = best.iter().position(|&held| before(all, index, held)).unwrap_or(best.len());
        best.insert(at, index);
        if best.len() == limit {
            worst_s = all[best[limit - 1]].score_s;
        }
    }
    if !best.contains(&chosen) {
        best.pop();
        best.push(chosen);
    }
    best
}

fn before(all: &[Candidate], a: usize, b: usize) -> bool {
    let (a, b) = (&all[a], &all[b]);
    a.tier.cmp(&b.tier).then(a.score_s.total_cmp(&b.score_s)).is_lt()
}
