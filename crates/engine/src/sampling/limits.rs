//! What a request may ask for at the most, whichever way it comes: over HTTP, where each field is refused by name, or
//! with a migration, where the other engine has let it through and is not believed.

use super::SamplingParams;
use super::logprobs::LogprobAsk;

/// Stop strings per request, and bytes of each: what is held back from a stream stays small.
pub(crate) const MAX_STOPS: usize = 16;
pub(crate) const MAX_STOP_BYTES: usize = 1024;
pub(crate) const MAX_STOP_IDS: usize = 64;
pub(crate) const MAX_BIASES: usize = 1024;
/// Ids per position whose log-probabilities a request may ask for: so many of the most likely, and so many of its own.
pub(crate) const MAX_LOGPROB_IDS: usize = 1024;
/// Log-probabilities of all answers to one body together: some 100 bytes each until they are sent.
pub(crate) const MAX_LOGPROBS: usize = 1 << 20;

impl SamplingParams {
    /// Log-probabilities that it may report.
    pub(crate) fn most_logprobs(&self, prompt_tokens: usize) -> usize {
        let Some(LogprobAsk { top, ids, prompt_from }) = &self.logprobs else { return 0 };
        let prompt = prompt_from.map_or(0, |from| prompt_tokens.saturating_sub(from));
        let positions = prompt.saturating_add(self.max_new_tokens);
        top.saturating_add(ids.len()).saturating_add(1).saturating_mul(positions)
    }

    /// # Errors
    /// Names what no face of an engine lets through, for a prompt behind which the context has room for so many tokens.
    pub(crate) fn check(&self, prompt_tokens: usize, room: usize, vocab_tokens: usize) -> Result<(), &'static str> {
        let known = |id: u32| (id as usize) < vocab_tokens;
        let stop_fits = |stop: &String| (1..=MAX_STOP_BYTES).contains(&stop.len());
        let bias_fits = |(id, bias): &(u32, f32)| known(*id) && (-100.0..=100.0).contains(bias);
        let logprobs_fit = self.logprobs.as_ref().is_none_or(|ask| {
            ask.top <= MAX_LOGPROB_IDS
                && ask.ids.len() <= MAX_LOGPROB_IDS
                && ask.ids.iter().all(|id| known(*id))
                && ask.prompt_from.is_none_or(|from| from < prompt_tokens)
        });
        let rules = [
            ("max_new_tokens", (1..=room).contains(&self.max_new_tokens)),
            ("min_new_tokens", self.min_new_tokens <= self.max_new_tokens),
            ("temperature", (0.0..=100.0).contains(&self.temperature)),
            ("top_p", self.top_p > 0.0 && self.top_p <= 1.0),
            ("top_k", self.top_k != Some(0)),
            ("min_p", (0.0..=1.0).contains(&self.min_p)),
            ("presence_penalty", (-2.0..=2.0).contains(&self.presence_penalty)),
            ("frequency_penalty", (-2.0..=2.0).contains(&self.frequency_penalty)),
            ("repetition_penalty", self.repetition_penalty > 0.0 && self.repetition_penalty <= 2.0),
            ("logit_bias", self.logit_bias.len() <= MAX_BIASES && self.logit_bias.iter().all(bias_fits)),
            ("stop", self.stop.len() <= MAX_STOPS && self.stop.iter().all(stop_fits)),
            (
                "stop_token_ids",
                self.stop_token_ids.len() <= MAX_STOP_IDS && self.stop_token_ids.iter().all(|id| known(*id)),
            ),
            ("logprobs", logprobs_fit && self.most_logprobs(prompt_tokens) <= MAX_LOGPROBS),
        ];
        rules.into_iter().find(|(_, fits)| !fits).map_or(Ok(()), |(name, _)| Err(name))
    }
}
