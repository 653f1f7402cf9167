//! Which endpoints an engine offers, small enough to be compared for every candidate.
//!
//! Engines of one model differ: an embedding server has no chat endpoint, `/generate` is SGLang's own, and a release may
//! drop a path. Sending a request where it can only get a 404 wastes an attempt, so the choice filters.

use std::ops::BitOr;

/// A set of the gateway's generation routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteSet(u8);

impl RouteSet {
    /// In an ask: do not filter.
    pub const NONE: RouteSet = RouteSet(0);
    /// `/v1/chat/completions`
    pub const CHAT: RouteSet = RouteSet(1);
    /// `/v1/completions`
    pub const COMPLETIONS: RouteSet = RouteSet(2);
    /// `/v1/embeddings`
    pub const EMBEDDINGS: RouteSet = RouteSet(4);
    /// `/generate`
    pub const GENERATE: RouteSet = RouteSet(8);
    /// Also what an engine is taken to offer that does not list its routes.
    pub const ALL: RouteSet = RouteSet(15);

    /// The route of a path. Any other path is in no set: [`RouteSet::NONE`].
    #[must_use]
    pub fn of_path(path: &str) -> RouteSet {
        match path {
            "/v1/chat/completions" => RouteSet::CHAT,
            "/v1/completions" => RouteSet::COMPLETIONS,
            "/v1/embeddings" => RouteSet::EMBEDDINGS,
            "/generate" => RouteSet::GENERATE,
            _ => RouteSet::NONE,
        }
    }

    /// The routes among the paths that an engine lists; other paths do not matter.
    #[must_use]
    pub fn of_paths<'a>(paths: impl IntoIterator<Item = &'a str>) -> RouteSet {
        paths.into_iter().map(RouteSet::of_path).fold(RouteSet::NONE, RouteSet::bitor)
    }

    /// In the low four bits.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// Everything in `asked` is in here. [`RouteSet::NONE`] is in every set.
    #[must_use]
    #[inline]
    pub const fn contains(self, asked: RouteSet) -> bool {
        self.0 & asked.0 == asked.0
    }
}

impl BitOr for RouteSet {
    type Output = RouteSet;

    fn bitor(self, other: RouteSet) -> RouteSet {
        RouteSet(self.0 | other.0)
    }
}
