use super::logprobs::{IMPOSSIBLE, LogprobAsk, logprobs};
use super::*;
use crate::tokenizer::{FIRST_WORD, VOCAB};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn logits() -> Vec<f32> {
    let mut logits: Vec<f32> = (0..VOCAB as u32 - FIRST_LOGIT).map(|i| ((i * 37) % 101) as f32 * 0.02).collect();
    logits[..(FIRST_WORD - FIRST_LOGIT) as usize].fill(f32::NEG_INFINITY);
    logits[(IM_END - FIRST_LOGIT) as usize] = 9.0;
    logits[(FIRST_WORD - FIRST_LOGIT) as usize + 5] = 8.0;
    logits[(FIRST_WORD - FIRST_LOGIT) as usize + 6] = 7.5;
    logits
}

fn greedy_params() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

fn draw(params: &SamplingParams, seed: u64, index: usize) -> u32 {
    sample(&logits(), &TokenRules::default(), params, &Tally::default(), seed, index)
}

#[test]
fn greedy_takes_the_largest_allowed() {
    assert_eq!(draw(&greedy_params(), 1, 0), IM_END);
    let params = SamplingParams { ignore_eos: true, ..greedy_params() };
    assert_eq!(draw(&params, 1, 0), FIRST_WORD + 5);
    let params = SamplingParams { top_k: Some(1), ..SamplingParams::default() };
    assert_eq!(draw(&params, 1, 0), IM_END);
}

#[test]
fn ends_are_held_back_before_the_minimum_only() {
    let params = SamplingParams { min_new_tokens: 3, stop_token_ids: vec![FIRST_WORD + 5], ..greedy_params() };
    assert_eq!(draw(&params, 1, 2), FIRST_WORD + 6);
    assert_eq!(draw(&params, 1, 3), IM_END);
    let rules = TokenRules { end_is_silent: false, ..TokenRules::default() };
    let on = SamplingParams { ignore_eos: true, ..greedy_params() };
    assert_eq!(sample(&logits(), &rules, &on, &Tally::default(), 1, 0), IM_END, "a stock model says it and goes on");
    assert!(!rules.ends(IM_END, &on) && rules.ends(IM_END, &greedy_params()));
}

#[test]
fn restrictions_restrict() {
    let drawn = |params: &SamplingParams| (0..400).map(|i| draw(params, 11, i)).collect::<BTreeSet<_>>();
    let base = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
    assert!(drawn(&base).len() > 20, "plain sampling varies");
    let two = BTreeSet::from([FIRST_WORD + 5, FIRST_WORD + 6]);
    assert_eq!(drawn(&SamplingParams { top_k: Some(2), ..base.clone() }), two);
    assert_eq!(drawn(&SamplingParams { min_p: 0.5, ..base.clone() }), two);
    assert_eq!(drawn(&SamplingParams { top_p: 0.01, ..base.clone() }).len(), 1);
    assert_eq!(drawn(&SamplingParams { temperature: 0.01, ..base.clone() }).len(), 1);
    let only = SamplingParams { logit_bias: vec![(IM_END, -100.0), (300, 100.0), (3, 100.0)], ..base };
    assert_eq!(drawn(&only), BTreeSet::from([300]), "a bias of 100 leaves one, and a byte has no logit to bias");
}

#[test]
fn frequencies_follow_the_softmax() {
    // Two choices, one unit apart: e : 1.
    let params = SamplingParams { ignore_eos: true, top_k: Some(2), temperature: 0.5, ..SamplingParams::default() };
    let first = (0..20_000).filter(|i| draw(&params, 5, *i) == FIRST_WORD + 5).count();
    let share = first as f64 / 20_000.0;
    let want = 1f64.exp() / (1.0 + 1f64.exp());
    assert!((share - want).abs() < 0.02, "{share} against {want}");
}

#[test]
fn the_draw_depends_on_seed_and_index_only() {
    let params = SamplingParams::default();
    let run = |seed| (0..50).map(|i| draw(&params, seed, i)).collect::<Vec<_>>();
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn penalties_do_what_their_definitions_say() {
    let rules = TokenRules { first_logit: 0, end_tokens: vec![], end_is_silent: false, ..TokenRules::default() };
    let with = |params: &SamplingParams, tokens: &[u32], prompt_len: usize| {
        let mut tally = Tally::default();
        tally.read(tokens, prompt_len);
        adjusted(&[4.0, -4.0, 1.0, 0.0], &rules, params, &tally, 0).into_owned()
    };
    let presence = SamplingParams { presence_penalty: 1.5, ..greedy_params() };
    assert_eq!(with(&presence, &[2, 0, 0, 1], 1), [2.5, -5.5, 1.0, 0.0], "the output counts once, the prompt not");
    let frequency = SamplingParams { frequency_penalty: -0.5, ..greedy_params() };
    assert_eq!(with(&frequency, &[2, 0, 0, 1], 1), [5.0, -3.5, 1.0, 0.0], "per time, and negative ones encourage");
    let repetition = SamplingParams { repetition_penalty: 2.0, ..greedy_params() };
    assert_eq!(with(&repetition, &[2, 0, 0, 1], 1), [2.0, -8.0, 0.5, 0.0], "prompt and output, towards less likely");
    let all =
        SamplingParams { repetition_penalty: 2.0, frequency_penalty: 1.0, presence_penalty: 0.25, ..greedy_params() };
    assert_eq!(with(&all, &[0, 0], 0), [4.0 / 2.0 - 2.0 - 0.25, -4.0, 1.0, 0.0]);
}

proptest! {
    /// What preemption and migration do: counting again from nothing, or in other steps, changes nothing.
    #[test]
    fn a_tally_depends_on_the_tokens_only(
        tokens in prop::collection::vec(0u32..8, 1..40), prompt in 0usize..40, cuts in prop::collection::vec(0usize..40, 0..5)
    ) {
        let params = SamplingParams {
            presence_penalty: 0.5, frequency_penalty: 0.25, repetition_penalty: 1.5, ..SamplingParams::default()
        };
        let apply = |tally: &Tally| {
            let mut logits = [3.0, 2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0];
            tally.apply(&mut logits, 0, &params);
            logits
        };
        let mut once = Tally::default();
        once.read(&tokens, prompt);
        let mut steps = Tally::default();
        let mut cuts = cuts;
        cuts.sort_unstable();
        for cut in cuts {
            steps.read(&tokens[..cut.min(tokens.len())], prompt);
        }
        steps.read(&tokens, prompt);
        prop_assert_eq!(apply(&steps), apply(&once));
    }

    #[test]
    fn logprobs_are_a_distribution(logits in prop::collection::vec(-30f32..30.0, 1..60), pick in 0usize..60) {
        let id = 10 + (pick % logits.len()) as u32;
        let ask = LogprobAsk { top: 60, ids: vec![id, 9], prompt_from: None };
        let given = logprobs(&logits, 10, id, &ask);
        let total: f64 = given.top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
        prop_assert!((total - 1.0).abs() < 1e-4, "{}", total);
        prop_assert_eq!(given.top.len(), logits.len());
        prop_assert!(given.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        prop_assert!(given.top.contains(&(id, given.logprob)));
        prop_assert_eq!(given.asked, vec![(id, given.logprob), (9, IMPOSSIBLE)]);
        let best = logprobs(&logits, 10, id, &LogprobAsk { top: 1, ..LogprobAsk::default() }).top;
        prop_assert_eq!(best[0].0, greedy(&logits, 10));
    }
}
