//! The sum against the numbers it was made from, and its shape.

use crate::catalogue::{find, names};
use crate::profile::{Kernel, Profile};
use crate::shape::StepShape;
use proptest::prelude::*;

fn near(what: &str, found: f64, wanted: f64, tolerance: f64) {
    assert!((found / wanted - 1.0).abs() <= tolerance, "{what}: {found:.3}, expected {wanted} within {tolerance}");
}

fn prefill(new: u64, cached: u64) -> StepShape {
    let mut shape = StepShape::default();
    shape.add_prefill(new, cached, false);
    shape
}

fn decode(lengths: &[u64]) -> StepShape {
    let mut shape = StepShape::default();
    lengths.iter().for_each(|length| shape.add_decode(*length));
    shape
}

/// Workload notes, section 2: milliseconds of an iteration without attention, host and norms, by new tokens.
#[test]
fn iterations_without_attention_are_as_tabulated() {
    const AT: [u64; 6] = [1, 64, 256, 1024, 4096, 8192];
    let table: [(&str, [f64; 6]); 6] = [
        ("h100-llama3-8b", [6.0, 6.1, 6.9, 19.0, 78.1, 158.0]),
        ("h200-llama3-8b", [4.2, 4.4, 6.4, 19.2, 81.3, 162.0]),
        ("h100-llama3-70b-tp4", [13.7, 15.9, 19.7, 59.9, 252.0, 493.0]),
        ("h100-llama3-70b-tp8", [7.7, 9.5, 13.6, 43.0, 146.0, 286.0]),
        ("h200-llama3-70b-tp4", [10.0, 11.7, 18.6, 62.6, 244.0, 490.0]),
        ("h200-llama3-70b-tp8", [6.2, 7.7, 14.1, 47.6, 141.0, 287.0]),
    ];
    for (name, row) in table {
        let profile = find(name).unwrap();
        for (tokens, ms) in AT.into_iter().zip(row) {
            // As the table: every row through the head, up to the 256 it was measured with.
            let mut shape = prefill(tokens, 0);
            (0..tokens.min(256)).for_each(|_| shape.add_prefill(0, 0, true));
            let cost = profile.cost(&shape);
            let norms = f64::from(profile.model.layers) * profile.step.layer_us;
            near(&format!("{name} at {tokens}"), (cost.dense_us - norms + cost.head_us) / 1000.0, ms, 0.025);
        }
    }
}

/// Workload notes, section 2: prefill attention of one prompt, effective TFLOPS by its length.
#[test]
fn prefill_attention_has_the_measured_rates() {
    const AT: [u64; 6] = [512, 1024, 2048, 4096, 8192, 16_384];
    let table = [
        ("h100-llama3-8b", [119.0, 292.0, 387.0, 542.0, 578.0, 618.0]),
        ("h200-llama3-8b", [119.0, 294.0, 424.0, 518.0, 619.0, 631.0]),
    ];
    for (name, row) in table {
        let profile = find(name).unwrap();
        for (tokens, tflops) in AT.into_iter().zip(row) {
            let layer_us = profile.cost(&prefill(tokens, 0)).prefill_us / 32.0;
            let operations = 4.0 * 32.0 * 128.0 * (tokens * tokens / 2) as f64;
            near(&format!("{name} at {tokens}"), operations / layer_us / 1e6, tflops, 0.15);
        }
    }
}

/// Workload notes, sections 2 and 4.
#[test]
fn single_figures_of_the_notes() {
    // One request with 65,536 tokens of context on an H100: 102 us a layer.
    let small = find("h100-llama3-8b").unwrap();
    near("65,536 tokens", small.cost(&decode(&[65_536])).decode_us / 32.0, 102.0, 0.1);
    // Nanoseconds per token of context, closed forms.
    for (name, ns) in [("h200-qwen3-235b-dp8", 44.6), ("h200-deepseek-v3-dp32", 18.3)] {
        let profile = find(name).unwrap();
        let slope = profile.cost(&decode(&[200_000])).decode_us - profile.cost(&decode(&[100_000])).decode_us;
        near(name, slope * 1000.0 / 100_000.0, ns, 0.005);
        let fixed = profile.cost(&decode(&[1])).total_us() / 1000.0;
        assert!((13.0..=14.0).contains(&fixed), "{name}: {fixed}");
    }
    // 75,000 tokens of context, hit rate 90 to 40 %, 70B on 8 H100: 0.55 to 2.86 s of prefill a request.
    let large = find("h100-llama3-70b-tp8").unwrap();
    let prefill_s = |new: u64| {
        let mut sum = 0.0;
        for start in (0..new).step_by(8192) {
            sum += large.cost(&prefill(8192.min(new - start), 75_000 - new + start)).total_us();
        }
        sum / 1e6
    };
    near("hit rate 90 %", prefill_s(7_500), 0.55, 0.1);
    near("hit rate 40 %", prefill_s(45_000), 2.86, 0.1);
}

