//! The columns of logs, under all the names that they are known by.
//!
//! Public traces and engines' own logs say the same under different names; which ones are read is documented from this table.

/// What a column is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// When the request arrived.
    Time,
    Input,
    Output,
    /// Requests of one session go each other on.
    Session,
    /// Names the request.
    Id,
    /// Most output tokens that the client asked for.
    Most,
}

impl Column {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Column::Time => "time",
            Column::Input => "input tokens",
            Column::Output => "output tokens",
            Column::Session => "session",
            Column::Id => "id",
            Column::Most => "most output tokens asked for",
        }
    }
}

/// Name, what it is, and for times the nanoseconds in one (dates are told by their form). Dots go into JSON objects.
pub const COLUMNS: &[(&str, Column, f64)] = &[
    // Azure's LLM inference traces.
    ("TIMESTAMP", Column::Time, 1e9),
    ("ContextTokens", Column::Input, 0.0),
    ("GeneratedTokens", Column::Output, 0.0),
    // ServeGen and ShareGPT samples of `shared/traces`; this program's own form.
    ("t_s", Column::Time, 1e9),
    ("input_tokens", Column::Input, 0.0),
    ("output_tokens", Column::Output, 0.0),
    // Vidur.
    ("arrived_at", Column::Time, 1e9),
    ("num_prefill_tokens", Column::Input, 0.0),
    ("num_decode_tokens", Column::Output, 0.0),
    // OpenAI's usage, as access logs of gateways have it.
    ("prompt_tokens", Column::Input, 0.0),
    ("completion_tokens", Column::Output, 0.0),
    ("usage.prompt_tokens", Column::Input, 0.0),
    ("usage.completion_tokens", Column::Output, 0.0),
    // SGLang's request log.
    ("out.meta_info.prompt_tokens", Column::Input, 0.0),
    ("out.meta_info.completion_tokens", Column::Output, 0.0),
    ("rid", Column::Id, 0.0),
    // vLLM's benchmark and request records.
    ("arrival_time", Column::Time, 1e9),
    ("input_toks", Column::Input, 0.0),
    ("output_toks", Column::Output, 0.0),
    ("request_id", Column::Id, 0.0),
    // This program's decision log.
    ("reported_prompt_tokens", Column::Input, 0.0),
    ("arrival_unix_ms", Column::Time, 1e6),
    ("id", Column::Id, 0.0),
    // Mooncake's, and common.
    ("timestamp_ms", Column::Time, 1e6),
    ("timestamp", Column::Time, 1e9),
    ("time", Column::Time, 1e9),
    ("input_length", Column::Input, 0.0),
    ("output_length", Column::Output, 0.0),
    ("session_id", Column::Session, 0.0),
    ("session", Column::Session, 0.0),
    ("conversation_id", Column::Session, 0.0),
    // What a client asks for, by the API: OpenAI's two, SGLang's own, and as its request log has it.
    ("max_tokens", Column::Most, 0.0),
    ("max_completion_tokens", Column::Most, 0.0),
    ("max_new_tokens", Column::Most, 0.0),
    ("sampling_params.max_new_tokens", Column::Most, 0.0),
    ("obj.sampling_params.max_new_tokens", Column::Most, 0.0),
];

/// What a name stands for, whatever its case.
pub(super) fn known(name: &str) -> Option<(Column, f64)> {
    COLUMNS.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name)).map(|(_, column, unit)| (*column, *unit))
}

/// All names of a column, for a complaint.
pub(super) fn names(column: Column) -> String {
    let names = COLUMNS.iter().filter(|(_, known, _)| *known == column).map(|(name, ..)| *name);
    names.collect::<Vec<_>>().join(", ")
}
