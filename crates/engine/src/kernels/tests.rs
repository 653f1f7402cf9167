use super::exact::{ln, pow, sin_cos};
use super::*;
use crate::team::Team;
use proptest::prelude::*;

#[test]
fn exp_ln_and_sin_cos_are_accurate() {
    for i in -8_700..8_800 {
        let x = i as f32 / 100.0;
        let want = f64::from(x).exp();
        assert!(((f64::from(exp(x)) - want) / want).abs() < 3e-7, "exp({x})");
    }
    for i in 0..50_000 {
        let x = f64::from(i) * 0.6543;
        let (sin, cos) = sin_cos(x);
        assert!((sin - x.sin()).abs() < 1e-10 && (cos - x.cos()).abs() < 1e-10, "angle {x}");
    }
    for i in 1..2_000 {
        let x = f64::from(i) * 517.3;
        assert!((ln(x) - x.ln()).abs() < 1e-14 * x.ln().abs(), "ln({x})");
        let exponent = -f64::from(i) / 2_000.0;
        let want = x.powf(exponent);
        assert!(((pow(x, exponent) - want) / want).abs() < 1e-13, "{x}^{exponent}");
    }
}

fn grid(rows: &[Vec<f32>]) -> Grid {
    let mut grid = Grid::new(rows.len(), rows[0].len());
    for (index, row) in rows.iter().enumerate() {
        for (block, values) in grid.row_mut(index).zip(row.chunks(LANES)) {
            block.0.copy_from_slice(values);
        }
    }
    grid
}

fn bits(grid: &Grid, row: usize) -> Vec<u32> {
    grid.row(row).flat_map(|block| block.0).map(f32::to_bits).collect()
}

/// The rule itself: one chain of fused multiply-adds over the inputs, first to last.
fn plain(matrix: &Matrix, x: &[f32]) -> Vec<u32> {
    let bias = matrix.bias().unwrap_or_else(|| vec![0.0; matrix.outputs()]);
    (0..matrix.outputs())
        .map(|output| x.iter().zip(matrix.output(output)).fold(bias[output], |sum, (x, w)| x.mul_add(w, sum)).to_bits())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_product_is_one_chain_per_output_whatever_shares_it(
        rows in 1usize..60,
        inputs in 1usize..40,
        outputs in 1usize..12,
        biased in any::<bool>(),
        threads in 1usize..4,
        seed in any::<u32>(),
    ) {
        let (inputs, outputs) = (inputs * LANES, outputs * LANES);
        let mut state = seed | 1;
        let mut value = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
        };
        let mut matrix = Matrix::from_fn(inputs, outputs, |_, _| value());
        if biased {
            matrix.set_bias(&(0..outputs).map(|_| value()).collect::<Vec<_>>());
        }
        let rows: Vec<Vec<f32>> = (0..rows).map(|_| (0..inputs).map(|_| value()).collect()).collect();
        let x = grid(&rows);
        let team = Team::eager(threads).unwrap();
        for isa in Isa::all() {
            let mut y = Grid::default();
            team.enter(|| matrix.multiply(isa, &team, &x, &mut y));
            for (index, row) in rows.iter().enumerate() {
                prop_assert_eq!(bits(&y, index), plain(&matrix, row), "{} row {}", isa.name(), index);
            }
        }
    }

    #[test]
    fn norms_and_activation_are_the_same_bits_everywhere(
        rows in prop::collection::vec(prop::collection::vec(-30.0f32..30.0, 64), 1..8),
        pick in any::<prop::sample::Index>(),
    ) {
        let x = grid(&rows);
        let row = pick.index(rows.len());
        let alone = grid(&rows[row..=row]);
        let gain: Vec<Block> = (0..4).map(|i| Block([0.5 + i as f32; LANES])).collect();
        let team = Team::alone();
        let mut expected = None;
        for isa in Isa::all() {
            for (x, row) in [(&x, row), (&alone, 0)] {
                let (mut normed, mut gated) = (Grid::default(), Grid::default());
                elementwise::rms_norm(isa, x, &gain, 1e-6, &mut normed);
                elementwise::swiglu(isa, &team, x, &mut gated);
                let got = (bits(&normed, row), bits(&gated, row));
                prop_assert_eq!(expected.get_or_insert_with(|| got.clone()), &got, "{}", isa.name());
            }
        }
    }
}

#[test]
fn parts_lie_side_by_side_and_outputs_are_read_as_they_were_set() {
    let part = |shift: f32| {
        let mut part = Matrix::from_fn(16, 32, |i, o| i as f32 + 100.0 * o as f32 + shift);
        part.set_bias(&[shift; 32]);
        part
    };
    let mut all = Matrix::beside(vec![part(0.0), part(0.25), part(0.5)]);
    assert_eq!((all.inputs(), all.outputs()), (16, 96));
    assert_eq!(all.bias().unwrap()[31..33], [0.0, 0.25]);
    assert_eq!(all.output(33).collect::<Vec<_>>(), (0..16).map(|i| i as f32 + 100.25).collect::<Vec<_>>());
    all.set_output(70, (0..16).map(|i| -(i as f32)));
    assert_eq!(all.output(70).collect::<Vec<_>>(), (0..16).map(|i| -(i as f32)).collect::<Vec<_>>());
    assert_eq!(all.output(71).next(), Some(700.5));
}
