//! Means of rows.

use proptest::prelude::*;
use wgkv::gpu::Slice;
use wgkv::nestedkv::gpu::mean;
use wgkv::nestedkv::plan::GRID;

use super::cases::{DIMS, few, uniform, upload};
use crate::support;

proptest! {
    #![proptest_config(few(16))]

    /// The sums are exact, so only the last steps round.
    #[test]
    fn gpu_equals_cpu(
        rows in 1usize..=9,
        runs in 1usize..200,
        dim in prop::sample::select(DIMS.to_vec()),
        seed in 0u32..1000,
    ) {
        let grid: Vec<i32> =
            uniform(seed, rows * runs * dim).iter().map(|x| (x * 64.0 * GRID) as i32).collect();
        let tokens = runs * 64;
        let buffer = upload(&grid);
        let means = support::run(|rec| {
            mean::record(rec, Slice::all(&buffer), rows, runs, dim, tokens)
        });
        let got: Vec<f32> = support::download_as(&means.expect("means"));
        for (row, got) in got.chunks(dim).enumerate() {
            let sums = &grid[row * runs * dim..(row + 1) * runs * dim];
            for (channel, got) in got.iter().enumerate() {
                let sum: i64 = sums.iter().skip(channel).step_by(dim).map(|&x| i64::from(x)).sum();
                let want = sum as f64 / f64::from(GRID) / tokens as f64;
                let error = (f64::from(*got) - want).abs();
                prop_assert!(error <= 5e-7 * want.abs(), "{} against {}", got, want);
            }
        }
    }
}
