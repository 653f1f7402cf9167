//! Requests before they have a place: those that admission lets wait.

use super::requests::Waits;
use super::{Answer, Event, World, precedence};
use crate::door::Guest;
use plimsoll_core::Nanos;
use plimsoll_traffic::admission::{Decision, Verdict};

impl World<'_> {
    /// Without admission everybody goes at once.
    pub(super) fn at_the_door(&mut self, mut waits: Waits) {
        let now = self.now;
        let Some(door) = &mut self.door else { return self.launch(waits) };
        let (class, best) = self.gateway.classify(now, &waits.names, waits.prompt_tokens, waits.past);
        waits.class = Some(class);
        let guest = Guest {
            number: waits.number,
            class,
            prompt_tokens: waits.prompt_tokens,
            prefill_tokens: waits.prompt_tokens.saturating_sub(best),
            most_output_tokens: waits.max_output_tokens,
            terms: &waits.terms,
            repeats: waits.asked.sending > 0,
        };
        match door.arrive(now, &mut self.gateway, &guest) {
            Verdict::Go(_) => self.launch(waits),
            Verdict::Wait => {
                self.waiting.insert(waits.number, waits);
                self.give_turns();
            }
            Verdict::Refuse(refusal) => {
                let why = refusal.rule.as_str();
                self.figures.refused(now, Some(class), why);
                self.over(waits.session, waits.asked, Answer::Refused(why));
            }
        }
    }

    /// Lets go whoever may, and sees to it that somebody looks again.
    pub(super) fn give_turns(&mut self) {
        let now = self.now;
        if self.waiting.is_empty() {
            return;
        }
        let Some(door) = &mut self.door else { return };
        for decision in door.dispatch(now, &mut self.gateway) {
            let number = decision.key().0 as u64;
            let Some(waits) = self.waiting.remove(&number) else { continue };
            match decision {
                Decision::Go { .. } => self.launch(waits),
                Decision::Refuse { refusal, .. } => {
                    let why = refusal.rule.as_str();
                    self.figures.refused(now, waits.class, why);
                    self.over(waits.session, waits.asked, Answer::Refused(why));
                }
            }
        }
        let next = self.door.as_ref().and_then(|door| door.next_look(now));
        if let Some(at) = next.filter(|at| self.looks_at.is_none_or(|before| *at < before || before <= now)) {
            // Never at this very moment again: time must pass.
            let at = at.max(now + Nanos(1));
            self.looks_at = Some(at);
            self.agenda.put(at, precedence::CALL, Event::Look);
        }
    }
}
