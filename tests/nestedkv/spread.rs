//! Span and gap of scores.

use proptest::prelude::*;
use wgkv::gpu::Slice;
use wgkv::nestedkv::cpu::spread::{gap, normalise};
use wgkv::nestedkv::gpu::spread;
use wgkv::nestedkv::plan::group_size;

use super::cases::{extremes, few, uniform, upload};
use crate::support;

#[test]
fn groups_are_a_tenth_with_halves_to_even() {
    for (n, want) in [
        (1, 1),
        (4, 1),
        (5, 1),
        (14, 1),
        (15, 2),
        (16, 2),
        (24, 2),
        (25, 2),
        (26, 3),
        (35, 4),
        (45, 4),
        (55, 6),
        (65, 6),
        (85, 8),
        (100, 10),
        (131_072, 13_107),
    ] {
        assert_eq!(group_size(n), want, "{n}");
    }
}

#[test]
fn gap_is_that_of_sorted_scores() {
    for n in [1, 2, 9, 10, 25, 64, 100, 1000] {
        // Quantised, so that there are ties at the border.
        let scores: Vec<f32> =
            uniform(n as u32, n).iter().map(|x| (x * 8.0).round() / 8.0).collect();
        let mut sorted = scores.clone();
        sorted.sort_by(f32::total_cmp);
        let m = group_size(n);
        let mean = |part: &[f32]| part.iter().map(|x| f64::from(*x)).sum::<f64>() / m as f64;
        let want = mean(&sorted[n - m..]) - mean(&sorted[..m]);
        assert!((f64::from(gap(&scores)) - want).abs() < 1e-6, "{n}");
    }
}

#[test]
fn a_span_of_rounding_is_none() {
    let mut scores = [0.5, 0.5 + 5e-7, 0.5, 0.5];
    normalise(&mut scores);
    assert_eq!(scores, [0.0; 4]);
    let mut scores = [0.5, 0.51];
    normalise(&mut scores);
    assert_eq!(scores, [0.0, 1.0]);
}

proptest! {
    #![proptest_config(few(24))]

    #[test]
    fn gpu_equals_cpu(
        lines in 1usize..=9,
        tokens in prop_oneof![3 => 1usize..300, 3 => 300usize..3000, 1 => 4000usize..9000],
        seed in 0u32..1000,
        levels in prop_oneof![Just(0.0f32), 1.0f32..20.0],
        offset in -2.0f32..2.0,
    ) {
        let mut scores = uniform(seed, lines * tokens);
        for x in &mut scores {
            *x = if levels > 0.0 { (*x * levels).round() / levels } else { *x } + offset;
        }
        let (buffer, ends) = (upload(&scores), upload(&extremes(&scores, tokens)));
        let spreads = support::run(|rec| {
            spread::record(rec, Slice::all(&buffer), Slice::all(&ends), lines, tokens)
        });
        let got: Vec<[f32; 4]> = support::download_as(&spreads.expect("spreads"));
        for (line, got) in scores.chunks_mut(tokens).zip(got) {
            let low = line.iter().copied().fold(f32::INFINITY, f32::min);
            let high = line.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let flat = high - low <= 1e-6;
            prop_assert_eq!(got[0], low);
            prop_assert_eq!(got[1], if flat { 0.0 } else { high - low });
            normalise(line);
            prop_assert!((got[2] - gap(line)).abs() < 2e-6, "{} against {}", got[2], gap(line));
        }
    }
}
