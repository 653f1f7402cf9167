//! The heart: whatever happens around a request, its greedy answer is the answer it gets alone.

use super::*;
use crate::mailbox::Mailbox;
use crate::model::ModelConfig;
use crate::refusal::Refusal;
use crate::request::{Finish, Request, Task};
use crate::sampling::SamplingParams;
use crate::sequence::{RidGuard, RidSet};
use proptest::prelude::*;
use std::sync::Arc;

pub(crate) mod legs;
mod offload;
mod sampled;
mod schedules;
mod waiting;

pub(crate) fn config(kv_pages: usize, max_running: usize, token_budget: usize) -> EngineConfig {
    EngineConfig {
        model: ModelConfig {
            layers: 2,
            hidden: 32,
            heads: 2,
            kv_heads: 1,
            ffn: 32,
            context_tokens: 512,
            seed: 5,
            ..ModelConfig::default()
        },
        kv_tokens: kv_pages * 16,
        max_running,
        token_budget,
        context_tokens: 512,
        ..EngineConfig::default()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_new_tokens: usize,
    /// Step at which it arrives.
    pub(crate) at: usize,
    /// Step at which its reader leaves.
    pub(crate) leaves: Option<usize>,
}

pub(crate) fn params(max_new_tokens: usize) -> SamplingParams {
    SamplingParams { max_new_tokens, temperature: 0.0, ..SamplingParams::default() }
}

pub(crate) fn sequence(
    core_config: &EngineConfig,
    rids: &RidSet,
    name: usize,
    task: Task,
    prompt: &[u32],
) -> (Sequence, Arc<Mailbox>) {
    let mailbox = Arc::new(Mailbox::default());
    let rid = format!("r{name}");
    let guard = RidGuard::take(&rid, rids).unwrap();
    let request = Request::new(rid, prompt.to_vec(), task);
    (Sequence::new(request, guard, Arc::clone(&mailbox), core_config.page_tokens, Instant::now()), mailbox)
}

/// What a reader does that goes away.
fn leave(mailbox: &Arc<Mailbox>) {
    drop(Ticket::bare(Arc::clone(mailbox)));
}

pub(crate) fn taken(mailbox: &Arc<Mailbox>) -> Update {
    let mut ticket = Ticket::bare(Arc::clone(mailbox));
    // The finish is there: the future is ready at once.
    futures_util::FutureExt::now_or_never(ticket.next()).flatten().unwrap_or_default()
}

use crate::mailbox::{Ticket, Update};

/// Runs all asks in one engine. Returns the answers of those that stayed, and the engine.
fn together(config: &EngineConfig, asks: &[Ask]) -> (Vec<Option<Vec<u32>>>, Core) {
    let mut core = Core::new(config);
    let rids = RidSet::default();
    let mut boxes: Vec<Option<Arc<Mailbox>>> = vec![None; asks.len()];
    for step in 0..20_000 {
        for (index, ask) in asks.iter().enumerate() {
            if ask.at == step {
                let (sequence, mailbox) =
                    sequence(config, &rids, index, Task::Generate(params(ask.max_new_tokens)), &ask.prompt);
                core.submit(sequence);
                boxes[index] = Some(mailbox);
            }
            if ask.leaves == Some(step)
                && let Some(mailbox) = &boxes[index]
            {
                leave(mailbox);
            }
        }
        core.step();
        core.scheduler.check().unwrap();
        if core.scheduler.is_idle() && asks.iter().all(|ask| ask.at <= step) {
            break;
        }
    }
    assert!(core.scheduler.is_idle(), "the engine did not come to rest");
    assert_eq!(core.scheduler.blocks.held(), 0);
    assert!(rids.lock().is_empty());
    let answers = boxes
        .iter()
        .zip(asks)
        .map(|(mailbox, ask)| if ask.leaves.is_some() { None } else { mailbox.as_ref().map(|m| taken(m).ids) })
        .collect();
    (answers, core)
}

pub(crate) fn alone(ask: &Ask) -> Vec<u32> {
    let ask = Ask { at: 0, leaves: None, ..ask.clone() };
    let (answers, core) = together(&config(32, 1, 512), &[ask]);
    assert_eq!(core.stats.retractions, 0);
    answers.into_iter().next().flatten().unwrap()
}

/// Prompts that share prefixes: a common start of 0 to 60 tokens, then their own.
pub(crate) fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let ask = (
        0usize..60,
        prop::collection::vec(0u32..1024, 1..50),
        1usize..40,
        0usize..12,
        prop::option::weighted(0.15, 0usize..30),
    );
    prop::collection::vec(ask, 1..7).prop_map(|list| {
        list.into_iter()
            .map(|(shared, own, max_new_tokens, at, leaves)| Ask {
                prompt: (0..shared as u32).map(|i| 272 + i * 7 % 700).chain(own).collect(),
                max_new_tokens,
                at,
                leaves: leaves.map(|after| at + after),
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Batching, chunking, prefix hits, preemption, cancellation of others: all at once, shrinkable.
    #[test]
    fn greedy_answers_do_not_depend_on_company(
        asks in asks(),
        pages in 10usize..40,
        max_running in 1usize..6,
        budget in 6usize..80,
    ) {
        let (answers, _) = together(&config(pages, max_running, budget), &asks);
        for (ask, answer) in asks.iter().zip(answers) {
            if let Some(answer) = answer {
                prop_assert_eq!(answer, alone(ask));
            }
        }
    }
}

pub(crate) fn plain(count: usize, length: usize, new: usize) -> Vec<Ask> {
    (0..count)
        .map(|i| Ask {
            prompt: (0..length).map(|t| ((i * 97 + t * 31) % 1024) as u32).collect(),
            max_new_tokens: new,
            at: 0,
            leaves: None,
        })
        .collect()
}

#[test]
fn preemption_happens_and_changes_nothing() {
    let asks = plain(4, 40, 60);
    // Each grows to 7 pages; 12 pages cannot hold four of them.
    let (answers, core) = together(&config(12, 4, 128), &asks);
    assert!(core.stats.retractions > 0, "this test is about preemption");
    for (ask, answer) in asks.iter().zip(answers) {
        assert_eq!(answer.as_ref(), Some(&alone(ask)));
    }
}

#[test]
fn a_prefix_hit_is_counted_and_changes_nothing() {
    let mut asks = plain(2, 70, 10);
    asks[1].prompt = asks[0].prompt.clone();
    asks[1].at = 30;
    let (answers, core) = together(&config(32, 4, 512), &asks);
    // 70 tokens are 4 full pages; the last token is never matched.
    assert_eq!(core.stats.cached_tokens, 64);
    assert_eq!(answers[0], answers[1]);
    // A prompt of exactly 4 pages computes its last page again.
    let mut asks = plain(2, 64, 4);
    asks[1].prompt = asks[0].prompt.clone();
    asks[1].at = 30;
    let (answers, core) = together(&config(32, 4, 512), &asks);
    assert_eq!(core.stats.cached_tokens, 48);
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn sampling_with_a_seed_does_not_depend_on_company() {
    let config = config(12, 4, 64);
    let run = |indices: &[usize]| {
        let mut core = Core::new(&config);
        let rids = RidSet::default();
        let boxes: Vec<_> = indices
            .iter()
            .map(|index| {
                let ask = &plain(4, 40, 50)[*index];
                let sampling = SamplingParams {
                    temperature: 0.8,
                    top_p: 0.95,
                    seed: Some(*index as u64),
                    ignore_eos: true,
                    ..params(ask.max_new_tokens)
                };
                let (sequence, mailbox) = sequence(&config, &rids, *index, Task::Generate(sampling), &ask.prompt);
                core.submit(sequence);
                mailbox
            })
            .collect();
        while !core.scheduler.is_idle() {
            core.step();
        }
        boxes.iter().map(|mailbox| taken(mailbox).ids).collect::<Vec<_>>()
    };
    let crowd = run(&[0, 1, 2, 3]);
    assert!(crowd.iter().all(|ids| ids.len() == 50));
    for (index, answer) in crowd.iter().enumerate() {
        assert_eq!(&run(&[index])[0], answer);
    }
}

#[test]
fn an_embedding_is_normalised_and_independent_of_chunks() {
    let prompt: Vec<u32> = (0..100).map(|i| 272 + i * 3).collect();
    let run = |budget: usize, crowd: bool| {
        let config = config(40, 4, budget);
        let mut core = Core::new(&config);
        let rids = RidSet::default();
        if crowd {
            for (index, ask) in plain(2, 30, 20).iter().enumerate() {
                core.submit(sequence(&config, &rids, index, Task::Generate(params(20)), &ask.prompt).0);
            }
        }
        let (sequence, mailbox) = sequence(&config, &rids, 9, Task::Embed, &prompt);
        core.submit(sequence);
        while !core.scheduler.is_idle() {
            core.step();
        }
        taken(&mailbox).embedding.unwrap()
    };
    let vector = run(512, false);
    assert_eq!(vector.len(), 32);
    assert!((vector.iter().map(|v| v * v).sum::<f32>() - 1.0).abs() < 1e-5);
    assert_eq!(run(13, true), vector);
}

#[test]
fn a_request_is_computed_in_no_step_that_begins_after_its_reader_left() {
    let config = config(32, 4, 64);
    let mut core = Core::new(&config);
    let rids = RidSet::default();
    let mut boxes = Vec::new();
    for (name, ask) in plain(3, 20, 50).iter().enumerate() {
        let (sequence, mailbox) = sequence(&config, &rids, name, Task::Generate(params(50)), &ask.prompt);
        core.submit(sequence);
        boxes.push(mailbox);
    }
    core.step();
    core.step();
    assert_eq!(core.stats.generated_tokens, 6);
    // In the middle of a step: that one is finished, the next begins without it.
    let computed = core.compute(Instant::now()).unwrap();
    leave(&boxes[1]);
    core.finish(&computed, Instant::now(), Duration::ZERO);
    assert_eq!(core.stats.generated_tokens, 9);
    core.step();
    assert_eq!((core.stats.generated_tokens, core.stats.running, core.stats.aborted), (11, 2, 1));
    // Between steps.
    leave(&boxes[0]);
    core.step();
    assert_eq!((core.stats.generated_tokens, core.stats.running, core.stats.aborted), (12, 1, 2));
    core.scheduler.check().unwrap();
}

#[test]
fn a_full_queue_refuses_and_an_abort_matches_by_prefix() {
    let config = EngineConfig { max_waiting: 3, ..config(32, 1, 64) };
    let mut core = Core::new(&config);
    let rids = RidSet::default();
    let mut boxes = Vec::new();
    for name in [1, 10, 2, 3, 4] {
        let (sequence, mailbox) = sequence(&config, &rids, name, Task::Generate(params(30)), &[300, 301]);
        core.submit(sequence);
        boxes.push(mailbox);
    }
    let full = Finish::Refused(Refusal::QueueFull);
    assert_eq!(taken(&boxes[3]).finish, Some(full.clone()));
    assert_eq!(taken(&boxes[4]).finish, Some(full));
    core.step();
    core.abort(Some("r1"));
    assert_eq!(taken(&boxes[0]).finish, Some(Finish::Abort { message: "Aborted".into(), status: None }));
    assert_eq!(taken(&boxes[1]).finish, Some(Finish::Abort { message: "Abort before prefill".into(), status: None }));
    assert_eq!(core.scheduler.blocks.held(), 0);
    assert_eq!(core.scheduler.waiting.len(), 1);
    assert_eq!(rids.lock().len(), 1);
}
