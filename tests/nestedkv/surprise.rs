//! Disagreement of the scales.

use wgkv::nestedkv::cpu::surprise::{centre, deviation};

use super::cases::uniform;

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
