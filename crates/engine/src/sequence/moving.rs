//! What a migration needs of a sequence: what makes it anew elsewhere, and whether it can be moved at all.
//!
//! Prompt, output, parameters and seed decide all that follows (see [`super::Generation`]); so the other engine gets
//! those and plays the output through, which gives it the same text, the same held back bytes and the same counts.

use super::{Job, Sequence, Voice};
use crate::request::Finish;
use crate::sampling::penalties::Tally;
use crate::sampling::{SamplingParams, TokenRules};

impl Sequence {
    /// Output tokens so far.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// # Errors
    /// Says why it cannot be moved now.
    pub(crate) fn check_movable(&self) -> Result<(), &'static str> {
        match &self.job {
            Job::Embed { .. } => Err("an embedding is not moved: it has no output to go on with"),
            Job::Generate(generation)
                if self.generated() == 0
                    && generation.params.logprobs.as_ref().is_some_and(|ask| ask.prompt_from.is_some()) =>
            {
                Err("log-probabilities of the prompt are being computed: try again after the first token")
            }
            Job::Generate(_) if self.outbound.is_some() => {
                Err("a prefill leg is not moved: it ends with its first token")
            }
            Job::Generate(_) => Ok(()),
        }
    }

    /// Parameters with the seed that is in use. `None` for an embedding.
    pub(crate) fn settled_params(&self) -> Option<SamplingParams> {
        match &self.job {
            Job::Generate(generation) => {
                Some(SamplingParams { seed: Some(generation.seed), ..generation.params.clone() })
            }
            Job::Embed { .. } => None,
        }
    }

    /// Bytes of text that its reader has been given.
    pub(crate) fn visible_bytes(&self, rules: &TokenRules) -> usize {
        match &self.job {
            Job::Generate(generation) if self.voice == Voice::Ids => {
                let mut stream = rules.text.stream(generation.params.skip_special_tokens);
                self.tokens[self.prompt_len..].iter().for_each(|token| stream.push(*token));
                stream.text().len()
            }
            Job::Generate(generation) => generation.sent_bytes,
            Job::Embed { .. } => 0,
        }
    }

    /// Takes over a token that another engine has generated. A finish means that the two engines do not agree: the
    /// request would have ended there.
    pub(crate) fn replay(&mut self, token: u32, rules: &TokenRules) -> Option<Finish> {
        let finish = self.push(token, None, rules, None, None);
        self.mailbox.ring();
        if let Job::Generate(generation) = &mut self.job
            && Tally::needed(&generation.params)
        {
            // Now and not in the first step after the move.
            generation.tally.read(&self.tokens, self.prompt_len);
        }
        finish
    }
}
