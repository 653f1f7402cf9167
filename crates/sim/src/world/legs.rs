//! Prefill and decode apart: the prompt is computed here, its KV goes over the network, the answer is generated there.

use super::requests::{Stage, request};
use super::{Event, World, precedence};
use crate::engine::{Job, Key};
use crate::gateway::Wanted;
use crate::step_time::FS_PER_NS;
use plimsoll_core::{LegRole, Nanos, Target};
use plimsoll_load::AttemptEnd;

impl World<'_> {
    /// The prompt is computed and its first token is out: another engine takes it over.
    pub(super) fn hand_over(&mut self, key: Key) {
        let now = self.now;
        let Some(request) = request(&mut self.requests, key) else { return };
        let from = request.open.target;
        let names = request.open.names().to_vec();
        let wanted = Wanted {
            role: LegRole::Decode,
            leg: 1,
            attempt: request.attempt,
            // All of it comes with it; nothing has to be computed.
            computed: true,
            max_output_tokens: request.max_output_tokens,
            past: request.past,
            ..Wanted::new(request.number, &names, request.prompt_tokens)
        };
        let placed = self.gateway.place(now, &wanted);
        let cached_tokens = request.cached_tokens;
        let tokens = request.prompt_tokens;
        match placed {
            Ok(open) => {
                let prefill = std::mem::replace(&mut request.open, open);
                (request.stage, request.generated) = (Stage::Decode, 1);
                self.gateway.completed(now, &prefill, cached_tokens, None);
                let at = self.over_network(from, tokens);
                self.agenda.put(at, precedence::HANDED, Event::Handed { key });
            }
            Err(_) => self.broken(key, AttemptEnd::Ok),
        }
    }

    /// When the KV of so many tokens has left an engine, behind what it sends already.
    pub(super) fn over_network(&mut self, from: Target, tokens: u64) -> Nanos {
        let network = self.fleet.network;
        let bytes = tokens as f64 * self.fleet.kv_bytes_token;
        let link = &mut self.engines[from.instance.0 as usize].link;
        let done = link.done(u128::from(self.now.0) * FS_PER_NS, bytes, &network);
        link.take(done);
        Nanos(u64::try_from(done.div_ceil(FS_PER_NS)).unwrap_or(u64::MAX))
    }

    /// The KV is there.
    pub(super) fn handed(&mut self, key: Key) {
        let now = self.now;
        let Some(request) = request(&mut self.requests, key) else { return };
        self.gateway.first_token(now, &request.open);
        let names = request.open.names().to_vec();
        let to = request.open.target.instance;
        let job = Job::handed_over(key, names, request.prompt_tokens, request.output_tokens, request.generated);
        if !self.engines[to.0 as usize].up {
            return self.broken(key, AttemptEnd::ConnectFailed);
        }
        self.submit(key, job);
    }
}
