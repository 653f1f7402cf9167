use super::*;
use crate::tokenizer::VOCAB;

fn logits() -> Vec<f32> {
    let mut logits: Vec<f32> = (0..VOCAB as u32 - FIRST_LOGIT).map(|i| ((i * 37) % 101) as f32 * 0.02).collect();
    logits[(IM_END - FIRST_LOGIT) as usize] = 9.0;
    logits[(FIRST_WORD - FIRST_LOGIT) as usize + 5] = 8.0;
    logits[(FIRST_WORD - FIRST_LOGIT) as usize + 6] = 7.5;
    logits[0] = 50.0; // a special that must never come out
    logits
}

fn greedy_params() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

#[test]
fn greedy_takes_the_largest_allowed() {
    assert_eq!(sample(&logits(), &greedy_params(), 1, 0), IM_END);
    let params = SamplingParams { ignore_eos: true, ..greedy_params() };
    assert_eq!(sample(&logits(), &params, 1, 0), FIRST_WORD + 5);
    let params = SamplingParams { top_k: Some(1), ..SamplingParams::default() };
    assert_eq!(sample(&logits(), &params, 1, 0), IM_END);
}

#[test]
fn restrictions_restrict() {
    let draw = |params: &SamplingParams| {
        (0..400).map(|i| sample(&logits(), params, 11, i)).collect::<std::collections::BTreeSet<_>>()
    };
    let base = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
    assert!(draw(&base).len() > 20, "plain sampling varies");
    let two = std::collections::BTreeSet::from([FIRST_WORD + 5, FIRST_WORD + 6]);
    assert_eq!(draw(&SamplingParams { top_k: Some(2), ..base.clone() }), two);
    assert_eq!(draw(&SamplingParams { min_p: 0.5, ..base.clone() }), two);
    assert_eq!(draw(&SamplingParams { top_p: 0.01, ..base.clone() }).len(), 1);
    assert_eq!(draw(&SamplingParams { temperature: 0.01, ..base }).len(), 1);
}

#[test]
fn frequencies_follow_the_softmax() {
    // Two choices, one unit apart: e : 1.
    let params = SamplingParams { ignore_eos: true, top_k: Some(2), temperature: 0.5, ..SamplingParams::default() };
    let first = (0..20_000).filter(|i| sample(&logits(), &params, 5, *i) == FIRST_WORD + 5).count();
    let share = first as f64 / 20_000.0;
    let want = 1f64.exp() / (1.0 + 1f64.exp());
    assert!((share - want).abs() < 0.02, "{share} against {want}");
}

#[test]
fn the_draw_depends_on_seed_and_index_only() {
    let params = SamplingParams::default();
    let run = |seed| (0..50).map(|i| sample(&logits(), &params, seed, i)).collect::<Vec<_>>();
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}
