//! Whether an instance is meant at all, as one word: a choice asks it of a thousand instances, and three comparisons
//! in three places of memory would cost more than all of a candidate's arithmetic.

use crate::routes::RouteSet;
use plimsoll_core::LegRole;

/// What an instance offers, or what an ask wants. [`RouteSet`] lies in the low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate(u8);

const IN_SERVICE: u8 = 1 << 7;

impl Gate {
    pub(crate) const fn offered(role: LegRole, routes: RouteSet, in_service: bool) -> Gate {
        Gate(role_bit(role) | routes.bits() | if in_service { IN_SERVICE } else { 0 })
    }

    /// An instance in service with the role and the route.
    pub(crate) const fn asked(role: LegRole, route: RouteSet) -> Gate {
        Gate::offered(role, route, true)
    }

    #[inline]
    pub(crate) const fn lets(self, asked: Gate) -> bool {
        self.0 & asked.0 == asked.0
    }
}

const fn role_bit(role: LegRole) -> u8 {
    match role {
        LegRole::Unified => 1 << 4,
        LegRole::Prefill => 1 << 5,
        LegRole::Decode => 1 << 6,
    }
}
