//! Which pool an ask means.

use crate::ask::Ask;
use crate::instance::Instance;
use crate::pool::{Pool, Pools};
use crate::roster::Roster;
use crate::verdict::PlaceError;

const WRONG_FAMILY: &str = "its engine family does not serve this endpoint";
const NO_ROUTE: &str = "does not offer this route";

/// Index of the pool.
///
/// Without a model name there must be one pool, or several names for the same instances. While no model name is known
/// at all but instances are, the model may yet turn up: that is lack of capacity, not an unknown model.
pub(super) fn pool(pools: &Pools, roster: &Roster, ask: &Ask<'_>) -> Result<usize, PlaceError> {
    match ask.model {
        Some(model) => match pools.find(model) {
            Some(found) => Ok(found),
            None if pools.is_empty() && roster.iter().next().is_some() => Err(no_pool(roster, ask)),
            None => Err(PlaceError::UnknownModel),
        },
        None => only(pools, roster, ask),
    }
}

fn only(pools: &Pools, roster: &Roster, ask: &Ask<'_>) -> Result<usize, PlaceError> {
    let meant = |pool: &Pool| -> Vec<usize> {
        let fits = |i: &Instance| misfit(i, ask).is_none();
        let mut members: Vec<usize> = pool.instances(roster).filter(|(_, i)| fits(i)).map(|(slot, _)| slot).collect();
        members.sort_unstable();
        members
    };
    let mut found: Option<(usize, Vec<usize>)> = None;
    for (index, pool) in pools.iter() {
        let members = meant(pool);
        match &found {
            _ if members.is_empty() => {}
            None => found = Some((index, members)),
            Some((_, first)) if *first == members => {}
            Some(_) => return Err(PlaceError::ModelRequired),
        }
    }
    found.map(|(index, _)| index).ok_or_else(|| no_pool(roster, ask))
}

/// Why an instance is none of those that an ask means, whatever its state; `None` when it is one.
pub(super) fn misfit(instance: &Instance, ask: &Ask<'_>) -> Option<&'static str> {
    if ask.kinds.is_some_and(|kinds| !kinds.contains(&instance.spec.kind)) {
        return Some(WRONG_FAMILY);
    }
    let role = instance.role_obstacle(ask.role);
    role.or_else(|| (!instance.spec.routes.contains(ask.route)).then_some(NO_ROUTE))
}

fn no_pool(roster: &Roster, ask: &Ask<'_>) -> PlaceError {
    let unknown = "its models are not known yet";
    let why = |i: &Instance| if i.spec.models.is_empty() { unknown } else { misfit(i, ask).unwrap_or(unknown) };
    PlaceError::NoCandidate { reasons: roster.iter().map(|i| (i.id, why(i))).collect() }
}
