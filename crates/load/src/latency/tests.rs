use super::*;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What an instance really takes; times in it get `noise` as a share, up or down.
struct Truth {
    coefficients: Coefficients,
    noise: f64,
    random: ChaCha8Rng,
}

impl Truth {
    fn noisy(&mut self, seconds: f64) -> Nanos {
        Nanos::from_secs_f64(seconds * (1.0 + self.noise * self.random.random_range(-1.0..1.0)))
    }

    fn prefill(&mut self, model: &mut LatencyModel, disturbed: f64) {
        // Short turns and long documents alike.
        let u = self.random.random_range(50f64.ln()..40_000f64.ln()).exp() as u64;
        let h = self.random.random_range(0..80_000);
        let seconds = self.coefficients.prefill_s(u, h) * disturbed;
        let elapsed = self.noisy(seconds);
        model.observe_prefill(u, h, elapsed);
    }

    fn step(&mut self, model: &mut LatencyModel, disturbed: f64) {
        let batch = self.random.random_range(0.0..200f64.ln()).exp().round();
        let kv = batch * self.random.random_range(500.0..30_000.0);
        let seconds = self.coefficients.step_s(batch, kv) * disturbed;
        let elapsed = self.noisy(seconds);
        model.observe_step(batch, kv, elapsed);
    }
}

fn off(learnt: f64, truth: f64) -> f64 {
    (learnt / truth - 1.0).abs()
}

/// How far off predictions are over traffic like that which taught: in the mean, and at the furthest.
fn errors(model: &LatencyModel, truth: &Coefficients) -> (f64, f64) {
    let learnt = model.coefficients();
    let prefills =
        [60, 250, 1_000, 4_000, 16_000, 39_000].into_iter().flat_map(|u| [0, 40_000, 79_000].map(|h| (u, h)));
    let prefills = prefills.map(|(u, h)| off(learnt.prefill_s(u, h), truth.prefill_s(u, h)));
    let steps = [(1.0, 2e3), (4.0, 6e4), (16.0, 1e5), (60.0, 1e6), (190.0, 2e6)];
    let steps = steps.into_iter().map(|(b, kv)| off(learnt.step_s(b, kv), truth.step_s(b, kv)));
    let all: Vec<f64> = prefills.chain(steps).collect();
    (all.iter().sum::<f64>() / all.len() as f64, all.iter().copied().fold(0.0, f64::max))
}

fn assumed() -> LatencyModel {
    LatencyModel::new(&Coefficients::assumed(8_000.0))
}

