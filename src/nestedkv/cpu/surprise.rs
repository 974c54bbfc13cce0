//! Step 7: how much the three scales disagree about a token.

use crate::nestedkv::plan::FLAT_SPAN;
use crate::primitives::math::{min_max, sum_by};

/// Step 7: population standard deviation of the three scores of each token.
pub fn deviation(scales: [&[f32]; 3], out: &mut [f32]) {
    let [s, e, c] = scales;
    for (((out, &s), &e), &c) in out.iter_mut().zip(s).zip(e).zip(c) {
        let mean = (s + e + c) * (1.0 / 3.0);
        let (s, e, c) = (s - mean, e - mean, c - mean);
        *out = ((s * s + e * e + c * c) * (1.0 / 3.0)).sqrt();
    }
}

/// Step 7: stretches the deviations of a row to `[0, 1]` and subtracts their mean (arXiv 2605.26678,
/// appendix A); `rectify` then cuts below 0. A span up to [`FLAT_SPAN`] gives all zeros.
pub fn centre(deviations: &mut [f32], rectify: bool) {
    let (low, high) = min_max(deviations);
    let span = high - low;
    if span <= FLAT_SPAN {
        deviations.fill(0.0);
        return;
    }
    let mean = sum_by(deviations, |d| d - low) / deviations.len() as f32;
    for d in deviations {
        let centred = ((*d - low) - mean) / span;
        *d = if rectify && centred < 0.0 { 0.0 } else { centred };
    }
}
