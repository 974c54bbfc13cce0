//! Arithmetic that does not come from the platform.

use wgkv::primitives::math::{dot, exp, min_max, sum_by};
use wgkv::primitives::order::order_key;

#[test]
fn exp_is_within_three_units_in_the_last_place() {
    let mut x = -86.0f32;
    while x < 86.0 {
        let want = f64::from(x).exp();
        let error = (f64::from(exp(x)) - want).abs() / want;
        assert!(error < 3.0 * f64::from(f32::EPSILON), "{x}: {error:e}");
        x += 0.00937;
    }
    assert_eq!(exp(0.0), 1.0);
    assert!(exp(f32::INFINITY).is_finite() && exp(f32::NEG_INFINITY) > 0.0);
}

#[test]
fn sums_and_extremes() {
    let values: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
    let want: f64 = values.iter().map(|x| f64::from(*x)).sum();
    assert!((f64::from(sum_by(&values, |x| x)) - want).abs() < 1e-4);
    let (low, high) = min_max(&values);
    assert_eq!(low, values.iter().copied().fold(f32::INFINITY, f32::min));
    assert_eq!(high, values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    assert_eq!(min_max(&[]), (0.0, 0.0));
    let a: Vec<f32> = (0..64).map(|i| i as f32).collect();
    assert_eq!(dot(&a, &a), (0..64).map(|i| (i * i) as f32).sum::<f32>());
}

#[test]
fn keys_order_as_scores_do() {
    let rising = [
        f32::NEG_INFINITY,
        -3e38,
        -1.0,
        -1e-38,
        -1e-45,
        0.0,
        1e-45,
        1e-38,
        0.5,
        1.0,
        3e38,
        f32::INFINITY,
    ];
    for pair in rising.windows(2) {
        assert!(order_key(pair[0]) < order_key(pair[1]), "{pair:?}");
    }
    assert_eq!(order_key(-0.0), order_key(0.0));
    for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)] {
        assert_eq!(order_key(nan), 0);
        assert!(order_key(nan) < order_key(f32::NEG_INFINITY));
    }
    assert!(order_key(f32::INFINITY) < wgkv::primitives::order::SINK_KEY);
}
