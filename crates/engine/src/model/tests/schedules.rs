//! Any shape, any schedule: a sequence's logits have the same bits however it was cut, with whom it shared batches, on how
//! many threads and with which instructions.

use super::*;
use proptest::prelude::*;

/// A sequence and where it is cut.
#[derive(Clone, Debug)]
struct Ask {
    tokens: Vec<u32>,
    chunks: Vec<usize>,
    /// Passes that go by before each of its chunks.
    pauses: Vec<usize>,
}

fn shapes() -> impl Strategy<Value = ModelConfig> {
    let widths = (1usize..=3, 1usize..=3, 1usize..=9, 1usize..=5, 1usize..=5);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let rope = prop_oneof![
        Just(Rope::default()),
        Just(Rope { theta: 1e6, scaling: Scaling::Linear { factor: 2.0 } }),
        Just(Rope {
            theta: 5e5,
            scaling: Scaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context_tokens: 64.0
            }
        }),
    ];
    (widths, flags, rope, 1usize..=2, 60usize..200, any::<u64>()).prop_map(
        |(widths, flags, rope, layers, vocab, seed)| {
            let (kv_heads, group, head_blocks, hidden, ffn) = widths;
            let (qkv_bias, output_bias, ffn_bias, qk_norm, tied_embeddings) = flags;
            ModelConfig {
                vocab_tokens: vocab,
                eos_tokens: Vec::new(),
                first_logit: 0,
                suppressed_tokens: Vec::new(),
                layers,
                hidden: hidden * 16,
                heads: kv_heads * group,
                head_dim: head_blocks.min(8) * 16,
                kv_heads,
                ffn: ffn * 16,
                rope,
                qkv_bias,
                output_bias,
                ffn_bias,
                qk_norm,
                tied_embeddings,
                seed,
                ..ModelConfig::default()
            }
        },
    )
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let chunks = prop::collection::vec(prop_oneof![3 => 1usize..4, 2 => 1usize..70], 1..12);
    let one = (chunks, prop::collection::vec(0usize..3, 12), any::<u32>()).prop_map(|(chunks, pauses, seed)| {
        let length = chunks.iter().sum::<usize>() as u32;
        let tokens = (0..length).map(|i| (i.wrapping_mul(2_654_435_761) ^ seed) >> 8).collect();
        Ask { tokens, chunks, pauses }
    });
    prop::collection::vec(one, 1..5)
}

/// Pages of one sequence: scattered, and never those of another.
fn pages_of(sequence: usize, all: usize) -> Vec<u32> {
    (0..64).map(|page| ((page * all + sequence) as u32).reverse_bits() >> 24).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_schedule_changes_a_bit(
        config in shapes(),
        mut asks in asks(),
        threads in 1usize..4,
        isa in any::<prop::sample::Index>(),
        page_tokens in prop::sample::select(vec![16usize, 32]),
    ) {
        for token in asks.iter_mut().flat_map(|ask| &mut ask.tokens) {
            *token %= config.vocab_tokens as u32;
        }
        let mut plain = Model::new(config.clone());
        let alone: Vec<Vec<u32>> = asks.iter().map(|ask| {
            let pages: Vec<u32> = (0..64).collect();
            let run = Run { tokens: &ask.tokens, start: 0, pages: &pages, want: Want::LogitsFrom(0) };
            bits(&plain.forward(&[run], &mut KvStore::new(&config, 64, 16)).logits)
        }).collect();

        let mut model = Model::with_weights(config.clone(), Arc::clone(plain.weights()));
        model.set_team(Arc::new(Team::eager(threads).unwrap()));
        model.set_isa(*isa.get(&Isa::all()));
        let mut kv = KvStore::new(&config, 256, page_tokens);
        let pages: Vec<Vec<u32>> = (0..asks.len()).map(|sequence| pages_of(sequence, asks.len())).collect();
        let mut together = vec![Vec::new(); asks.len()];
        // For each sequence: tokens done, chunks done, passes to wait.
        let mut state: Vec<(usize, usize, usize)> = asks.iter().map(|ask| (0, 0, ask.pauses[0])).collect();
        while state.iter().zip(&asks).any(|(state, ask)| state.0 < ask.tokens.len()) {
            let mut runs = Vec::new();
            let mut who = Vec::new();
            for (index, ask) in asks.iter().enumerate() {
                let (start, chunk, wait) = state[index];
                if start == ask.tokens.len() {
                    continue;
                }
                if wait > 0 {
                    state[index].2 -= 1;
                    continue;
                }
                let end = start + ask.chunks[chunk];
                runs.push(Run { tokens: &ask.tokens[start..end], start, pages: &pages[index], want: Want::LogitsFrom(0) });
                who.push((index, end - start));
                state[index] = (end, chunk + 1, ask.pauses[(chunk + 1) % ask.pauses.len()]);
            }
            // Neighbours change from pass to pass.
            if runs.len() % 2 == 0 {
                runs.reverse();
                who.reverse();
            }
            let logits = model.forward(&runs, &mut kv).logits;
            let mut rows = logits.chunks_exact(config.logit_count());
            for (index, count) in who {
                together[index].extend(rows.by_ref().take(count).flatten().map(|value| value.to_bits()));
            }
        }
        for (index, (alone, together)) in alone.iter().zip(&together).enumerate() {
            prop_assert_eq!(alone, together, "sequence {} with {}", index, model.isa().name());
        }
    }
}

/// What every layer of the last pass but its wanted rows leaves out is left out of nothing else.
#[test]
fn wants_get_what_they_ask_for_and_change_nothing() {
    for config in families() {
        let mut model = Model::new(config.clone());
        let tokens: Vec<u32> = (0..40).map(|i| (i * 29 + 3) % config.vocab_tokens as u32).collect();
        let pages: Vec<Vec<u32>> = (0..4).map(|run| (run * 3..run * 3 + 3).collect()).collect();
        let run = |index: usize, want| Run { tokens: &tokens[index..], start: 0, pages: &pages[index], want };
        let one =
            |model: &mut Model, index, want| model.forward(&[run(index, want)], &mut KvStore::new(&config, 12, 16));
        let whole = one(&mut model, 2, Want::LogitsFrom(0)).logits;
        let wants = [Want::Hidden, Want::Nothing, Want::LogitsFrom(30), Want::Logits];
        let runs: Vec<_> = wants.into_iter().enumerate().map(|(index, want)| run(index, want)).collect();
        let mut kv = KvStore::new(&config, 12, 16);
        let output = model.forward(&runs, &mut kv);
        let hidden = one(&mut model, 0, Want::Hidden).hidden;
        assert_eq!((hidden.len(), &output.hidden), (40 * config.hidden, &hidden));
        let count = config.logit_count();
        // Tokens 30 to 37 of the third run, and the last of the fourth.
        assert_eq!(output.logits.len(), 9 * count);
        assert_eq!(bits(&output.logits[..8 * count]), bits(&whole[30 * count..]));
        assert_eq!(output.logits[8 * count..], one(&mut model, 3, Want::Logits).logits);
        // A run that wanted nothing goes on as if it had been computed alone.
        let next = Run { tokens: &[7], start: 39, pages: &pages[1], want: Want::Logits };
        let after = model.forward(&[next], &mut kv).logits;
        let mut longer = tokens[1..].to_vec();
        longer.push(7);
        let run = Run { tokens: &longer, start: 0, pages: &pages[1], want: Want::Logits };
        assert_eq!(after, model.forward(&[run], &mut KvStore::new(&config, 12, 16)).logits);
    }
}
