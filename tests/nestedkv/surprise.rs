//! Disagreement of the scales.

use proptest::prelude::*;
use wgkv::gpu::Slice;
use wgkv::nestedkv::cpu::surprise::{centre, deviation};
use wgkv::nestedkv::gpu::surprise;

use super::cases::{few, uniform, upload};
use crate::support;

#[test]
fn deviation_is_the_population_one() {
    let mut out = [0.0; 2];
    deviation([&[0.0, 0.3], &[0.5, 0.3], &[1.0, 0.3]], &mut out);
    assert!((f64::from(out[0]) - (1.0f64 / 6.0).sqrt()).abs() < 1e-6);
    assert!(out[1] < 1e-6);
}

#[test]
fn centred_surprise_has_mean_zero_and_span_one() {
    let mut surprise: Vec<f32> = uniform(9, 1000).iter().map(|x| x.abs()).collect();
    centre(&mut surprise, false);
    let mean = surprise.iter().map(|x| f64::from(*x)).sum::<f64>() / 1000.0;
    assert!(mean.abs() < 1e-6);
    let low = surprise.iter().copied().fold(f32::INFINITY, f32::min);
    let high = surprise.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    assert!((high - low - 1.0).abs() < 1e-6);
    let mut rectified: Vec<f32> = uniform(9, 1000).iter().map(|x| x.abs()).collect();
    centre(&mut rectified, true);
    for (r, s) in rectified.iter().zip(&surprise) {
        assert_eq!(*r, s.max(0.0));
    }
}

proptest! {
    #![proptest_config(few(16))]

    #[test]
    fn gpu_equals_cpu(
        rows in 1usize..=9,
        tokens in prop_oneof![1usize..300, 300usize..3000],
        seed in 0u32..1000,
        size in prop::sample::select(vec![0.0f32, 1e-7, 1e-3, 1.0]),
    ) {
        let deviations: Vec<f32> =
            uniform(seed, rows * tokens).iter().map(|x| x.abs() * size).collect();
        let buffer = upload(&deviations);
        let found = support::run(|rec| surprise::record(rec, Slice::all(&buffer), rows, tokens));
        let got: Vec<[f32; 4]> = support::download_as(&found.expect("surprises"));
        for (row, got) in deviations.chunks(tokens).zip(got) {
            let low = row.iter().copied().fold(f32::INFINITY, f32::min);
            let high = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mean = row.iter().map(|x| f64::from(*x - low)).sum::<f64>() / tokens as f64;
            prop_assert_eq!(got[0], low);
            prop_assert_eq!(got[1], if high - low <= 1e-6 { 0.0 } else { high - low });
            prop_assert!((f64::from(got[2]) - mean).abs() <= 1e-6 * f64::from(size));
        }
    }
}
