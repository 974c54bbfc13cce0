//! Factors of key rows.

use half::f16;
use proptest::prelude::*;
use wgkv::nestedkv::cpu::norm::{LIFT, apply, factor, factor_moderate};
use wgkv::nestedkv::gpu::anchor;

use super::cases::{DIMS, few, problem};
use crate::support;

#[test]
fn norm_is_one_from_the_smallest_row_to_the_largest() {
    for dim in DIMS {
        for scale in [1e-11f32, 3e-10, 1e-9, 1.0, 7.5, 1e9, 1.5e9, 1e20, 3e38] {
            let mut row: Vec<f32> = (0..dim).map(|c| scale * (1.0 - c as f32 / 600.0)).collect();
            let f = factor(&row);
            apply(&mut row, f);
            let norm: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            assert!((norm - 1.0).abs() < 1e-6, "dim {dim}, scale {scale}: {norm}");
        }
    }
}

#[test]
fn rows_of_f16_need_no_scaling() {
    for problem in [1e-7f32, 6e-8, 1e-3, 1.0, 300.0, 65504.0, 0.0] {
        let row: Vec<f32> =
            (0..80).map(|c| f16::from_f32(problem * (1.0 - c as f32 / 100.0)).to_f32()).collect();
        assert_eq!(factor(&row), factor_moderate(&row), "{problem}");
    }
}

#[test]
fn rows_below_the_floor_are_divided_by_the_floor() {
    for scale in [0.0f32, 1e-45, 1e-38, 1e-20, 1e-14] {
        let mut row = [scale; 64];
        let f = factor(&row);
        assert_eq!(f, LIFT / 1e-12);
        apply(&mut row, f);
        assert!(
            (f64::from(row[0]) - f64::from(scale) / 1e-12).abs()
                <= 1e-6 * f64::from(scale) / 1e-12 + 1e-24
        );
    }
}

proptest! {
    #![proptest_config(few(24))]

    #[test]
    fn gpu_equals_cpu(problem in problem()) {
        let buffer = problem.upload();
        let tensor = problem.tensor(&buffer);
        let block = problem.tokens.min(256);
        let found = support::run(|rec| anchor::record(rec, &tensor, block)).expect("factors");
        let got: Vec<f32> = support::download_as(&found.factors);
        let keys = problem.keys();
        let mut row = vec![0.0; problem.dim];
        for (token, got) in got.into_iter().enumerate() {
            let bad = keys.view().read(token * problem.dim, &mut row);
            prop_assert_eq!(got < 0.0, bad, "token {}", token);
            let want = factor(&row);
            prop_assert!((got.abs() / want - 1.0).abs() < 2e-6, "token {}: {} against {}", token, got, want);
        }
    }
}
