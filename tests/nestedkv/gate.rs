//! The score from its parts.

use proptest::prelude::*;
use wgkv::gpu::Slice;
use wgkv::nestedkv::cpu;
use wgkv::nestedkv::gpu::gate;
use wgkv::nestedkv::plan::GRID;

use super::cases::{config, extremes, few, uniform, upload};
use crate::support;

#[test]
fn a_shut_gate_gives_the_blend_and_an_open_one_the_strongest() {
    let scales = [[0.1f32, 0.9, 0.4], [0.2, 0.0, 0.4], [0.3, 0.1, 0.4]];
    let scales = [scales[0].as_slice(), scales[1].as_slice(), scales[2].as_slice()];
    let blend = [0.2, 0.35, 0.4];
    let shut = cpu::surprise_gated_score(scales, &blend, 1e6, 1e6, false).expect("scores");
    assert_eq!(shut, blend);
    let open = cpu::surprise_gated_score(scales, &blend, -1e6, 1e6, false).expect("scores");
    for (got, want) in open.iter().zip([0.3, 0.9, 0.4]) {
        assert!((got - want).abs() < 1e-6);
    }
}

proptest! {
    #![proptest_config(few(16))]

    #[test]
    fn gpu_equals_cpu(
        rows in 1usize..=9,
        tokens in prop_oneof![1usize..300, 300usize..3000],
        seed in 0u32..1000,
        config in config(),
    ) {
        let count = rows * tokens;
        let unit = |seed, len| -> Vec<f32> { uniform(seed, len).iter().map(|x| (x + 1.0) / 2.0).collect() };
        let scales = unit(seed, 3 * count);
        let blends = unit(seed + 1, count);
        let mut deviations = vec![0.0; count];
        let (s, rest) = scales.split_at(count);
        let (e, c) = rest.split_at(count);
        cpu::surprise::deviation([s, e, c], &mut deviations);
        // Every seventh key row holds NaN or Inf.
        let factors: Vec<f32> = (0..count).map(|i| if i % 7 == 3 { -2.0 } else { 2.0 }).collect();
        let surprises: Vec<[u32; 4]> = deviations
            .chunks(tokens)
            .zip(extremes(&deviations, tokens))
            .map(|(row, [highest, lowest])| {
                let sum: u32 = row.iter().map(|x| (x * GRID).round() as u32 & 0xffff).sum();
                let high: u32 = row.iter().map(|x| (x * GRID).round() as u32 >> 16).sum();
                [highest, lowest, sum, high]
            })
            .collect();
        let buffers = [upload(&factors), upload(&scales), upload(&blends), upload(&deviations)];
        let surprises = upload(&surprises);
        let scores = support::run(|rec| {
            let parts = gate::Parts {
                factors: Slice::all(&buffers[0]),
                scales: Slice::all(&buffers[1]),
                blends: Slice::all(&buffers[2]),
                deviations: Slice::all(&buffers[3]),
                surprises: Slice::all(&surprises),
            };
            gate::record(rec, &parts, rows, tokens, &config)
        });
        let got: Vec<f32> = support::download_as(&scores.expect("scores"));
        let want = cpu::surprise_gated_score_batched(
            [s, e, c], &blends, rows, config.tau, config.kappa, config.rectify,
        ).expect("scores");
        for (index, (got, want)) in got.iter().zip(&want).enumerate() {
            if index % 7 == 3 {
                prop_assert_eq!(*got, -1.0);
            } else {
                // A surprise is exact to 2e-6; the gate's slope is kappa / 4 at most, wherever the
                // deviations of the row are not nearly equal.
                let tolerance = 4e-6 + config.kappa.abs() * 2e-6;
                prop_assert!(tokens < 20 || (got - want).abs() < tolerance, "{} against {}", got, want);
            }
        }
    }
}
