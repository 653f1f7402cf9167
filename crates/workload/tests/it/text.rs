//! Prompts share exactly the words whose blocks they share.

use crate::shared::{AGENTIC, MOONCAKE, trace, words};
use plimsoll_workload::traces::Trace;
use plimsoll_workload::{Prompt, Run, Scale, SessionGenerator, Shape, Synth, Tail};
use proptest::prelude::*;
use std::collections::HashMap;

fn scaled(prompt_divisor: u64) -> Scale {
    Scale { prompt_divisor, ..Scale::NONE }
}

fn common_words(a: &str, b: &str) -> u64 {
    a.split_whitespace().zip(b.split_whitespace()).take_while(|(a, b)| a == b).count() as u64
}

/// A prompt from ids; the last one is a part block where `part` is not 0.
fn prompt(ids: &[u64], part: u64) -> Prompt {
    let (full, tail) = if part == 0 { (ids, None) } else { (&ids[..ids.len() - 1], ids.last().copied()) };
    Prompt {
        block_tokens: 512,
        runs: full.iter().map(|&first| Run { first, len: 1 }).collect(),
        tail: tail.map(|id| Tail { id, tokens: part }),
    }
}

proptest! {
    #[test]
    fn common_words_are_common_blocks(
        common in proptest::collection::vec(0u64..100_000_000, 0..12),
        left in 0u64..1_000_000, right in 0u64..1_000_000,
        tails in proptest::collection::vec(0u64..100_000_000, 0..4),
        part in 0u64..512, divisor in prop_oneof![Just(1u64), Just(16), Just(64), Just(100)],
    ) {
        prop_assume!(left != right);
        let list = words();
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        let synth = Synth::new(&list, scaled(divisor)).unwrap();
        let a = prompt(&[&common[..], &[left], &tails].concat(), part);
        let b = prompt(&[&common[..], &[right], &tails].concat(), 0);
        let (text_a, text_b) = (synth.prompt(&a), synth.prompt(&b));
        prop_assert_eq!(text_a.split_whitespace().count() as u64, synth.prompt_words(&a));
        prop_assert_eq!(text_b.split_whitespace().count() as u64, synth.prompt_words(&b));
        let shared = common_words(&text_a, &text_b);
        let wanted = common.len() as u64 * synth.words_per_block(512);
        // Ids of one group of n differ in the first word; others at the latest where both ids are written out.
        let slack = if left / 1_000 == right / 1_000 { 0 } else { Synth::ID_WORDS - 1 };
        let shorter = synth.prompt_words(&a).min(synth.prompt_words(&b));
        prop_assert!(shared >= wanted.min(shorter) && shared <= wanted + slack, "{} shared, {} wanted", shared, wanted);
    }

    #[test]
    fn parts_put_together_are_the_prompt(
        ids in proptest::collection::vec(0u64..1_000_000, 2..9), part in 1u64..512, cut in 0u64..60,
    ) {
        let list = words();
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        let synth = Synth::new(&list, scaled(64)).unwrap();
        let whole = prompt(&ids, part);
        let text = synth.prompt(&whole);
        let rest = synth.part(&whole.runs, whole.tail, 512, cut);
        let kept: Vec<&str> = text.split_whitespace().skip(cut as usize).collect();
        prop_assert_eq!(rest.split_whitespace().collect::<Vec<_>>(), kept);
    }
}

#[test]
fn a_part_block_is_the_head_of_the_whole_block() {
    let list = words();
    let list: Vec<&str> = list.iter().map(String::as_str).collect();
    let synth = Synth::new(&list, scaled(16)).unwrap();
    let (part, whole) = (synth.prompt(&prompt(&[5, 9], 320)), synth.prompt(&prompt(&[5, 9], 0)));
    assert!(whole.starts_with(&format!("{part} ")));
    assert_eq!(part.split_whitespace().count(), 32 + 20);
}

#[test]
fn word_lists_that_could_not_tell_blocks_apart_are_refused() {
    let list = words();
    let mut list: Vec<&str> = list.iter().map(String::as_str).collect();
    assert!(Synth::new(&list[..63], Scale::NONE).is_none());
    list.push("w1");
    assert!(Synth::new(&list, Scale::NONE).is_none());
    list.pop();
    list.push("two words");
    assert!(Synth::new(&list, Scale::NONE).is_none());
}

/// Of real prompts, replayed with the divisors of the demo, how many part later than their blocks say.
fn late_partings(prompts: &[Prompt], divisor: u64) -> (u64, u64) {
    let list = words();
    let list: Vec<&str> = list.iter().map(String::as_str).collect();
    let synth = Synth::new(&list, scaled(divisor)).unwrap();
    let texts: Vec<String> = prompts.iter().map(|prompt| synth.prompt(prompt)).collect();
    let (mut late, mut pairs) = (0, 0);
    for (n, prompt) in prompts.iter().enumerate().skip(1) {
        for before in n.saturating_sub(5)..n {
            let per_block = synth.words_per_block(prompt.block_tokens);
            let wanted = prompts[before].common_blocks(prompt) * per_block;
            let shared = common_words(&texts[before], &texts[n]);
            assert!(shared >= wanted && shared < wanted + per_block.max(Synth::ID_WORDS), "{shared} for {wanted}");
            pairs += 1;
            late += u64::from(shared != wanted);
        }
    }
    (late, pairs)
}

#[test]
fn real_mooncake_prompts_part_where_their_blocks_do() {
    let Some(path) = trace("real_mooncake_prompts_part_where_their_blocks_do", MOONCAKE) else { return };
    let prompts: Vec<Prompt> =
        Trace::open(&path).unwrap().take(300).map(|session| session.unwrap().calls.remove(0).prompt).collect();
    let (late, pairs) = late_partings(&prompts, 64);
    assert!(late * 100 <= pairs, "{late} of {pairs} pairs part one word late");
}

#[test]
fn real_agentic_prompts_part_where_their_blocks_do() {
    let Some(path) = trace("real_agentic_prompts_part_where_their_blocks_do", AGENTIC) else { return };
    for session in Trace::open(&path).unwrap().take(3) {
        let prompts: Vec<Prompt> = session.unwrap().calls.into_iter().take(60).map(|call| call.prompt).collect();
        let (late, pairs) = late_partings(&prompts, 32);
        assert!(late * 50 <= pairs, "{late} of {pairs} pairs part one word late");
    }
}

#[test]
fn generated_turns_continue_the_text_of_the_turn_before() {
    let list = words();
    let list: Vec<&str> = list.iter().map(String::as_str).collect();
    let synth = Synth::new(&list, scaled(16)).unwrap();
    let shape = Shape { turn_limit: 30, context_limit_tokens: 100_000, ..Shape::default() };
    let mut first_text: HashMap<u64, String> = HashMap::new();
    for session in SessionGenerator::new(2, shape).take(6) {
        for pair in session.calls.windows(2) {
            let (before, now) = (&pair[0].prompt, &pair[1].prompt);
            if before.common_blocks(now) == before.full_blocks() {
                let (before, now) = (synth.prompt(before), synth.prompt(now));
                assert!(now.starts_with(&before), "{}: a turn changed what was said before", session.id);
            }
        }
        let tools = session.calls[0].prompt.leading(1);
        let text = synth.part(&tools, None, 64, 0);
        assert_eq!(first_text.entry(tools[0].first).or_insert_with(|| text.clone()), &text);
    }
}
