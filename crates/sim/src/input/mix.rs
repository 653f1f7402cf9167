//! Several traces at once: each at its own rate, all in order of time.
//!
//! A fleet serves chats and agents together, and nobody has recorded just that mixture. Blocks of different traces are different, whatever
//! their ids; where they are of different sizes, the larger ones are cut, which shares exactly as much as before.

use super::Input;
use plimsoll_core::Nanos;
use plimsoll_workload::{Prompt, Run, Session, Tail};
use std::cell::Cell;
use std::rc::Rc;

/// Ids of one trace are below this; those of the next ones lie above.
const IDS: u64 = 1 << 48;

/// Most traces that can be told apart.
pub const MOST_TRACES: usize = 256;

/// Traces merged by the times of their sessions.
pub struct Mix {
    inputs: Vec<(Input, Option<Session>)>,
    block_tokens: u64,
    left: u64,
    begun: bool,
}

impl Mix {
    /// `limit`: sessions in all.
    #[must_use]
    pub fn new(inputs: Vec<Input>, limit: Option<u64>) -> Mix {
        let block_tokens = inputs.iter().map(Input::block_tokens).fold(0, gcd).max(1);
        let inputs = inputs.into_iter().map(|input| (input, None)).collect();
        Mix { inputs, block_tokens, left: limit.unwrap_or(u64::MAX), begun: false }
    }

    /// Tokens of the blocks of all of them.
    #[must_use]
    pub fn block_tokens(&self) -> u64 {
        self.block_tokens
    }

    /// Rows passed over, by trace; grow while it is read.
    #[must_use]
    pub fn skipped(&self) -> Vec<Rc<Cell<u64>>> {
        self.inputs.iter().map(|(input, _)| input.skipped()).collect()
    }
}

impl Iterator for Mix {
    type Item = Result<Session, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if !std::mem::replace(&mut self.begun, true) {
            for (input, next) in &mut self.inputs {
                *next = match input.next().transpose() {
                    Ok(next) => next,
                    Err(error) => {
                        self.left = 0;
                        return Some(Err(error));
                    }
                };
            }
        }
        self.left = self.left.checked_sub(1)?;
        let start = |next: &Option<Session>| next.as_ref().map(|session| session.start);
        let starts = self.inputs.iter().enumerate().filter_map(|(nth, (_, next))| Some((start(next)?, nth)));
        let (_, nth): (Nanos, usize) = starts.min()?;
        let (input, next) = &mut self.inputs[nth];
        let session = match input.next().transpose() {
            Ok(after) => std::mem::replace(next, after)?,
            Err(error) => {
                self.left = 0;
                return Some(Err(error));
            }
        };
        Some(Ok(own(session, nth as u64, self.block_tokens)))
    }
}

/// A session with ids that no other trace has, in blocks of `block_tokens`.
fn own(mut session: Session, nth: u64, block_tokens: u64) -> Session {
    for call in &mut session.calls {
        let Prompt { block_tokens: before, runs, tail } = &mut call.prompt;
        let parts = (*before / block_tokens).max(1);
        // Ids beyond the bound would be another trace's; folded, they stay this one's.
        let id = |id: u64| nth * IDS + (id % (IDS / parts)) * parts;
        for run in runs.iter_mut() {
            *run = Run { first: id(run.first), len: run.len * parts };
        }
        if let Some(Tail { id: last, tokens }) = *tail {
            let (full, rest) = (tokens / block_tokens, tokens % block_tokens);
            if full > 0 {
                runs.push(Run { first: id(last), len: full });
            }
            *tail = (rest > 0).then(|| Tail { id: id(last) + full, tokens: rest });
        }
        *before = block_tokens;
    }
    session
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::InputOptions;

    fn input(content: &str, rate: f64) -> Input {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        Input::open(file.path(), InputOptions { rate, ..InputOptions::default() }).unwrap()
    }

    const CHATS: &str = "{\"timestamp\":0,\"input_length\":1100,\"output_length\":5,\"hash_ids\":[0,1,2]}\n\
                         {\"timestamp\":4000,\"input_length\":1536,\"output_length\":5,\"hash_ids\":[0,1,2]}\n";
    const LOG: &str = "t_s,input_tokens,output_tokens\n1,130,7\n2,64,7\n9,64,7\n";

    #[test]
    fn traces_come_in_order_of_time_each_at_its_rate() {
        let mix = Mix::new(vec![input(CHATS, 1.0), input(LOG, 2.0)], None);
        let sessions: Vec<Session> = mix.map(Result::unwrap).collect();
        let seen: Vec<(u64, u64)> =
            sessions.iter().map(|one| (one.start.0 / 1_000_000, one.calls[0].prompt.tokens())).collect();
        assert_eq!(seen, [(0, 1_100), (0, 130), (500, 64), (4_000, 1_536), (4_000, 64)]);
        let first = Mix::new(vec![input(CHATS, 1.0), input(LOG, 2.0)], Some(3));
        assert_eq!(first.map(Result::unwrap).collect::<Vec<_>>(), sessions[..3]);
    }

    #[test]
    fn blocks_are_cut_to_one_size_and_shared_as_before() {
        let mix = Mix::new(vec![input(CHATS, 1.0), input(LOG, 1.0)], None);
        assert_eq!(mix.block_tokens(), 64);
        let sessions: Vec<Session> = mix.map(Result::unwrap).collect();
        let prompts: Vec<&Prompt> = sessions.iter().map(|one| &one.calls[0].prompt).collect();
        let chats: Vec<&&Prompt> = prompts.iter().filter(|prompt| prompt.tokens() > 1_000).collect();
        // 1,100 tokens of which the last 76 are the head of the block that the other has whole.
        assert_eq!(chats[0].common_blocks(chats[1]), 17);
        let logs: Vec<&&Prompt> = prompts.iter().filter(|prompt| prompt.tokens() < 1_000).collect();
        assert!(logs.iter().all(|log| chats.iter().all(|chat| log.common_blocks(chat) == 0)));
    }

    #[test]
    fn an_error_of_one_ends_all() {
        let broken = "t_s,input_tokens,output_tokens\n1,130,7\nx,64,7\n9,64,7\n";
        let mut mix = Mix::new(vec![input(CHATS, 1.0), input(broken, 1.0)], None);
        let seen: Vec<bool> = mix.by_ref().map(|one| one.is_ok()).collect();
        assert_eq!(seen, [true, false]);
    }
}
