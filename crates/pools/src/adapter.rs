//! What each family of engines needs on the way out, as data.
//!
//! The gateway forwards bodies byte for byte but for the keys named here. It replaces those even where the client set
//! them: SGLang aborts by rid *prefix*, so a client's own rid could take other requests with it.

use crate::capability::Capability;
use crate::chunk::StreamDialect;
use plimsoll_core::EngineKind;

/// A route that the gateway offers and engines may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    ChatCompletions,
    Completions,
    Embeddings,
    /// SGLang's own.
    Generate,
}

impl Route {
    pub const ALL: [Route; 4] = [Route::ChatCompletions, Route::Completions, Route::Embeddings, Route::Generate];

    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Route::ChatCompletions => "/v1/chat/completions",
            Route::Completions => "/v1/completions",
            Route::Embeddings => "/v1/embeddings",
            Route::Generate => "/generate",
        }
    }

    /// How its answers and streams are read.
    #[must_use]
    pub const fn dialect(self) -> StreamDialect {
        match self {
            Route::Generate => StreamDialect::SglangNative,
            Route::ChatCompletions | Route::Completions | Route::Embeddings => StreamDialect::Openai,
        }
    }
}

/// One family's needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapter {
    pub kind: EngineKind,
    /// Body key that carries our request id (a string; see [`child_rids`] for batches). `None`: the body stays as it is.
    pub id_key: Option<&'static str>,
    /// Header that carries our request id. Lower case.
    pub id_header: &'static str,
    /// Header that pins a DP rank. Lower case. `None`: the family has no such thing.
    pub rank_header: Option<&'static str>,
    /// Body key that pins a DP rank on `/generate`, newest name first; old releases know only the last.
    pub rank_keys: &'static [&'static str],
    pub routes: &'static [Route],
}

const SGLANG: Adapter = Adapter {
    kind: EngineKind::Sglang,
    id_key: Some("rid"),
    id_header: "x-request-id",
    rank_header: Some("x-data-parallel-rank"),
    rank_keys: &["routed_dp_rank", "data_parallel_rank"],
    routes: &[Route::ChatCompletions, Route::Completions, Route::Embeddings, Route::Generate],
};

/// vLLM takes the id from the header before the body's `request_id`, so the body need not be touched.
const VLLM: Adapter = Adapter {
    kind: EngineKind::Vllm,
    id_key: None,
    id_header: "x-request-id",
    rank_header: Some("x-data-parallel-rank"),
    rank_keys: &[],
    routes: &[Route::ChatCompletions, Route::Completions, Route::Embeddings],
};

const OPENAI: Adapter = Adapter {
    kind: EngineKind::Openai,
    id_key: None,
    id_header: "x-request-id",
    rank_header: None,
    rank_keys: &[],
    routes: &[Route::ChatCompletions, Route::Completions, Route::Embeddings],
};

/// The adapter of a family.
#[must_use]
pub const fn adapter(kind: EngineKind) -> &'static Adapter {
    match kind {
        EngineKind::Sglang => &SGLANG,
        EngineKind::Vllm => &VLLM,
        EngineKind::Openai => &OPENAI,
    }
}

impl Adapter {
    /// Does an engine of this family serve the route? Where the engine lists its paths, they decide.
    #[must_use]
    pub fn serves(&self, route: Route, capability: Option<&Capability>) -> bool {
        let listed = capability.and_then(|c| c.routes.as_ref());
        self.routes.contains(&route) && listed.is_none_or(|paths| paths.iter().any(|p| p == route.path()))
    }
}

/// The rids under which SGLang runs a request sent with `rid`: `{rid}_{i}` for each of several prompts or samples, the
/// rid itself for one.
#[must_use]
pub fn child_rids(rid: &str, children: usize) -> Vec<String> {
    match children {
        0 | 1 => vec![rid.to_owned()],
        n => (0..n).map(|i| format!("{rid}_{i}")).collect(),
    }
}

#[cfg(test)]
mod tests;
