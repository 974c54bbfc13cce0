//! Means of rows.

use proptest::prelude::*;
use wgkv::gpu::Slice;
use wgkv::nestedkv::cpu::mean::{BLOCKS_PER_TASK, mean as cpu_mean};
use wgkv::nestedkv::gpu::mean;
use wgkv::nestedkv::plan::GRID;

use super::cases::{DIMS, few, uniform, upload};
use crate::support;

proptest! {
    #![proptest_config(few(16))]

    /// The order of the sums is the same, so only the last division may differ.
    #[test]
    fn gpu_equals_cpu(
        rows in 1usize..=9,
        blocks in 1usize..100,
        dim in prop::sample::select(DIMS.to_vec()),
        seed in 0u32..1000,
    ) {
        let grid: Vec<i32> =
            uniform(seed, rows * blocks * dim).iter().map(|x| (x * 200.0 * GRID) as i32).collect();
        let sums: Vec<f32> = grid.iter().map(|&x| x as f32 / GRID).collect();
        let tokens = blocks * 200;
        let buffer = upload(&grid);
        let means = support::run(|rec| {
            mean::record(rec, Slice::all(&buffer), rows, blocks, dim, tokens)
        });
        let got: Vec<f32> = support::download_as(&means.expect("means"));
        for (row, got) in got.chunks(dim).enumerate() {
            let tasks: Vec<Vec<f32>> = sums[row * blocks * dim..(row + 1) * blocks * dim]
                .chunks(BLOCKS_PER_TASK * dim)
                .map(|task| {
                    (0..dim).map(|c| task.chunks(dim).fold(0.0, |sum, block| sum + block[c])).collect()
                })
                .collect();
            let want = cpu_mean(tasks.iter().map(Vec::as_slice), dim, tokens);
            for (g, w) in got.iter().zip(&want) {
                prop_assert!((g - w).abs() <= 3e-7 * w.abs(), "{} against {}", g, w);
            }
        }
    }
}
