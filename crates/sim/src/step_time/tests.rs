//! Many steps at once take what they take one by one, to the femtosecond.

use super::*;
use proptest::prelude::*;

fn loads() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1u64..130_000, 1..80)
}

fn load(contexts: &[u64], more: u64) -> DecodeLoad {
    DecodeLoad {
        requests: contexts.len() as u64,
        context_tokens: contexts.iter().map(|tokens| tokens + more).sum(),
        longest_tokens: contexts.iter().max().unwrap() + more,
    }
}

proptest! {
    #[test]
    fn a_run_is_the_sum_of_its_steps(which in 0usize..8, contexts in loads(), steps in 1u64..400) {
        let profile = plimsoll_timing::find(plimsoll_timing::names().nth(which).unwrap()).unwrap();
        let clock = StepClock::new(Box::new(profile.clone()));
        let (ramp, _) = clock.decode(load(&contexts, 0));
        let mut sum = 0u128;
        for step in 0..steps {
            let (single, _) = clock.decode(load(&contexts, step));
            prop_assert_eq!(single.first_fs, ramp.step_fs(step));
            sum += u128::from(single.first_fs);
        }
        prop_assert_eq!(sum, ramp.total_fs(steps));
        // And it is the model's own figure, but for the rounding of the slope.
        let mut shape = StepShape::default();
        contexts.iter().for_each(|tokens| shape.add_decode(*tokens));
        let wanted = profile.cost(&shape).total_us() * FS_PER_US;
        prop_assert!((ramp.first_fs as f64 / wanted - 1.0).abs() < 1e-6, "{} {}", ramp.first_fs, wanted);
    }

    #[test]
    fn steps_to_a_time_is_the_least_number(first in 1u64..1u64 << 40, growth in 0u64..1 << 30, span in 0u64..1 << 50, most in 1u64..5_000) {
        let ramp = Ramp { first_fs: first, growth_fs: growth };
        let steps = ramp.steps_to(u128::from(span), most);
        prop_assert!(steps == most || ramp.total_fs(steps) >= u128::from(span));
        prop_assert!(steps == 0 || ramp.total_fs(steps - 1) < u128::from(span));
    }
}
