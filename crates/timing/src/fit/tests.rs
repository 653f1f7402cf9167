use super::*;
use crate::profile::Profile;

fn base() -> Profile {
    let mut profile = crate::find("h100-llama3-8b").unwrap();
    (profile.model.layers, profile.model.heads, profile.model.kv_heads) = (8, 12.0, 3.0);
    (profile.model.head_dim, profile.model.kv_bytes_token_layer) = (64.0, 1_536.0);
    profile
}

fn truth() -> Profile {
    let mut profile = base();
    profile.dense = Curve { at: vec![1.0, 4.0, 64.0], us: vec![900.0, 1_000.0, 7_000.0] };
    profile.head = Curve { at: vec![1.0, 64.0], us: vec![150.0, 1_410.0] };
    (profile.step.host_us, profile.step.layer_us) = (300.0, 10.0);
    (profile.decode.c0_us, profile.decode.c1_us, profile.decode.efficiency) = (0.0, 0.0, 1.0);
    profile.machine.bandwidth_gb_s = 5.0;
    (profile.prefill.c0_us, profile.prefill.tflops, profile.prefill.diagonal_tokens) = (40.0, 0.05, 0.0);
    profile.prefill.tile_rows = 0.0;
    profile.kernel = Kernel::K0 { skew: 0.0 };
    profile
}

fn shape(decodes: u64, context: u64, chunks: &[(u64, u64, bool)]) -> StepShape {
    let mut shape = StepShape::default();
    (0..decodes).for_each(|nth| shape.add_decode(context + nth));
    chunks.iter().for_each(|(new, cached, last)| shape.add_prefill(*new, *cached, *last));
    shape
}

fn shapes() -> Vec<StepShape> {
    let mut all = Vec::new();
    for decodes in [1, 2, 3, 4, 8, 16, 32] {
        for context in [40, 300, 1_500] {
            all.push(shape(decodes, context, &[]));
            all.push(shape(decodes, context, &[(64 - decodes, 0, false)]));
        }
    }
    for cached in [0, 64, 512, 2_048] {
        for new in [8, 16, 32, 64] {
            all.push(shape(0, 0, &[(new, cached, true)]));
            all.push(shape(0, 0, &[(new, cached, false)]));
            all.push(shape(0, 0, &[(new / 2, cached, true), (new / 2, 0, false)]));
        }
    }
    all
}

/// Of a few per cent either way, and always the same.
fn jitter(nth: usize) -> f64 {
    1.0 + (nth.wrapping_mul(2_654_435_761) % 1_000) as f64 / 25_000.0 - 0.02
}

#[test]
fn a_machine_is_found_again_from_its_steps() {
    let truth = truth();
    let samples: Vec<Sample> =
        shapes().into_iter().map(|shape| Sample { us: truth.cost(&shape).total_us(), shape }).collect();
    let (found, quality) = fit(&samples, &base()).unwrap();
    assert_eq!((quality.steps, quality.left_out), (samples.len() as u64, 0));
    assert!(quality.p90_error < 0.01 && (quality.total_ratio - 1.0).abs() < 0.005, "{quality:?}");
    // Steps that nobody measured.
    for (decodes, context, chunks) in [
        (6, 700, vec![]),
        (24, 100, vec![(40, 900, true)]),
        (0, 0, vec![(48, 1_200, false)]),
        (5, 2_000, vec![(20, 0, true)]),
    ] {
        let shape = shape(decodes, context, &chunks);
        let (is, said) = (truth.cost(&shape).total_us(), found.cost(&shape).total_us());
        assert!((said / is - 1.0).abs() < 0.03, "{shape:?}: {said} for {is}");
    }
    assert_eq!(Profile::parse("fitted", &toml::to_string(&found).unwrap()).as_ref(), Ok(&found));
}

#[test]
fn interrupted_steps_are_left_out_and_noise_is_not() {
    let truth = truth();
    let mut samples = Vec::new();
    for (nth, shape) in shapes().into_iter().cycle().take(500).enumerate() {
        let interrupted = if nth % 11 == 3 { 2.5 } else { 1.0 };
        samples.push(Sample { us: truth.cost(&shape).total_us() * jitter(nth) * interrupted, shape });
    }
    let (found, quality) = fit(&samples, &base()).unwrap();
    assert_eq!(quality.left_out, samples.len().div_ceil(11) as u64, "{quality:?}");
    assert!(quality.p90_error < 0.03, "{quality:?}");
    let undisturbed: Vec<Sample> =
        shapes().into_iter().map(|shape| Sample { us: truth.cost(&shape).total_us(), shape }).collect();
    let judged = judge(&found, &undisturbed);
    assert!(judged.p90_error < 0.02 && judged.left_out == 0, "{judged:?}");
    // What it is told is what it says: a machine of half the speed.
    let slower: Vec<Sample> = undisturbed.into_iter().map(|one| Sample { us: one.us * 2.0, ..one }).collect();
    assert!((judge(&found, &slower).total_ratio - 0.5).abs() < 0.01);
}

#[test]
fn steps_of_one_kind_are_not_enough() {
    let of = |shape: StepShape| Sample { us: 1_000.0, shape };
    let decode: Vec<Sample> = (0..100).map(|nth| of(shape(1 + nth % 8, 100, &[]))).collect();
    assert_eq!(fit(&decode, &base()), Err(TooFewSteps { found: 100 }));
    let few: Vec<Sample> = shapes().into_iter().take(30).map(of).collect();
    assert_eq!(fit(&few, &base()), Err(TooFewSteps { found: 30 }));
}
