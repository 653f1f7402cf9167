//! Sampled, penalised and biased answers, and log-probabilities of prompt and output: the same alone and in any company,
//! since all of them follow from the seed and the tokens so far.

use super::*;
use crate::sampling::logprobs::LogprobAsk;

/// Everything that readers see of each request.
fn answers(config: &EngineConfig, asks: &[(usize, Vec<u32>, SamplingParams)]) -> (Vec<Update>, Core) {
    let mut core = Core::new(config);
    let rids = RidSet::default();
    let mut boxes = Vec::new();
    let mut step = 0;
    while boxes.len() < asks.len() || !core.scheduler.is_idle() {
        while let Some((at, prompt, params)) = asks.get(boxes.len())
            && *at <= step
        {
            let task = Task::Generate(params.clone());
            let (sequence, mailbox) = sequence(config, &rids, boxes.len(), task, prompt);
            core.submit(sequence);
            boxes.push(mailbox);
        }
        core.step();
        core.scheduler.check().unwrap();
        step += 1;
        assert!(step < 20_000, "the engine did not come to rest");
    }
    (boxes.iter().map(taken).collect(), core)
}

fn sampling() -> impl Strategy<Value = SamplingParams> {
    let choice = (0u8..3, 0.5f32..1.0, prop::option::of(1usize..40), 0f32..0.3, any::<u64>());
    let change = (-2f32..2.0, -2f32..2.0, 0.5f32..2.0, prop::collection::vec((256u32..1024, -5f32..5.0), 0..4));
    let report = prop::option::weighted(0.7, (0usize..4, prop::option::weighted(0.7, 0usize..200)));
    (choice, change, report, 1usize..40).prop_map(|(choice, change, report, max_new_tokens)| SamplingParams {
        temperature: f32::from(choice.0) * 0.6,
        top_p: choice.1,
        top_k: choice.2,
        min_p: choice.3,
        seed: Some(choice.4),
        presence_penalty: change.0,
        frequency_penalty: change.1,
        repetition_penalty: change.2,
        logit_bias: change.3,
        logprobs: report.map(|(top, prompt_from)| LogprobAsk { top, ids: vec![300, 7], prompt_from }),
        ..params(max_new_tokens)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn answers_and_logprobs_do_not_depend_on_company(
        asks in asks(),
        params in prop::collection::vec(sampling(), 7),
        pages in 10usize..40,
        max_running in 1usize..6,
        budget in 6usize..80,
    ) {
        let mut asks: Vec<_> = asks.into_iter().zip(params).map(|(ask, mut params)| {
            if let Some(LogprobAsk { prompt_from: Some(from), .. }) = &mut params.logprobs {
                *from %= ask.prompt.len();
            }
            (ask.at, ask.prompt, params)
        }).collect();
        asks.sort_by_key(|(at, ..)| *at);
        let (together, _) = answers(&config(pages, max_running, budget), &asks);
        for ((_, prompt, params), got) in asks.iter().zip(together) {
            let (mut alone, core) = answers(&config(32, 1, 512), &[(0, prompt.clone(), params.clone())]);
            prop_assert_eq!(core.stats.retractions, 0);
            let alone = alone.pop().unwrap();
            let reported = if params.logprobs.is_some() { got.ids.len() } else { 0 };
            prop_assert_eq!(got.logprobs.len(), reported);
            let from = params.logprobs.as_ref().and_then(|ask| ask.prompt_from);
            prop_assert_eq!(got.prompt_logprobs.len(), from.map_or(0, |from| prompt.len() - 1 - from));
            prop_assert_eq!(
                (got.ids, got.text, got.logprobs, got.prompt_logprobs, got.finish),
                (alone.ids, alone.text, alone.logprobs, alone.prompt_logprobs, alone.finish)
            );
        }
    }
}

#[test]
fn the_prompts_logprobs_are_those_of_generating_it() {
    let greedy = SamplingParams { logprobs: Some(LogprobAsk { top: 2, ..LogprobAsk::default() }), ..params(30) };
    let prompt = vec![300, 400, 500];
    let config = config(32, 1, 512);
    let (said, _) = answers(&config, &[(0, prompt.clone(), SamplingParams { ignore_eos: true, ..greedy })]);
    let whole: Vec<u32> = prompt.iter().chain(&said[0].ids).copied().collect();
    let ask = LogprobAsk { top: 2, ids: Vec::new(), prompt_from: Some(2) };
    let scored = SamplingParams { logprobs: Some(ask), ..params(1) };
    // Twice: the second finds the first one's pages, and must not use those whose logits it needs.
    let (scored, core) = answers(&config, &[(0, whole.clone(), scored.clone()), (1, whole, scored)]);
    assert_eq!(scored[0].prompt_logprobs, said[0].logprobs);
    assert_eq!(scored[1].prompt_logprobs, said[0].logprobs);
    assert_eq!(core.stats.cached_tokens, 0);
}

#[test]
fn preemption_leaves_sampled_answers_and_logprobs_alone() {
    let ask = LogprobAsk { top: 1, ids: vec![], prompt_from: Some(0) };
    let params = SamplingParams {
        temperature: 0.9,
        seed: Some(4),
        ignore_eos: true,
        frequency_penalty: 1.0,
        repetition_penalty: 1.3,
        logprobs: Some(ask),
        ..params(60)
    };
    let asks: Vec<_> = plain(4, 40, 60).into_iter().map(|ask| (0, ask.prompt, params.clone())).collect();
    let (together, core) = answers(&config(12, 4, 128), &asks);
    assert!(core.stats.retractions > 0, "this test is about preemption");
    for (ask, got) in asks.iter().zip(together) {
        let (alone, _) = answers(&config(32, 1, 512), std::slice::from_ref(ask));
        assert_eq!((got.ids, got.logprobs), (alone[0].ids.clone(), alone[0].logprobs.clone()));
        assert_eq!(got.prompt_logprobs, alone[0].prompt_logprobs);
    }
}