prop_compose! {
    /// Engines from a small card to a large one.
    fn engines()(
        p0 in 0.005..0.05, rate in 2e3..5e4, p2 in 1e-10..4e-9, a in 0.004..0.03, b in 2e-5..4e-4, c in 3e-9..6e-8
    ) -> Coefficients {
        Coefficients { prefill: [p0, 1.0 / rate, p2], decode: [a, b, c] }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn coefficients_are_recovered_from_noisy_samples(coefficients in engines(), seed: u64) {
        let mut truth = Truth { coefficients, noise: 0.1, random: ChaCha8Rng::seed_from_u64(seed) };
        let mut model = assumed();
        for _ in 0..1_500 {
            truth.prefill(&mut model, 1.0);
            truth.step(&mut model, 1.0);
        }
        let learnt = model.coefficients();
        let (mean, worst) = errors(&model, &coefficients);
        prop_assert!(mean < 0.03 && worst < 0.12, "{mean} {worst} {learnt:?} {coefficients:?}");
        let (prefill, step) = model.error_ratios();
        // The noise itself is off by 5 % in the mean.
        prop_assert!(prefill.unwrap() < 0.12 && step.unwrap() < 0.12);
    }

    /// One sample in twenty is a hiccup of ten to fifty times.
    #[test]
    fn outliers_are_survived(coefficients in engines(), seed: u64) {
        let mut truth = Truth { coefficients, noise: 0.1, random: ChaCha8Rng::seed_from_u64(seed) };
        let mut model = assumed();
        for _ in 0..1_500 {
            let hiccup = if truth.random.random_bool(0.05) { truth.random.random_range(10.0..50.0) } else { 1.0 };
            truth.prefill(&mut model, hiccup);
            truth.step(&mut model, hiccup);
        }
        let (mean, worst) = errors(&model, &coefficients);
        prop_assert!(mean < 0.12 && worst < 0.3, "{mean} {worst} {:?} {coefficients:?}", model.coefficients());
    }

    /// An engine that is half as fast from now on, for good, is no outlier.
    #[test]
    fn a_change_for_good_is_followed(coefficients in engines(), seed: u64) {
        let mut truth = Truth { coefficients, noise: 0.1, random: ChaCha8Rng::seed_from_u64(seed) };
        let mut model = assumed();
        for round in 0..1_800 {
            let disturbed = if round < 600 { 1.0 } else { 2.0 };
            truth.prefill(&mut model, disturbed);
            truth.step(&mut model, disturbed);
        }
        let slower = Coefficients { prefill: coefficients.prefill.map(|p| 2.0 * p), decode: coefficients.decode.map(|d| 2.0 * d) };
        let (mean, worst) = errors(&model, &slower);
        prop_assert!(mean < 0.05 && worst < 0.2, "{mean} {worst} {:?} {slower:?}", model.coefficients());
    }

    /// Equal samples teach one point. It is met, and elsewhere the prediction stays sane however long that goes on.
    #[test]
    fn constant_inputs_wind_nothing_up(coefficients in engines(), u in 100u64..20_000, h in 0u64..50_000) {
        let mut model = assumed();
        let took = Nanos::from_secs_f64(coefficients.prefill_s(u, h));
        for _ in 0..5_000 {
            model.observe_prefill(u, h, took);
        }
        prop_assert!(off(model.prefill(u, h).as_secs_f64(), took.as_secs_f64()) < 0.02);
        for (u, h) in [(1, 0), (100_000, 0), (1_000, 1_000_000)] {
            let elsewhere = model.prefill(u, h).as_secs_f64();
            prop_assert!(elsewhere.is_finite() && elsewhere < 1e5, "{elsewhere}");
        }
        // And a second point is learnt at once when it comes.
        let (u, h) = (2 * u, h / 2);
        let took = Nanos::from_secs_f64(coefficients.prefill_s(u, h));
        for _ in 0..60 {
            model.observe_prefill(u, h, took);
        }
        prop_assert!(off(model.prefill(u, h).as_secs_f64(), took.as_secs_f64()) < 0.1);
    }

    /// Whatever is observed, nothing is ever predicted to take less than no time, or to be no number.
    #[test]
    fn predictions_are_never_negative(
        samples in proptest::collection::vec((0u64..200_000, 0u64..1_000_000, 0u64..100_000_000_000, 0.0..300.0, 0.0..1e7), 1..60)
    ) {
        let mut model = assumed();
        for (u, h, ns, batch, kv) in samples {
            model.observe_prefill(u, h, Nanos(ns));
            model.observe_step(batch, kv, Nanos(ns / 1_000));
            let Coefficients { prefill, decode } = model.coefficients();
            prop_assert!(prefill.iter().chain(&decode).all(|c| c.is_finite() && *c >= 0.0), "{prefill:?} {decode:?}");
        }
        // More work never takes less time.
        prop_assert!(model.prefill(2_000, 500) >= model.prefill(1_000, 500));
        prop_assert!(model.step(9.0, 1e6) >= model.step(8.0, 1e6));
    }
}

#[test]
fn before_anything_is_seen_the_prior_speaks() {
    let mut model = assumed();
    assert_eq!(model.samples(), (0, 0));
    assert_eq!(model.error_ratios(), (None, None));
    assert!(off(model.prefill(8_000, 0).as_secs_f64(), 1.02) < 1e-6);
    let peers = Coefficients { prefill: [0.01, 1e-5, 1e-9], decode: [0.02, 1e-4, 2e-8] };
    model.set_prior(&peers);
    assert!(off(model.prefill(8_000, 4_000).as_secs_f64(), peers.prefill_s(8_000, 4_000)) < 1e-6);
    assert_eq!(model.observe_prefill(0, 5, Nanos::from_secs(1)), None);
    assert_eq!(model.observe_step(f64::NAN, 5.0, Nanos::from_secs(1)), None);
    let judged = model.observe_prefill(8_000, 4_000, Nanos::from_secs_f64(2.0 * peers.prefill_s(8_000, 4_000)));
    assert!(off(judged.unwrap().error_ratio(), 0.5) < 1e-6);
}

#[test]
fn peers_speak_through_the_middle_one() {
    let with = |rate: f64| Coefficients::assumed(rate);
    assert_eq!(Coefficients::median(&[]), None);
    assert_eq!(Coefficients::median(&[with(1_000.0), with(9_000.0), with(5_000.0)]), Some(with(5_000.0)));
}