#[test]
fn an_empty_step_takes_nothing_and_every_part_has_its_place() {
    for name in names() {
        let profile = find(name).unwrap();
        assert_eq!(profile.step_time(&StepShape::default()).0, 0);
        let mut shape = decode(&[1000, 3000]);
        let alone = profile.cost(&shape);
        assert_eq!(alone.prefill_us, 0.0);
        assert!(alone.skew_us > 0.0 && alone.skew_us < 0.1 * alone.decode_us);
        shape.add_prefill(500, 10_000, true);
        let both = profile.cost(&shape);
        assert_eq!((both.decode_us, both.skew_us), (alone.decode_us, alone.skew_us));
        assert!(both.prefill_us > 0.0 && both.dense_us > alone.dense_us);
        assert_eq!(both.total().0, (both.total_us() * 1000.0).round() as u64);
        shape.clear();
        assert_eq!(shape, StepShape::default());
    }
}

/// Workload notes, section 3: what unequal lengths cost in each family, and that equal ones cost nothing in any.
#[test]
fn kernel_families_differ_only_in_what_unequal_lengths_add() {
    let base = find("h100-llama3-8b").unwrap();
    let with = |kernel| Profile { kernel, ..base.clone() };
    let families = [with(Kernel::K0 { skew: 0.04 }), with(Kernel::K1), with(Kernel::K2)];
    let equal = decode(&[4_000; 64]);
    let mut lengths = vec![2_000; 63];
    lengths.push(130_000);
    let unequal = decode(&lengths);
    assert_eq!(unequal.decode_tokens(), equal.decode_tokens());
    let skews: Vec<f64> = families.iter().map(|profile| profile.cost(&unequal).skew_us).collect();
    for profile in &families {
        assert_eq!(profile.cost(&equal).skew_us, 0.0);
        assert_eq!(profile.cost(&equal).decode_us, profile.cost(&unequal).decode_us);
    }
    let balanced = base.cost(&equal).decode_us;
    assert!(skews[0] < skews[1] && skews[1] < skews[2], "{skews:?}");
    // Padded to the longest: 64 requests of 130,000.
    near("K2", balanced + skews[2], families[2].cost(&decode(&[130_000; 64])).decode_us, 1e-9);
    // The share of the way from mean to longest that is K0's constant.
    near("K0", skews[0] / skews[2], 0.04, 1e-9);
    // Few sequences are cut by K1 as well.
    assert_eq!(families[1].cost(&decode(&[100, 100_000])).skew_us, 0.0);
}

proptest! {
    /// More work never takes less time, and the sum of lengths is all that a perfectly balanced kernel sees.
    #[test]
    fn time_grows_with_work(
        which in 0usize..8,
        lengths in prop::collection::vec(1u64..130_000, 1..100),
        more in 1u64..130_000,
        new in 1u64..8192,
        cached in 0u64..130_000,
    ) {
        let profile = find(names().nth(which).unwrap()).unwrap();
        let shape = decode(&lengths);
        let before = profile.cost(&shape);
        let mut larger = shape.clone();
        larger.add_prefill(new, cached, true);
        prop_assert!(profile.step_time(&larger) > profile.step_time(&shape));
        let mut further = larger.clone();
        further.add_prefill(0, cached + 1, false);
        prop_assert!(profile.cost(&further).prefill_us >= profile.cost(&larger).prefill_us);
        let longer = decode(&lengths.iter().map(|length| length + more).collect::<Vec<_>>());
        prop_assert!(profile.step_time(&longer) > profile.step_time(&shape));
        let balanced = Profile { kernel: Kernel::K0 { skew: 0.0 }, ..profile };
        prop_assert_eq!(balanced.cost(&shape).skew_us, 0.0);
        prop_assert_eq!(balanced.cost(&shape).decode_us, before.decode_us);
    }
}
