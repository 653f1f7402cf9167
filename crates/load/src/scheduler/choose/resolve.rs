//! Which pool an ask means.

use crate::instance::Instance;
use crate::pool::{Pool, Pools};
use crate::verdict::PlaceError;
use plimsoll_core::EngineKind;

pub(super) const WRONG_FAMILY: &str = "its engine family does not serve this endpoint";

/// Index of the pool.
///
/// Without a model name there must be one pool, or several names for the same instances. While no model name is known
/// at all but instances are, the model may yet turn up: that is lack of capacity, not an unknown model.
pub(super) fn pool(
    pools: &Pools,
    slots: &[Option<Instance>],
    model: Option<&str>,
    kinds: Option<&[EngineKind]>,
) -> Result<usize, PlaceError> {
    match model {
        Some(model) => match pools.find(model) {
            Some(found) => Ok(found),
            None if pools.is_empty() && slots.iter().any(Option::is_some) => Err(no_pool(slots)),
            None => Err(PlaceError::UnknownModel),
        },
        None => only(pools, slots, kinds),
    }
}

fn only(pools: &Pools, slots: &[Option<Instance>], kinds: Option<&[EngineKind]>) -> Result<usize, PlaceError> {
    let of_kind = |pool: &Pool| -> Vec<usize> {
        let fits = |i: &Instance| kinds.is_none_or(|kinds| kinds.contains(&i.spec.kind));
        let mut members: Vec<usize> = pool.instances(slots).filter(|(_, i)| fits(i)).map(|(slot, _)| slot).collect();
        members.sort_unstable();
        members
    };
    let mut found: Option<(usize, Vec<usize>)> = None;
    for (index, pool) in pools.iter() {
        let members = of_kind(pool);
        match &found {
            _ if members.is_empty() => {}
            None => found = Some((index, members)),
            Some((_, first)) if *first == members => {}
            Some(_) => return Err(PlaceError::ModelRequired),
        }
    }
    found.map(|(index, _)| index).ok_or_else(|| no_pool(slots))
}

fn no_pool(slots: &[Option<Instance>]) -> PlaceError {
    let why = |i: &Instance| if i.spec.models.is_empty() { "its models are not known yet" } else { WRONG_FAMILY };
    PlaceError::NoCandidate { reasons: slots.iter().flatten().map(|i| (i.id, why(i))).collect() }
}
