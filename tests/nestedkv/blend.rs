//! Weights and blend.

use proptest::prelude::*;
use wgkv::gpu::Slice;
use wgkv::nestedkv::cpu::{blend as cpu_blend, spread as cpu_spread, surprise};
use wgkv::nestedkv::gpu::{blend, spread};
use wgkv::nestedkv::plan::GRID;

use super::cases::{config, difference, extremes, few, uniform, upload};
use crate::support;

#[test]
fn equal_gaps_give_the_prior() {
    let weights = cpu_blend::weights([0.3; 3], 3.0, [0.4, 0.4, 0.2], 100);
    for (got, want) in weights.iter().zip([0.4, 0.4, 0.2]) {
        assert!((got - want).abs() < 1e-6);
    }
    // One token: the prior as it is, even where it does not add up to 1.
    assert_eq!(cpu_blend::weights([0.0; 3], 3.0, [1.0, 2.0, 5.0], 1), [1.0, 2.0, 5.0]);
}

#[test]
fn extreme_constants_stay_finite() {
    for beta in [-1e6, 1e6] {
        let weights = cpu_blend::weights([1.0, 0.5, 0.0], beta, [1e-6, 1.0, 1e6], 100);
        assert!(weights.iter().all(|w| (0.0..=1.0).contains(w)), "{weights:?}");
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
        let raw = uniform(seed, 3 * count);
        let (buffer, ends) = (upload(&raw), upload(&extremes(&raw, tokens)));
        let outputs = support::run(|rec| {
            let scales = Slice::all(&buffer);
            let spreads = spread::record(rec, scales, Slice::all(&ends), 3 * rows, tokens)?;
            blend::record(rec, scales, Slice::all(&spreads), rows, tokens, &config)
        });
        let found = outputs.expect("a blend");
        let mut scales = raw;
        scales.chunks_mut(tokens).for_each(cpu_spread::normalise);
        let mut want = vec![0.0; count];
        let mut deviation = vec![0.0; count];
        for row in 0..rows {
            let part: [&[f32]; 3] =
                core::array::from_fn(|k| &scales[k * count + row * tokens..][..tokens]);
            let weights =
                cpu_blend::weights(part.map(cpu_spread::gap), config.beta, config.prior, tokens);
            let range = row * tokens..(row + 1) * tokens;
            cpu_blend::blend(part, weights, &mut want[range.clone()]);
            surprise::deviation(part, &mut deviation[range]);
        }
        prop_assert!(difference(&support::download_as(&buffer), &scales) < 1e-6);
        let tolerance = 1e-5 * want.iter().copied().fold(1.0, f32::max);
        prop_assert!(difference(&support::download_as(&found.blends), &want) < tolerance);
        let deviations: Vec<f32> = support::download_as(&found.deviations);
        prop_assert!(difference(&deviations, &deviation) < 2e-6);
        let surprises: Vec<[u32; 4]> = support::download_as(&found.surprises);
        let lines = deviations.chunks(tokens).zip(extremes(&deviations, tokens));
        for ((line, ends), [highest, lowest, low, high]) in lines.zip(surprises) {
            prop_assert_eq!([highest, lowest], ends);
            let sum: u64 = line.iter().map(|x| (x * GRID).round_ties_even() as u64).sum();
            prop_assert_eq!(u64::from(low) + (u64::from(high) << 16), sum);
        }
    }
}
