//! Step 1: the factor that brings a key row to norm 1.

use crate::nestedkv::plan::NORM_FLOOR;
use crate::primitives::math::add_lanes;

/// `2^24`: factors are stored times this, and elements are read divided by it, so that neither the
/// factor of the largest row nor that of the smallest leaves f32's normal range.
pub const LIFT: f32 = 16_777_216.0;

/// The factor of rows whose norm is below the floor; all others have less.
pub const FLOOR_FACTOR: f32 = LIFT / NORM_FLOOR;

/// The factor of a row, times [`LIFT`]: `LIFT / max(|x|, 1e-12)`.
///
/// The squares are taken of `x * 2^-e`, where `e` is the exponent of the largest magnitude, clamped
/// to -64 to 100; exponents from -30 to 30 need no scaling.
pub fn factor(row: &[f32]) -> f32 {
    let mut largest = [0.0f32; 8];
    for x in row.chunks_exact(8) {
        for lane in 0..8 {
            let magnitude = x[lane].abs();
            largest[lane] = if magnitude > largest[lane] { magnitude } else { largest[lane] };
        }
    }
    let largest = largest.into_iter().fold(0.0f32, |a, b| if b > a { b } else { a });
    let biased = (largest.to_bits() >> 23) as i32;
    let exponent = if (97..=157).contains(&biased) { 0 } else { (biased - 127).clamp(-64, 100) };
    let scale = power_of_two(-exponent);
    let norm = scaled_norm(row, scale);
    if exponent <= 0 && norm * power_of_two(exponent) < NORM_FLOOR {
        FLOOR_FACTOR
    } else {
        LIFT * scale / norm
    }
}

/// [`factor`] of a row of f16 values, which are all moderate.
pub fn factor_moderate(row: &[f32]) -> f32 {
    let norm = scaled_norm(row, 1.0);
    if norm < NORM_FLOOR { FLOOR_FACTOR } else { LIFT / norm }
}

/// Norm of a row times `scale`, summed as [`crate::primitives::math::dot`] does.
fn scaled_norm(row: &[f32], scale: f32) -> f32 {
    let mut lanes = [0.0f32; 8];
    for part in row.chunks(64) {
        let mut sums = [0.0f32; 8];
        for x in part.chunks_exact(8) {
            for lane in 0..8 {
                let scaled = x[lane] * scale;
                sums[lane] += scaled * scaled;
            }
        }
        for lane in 0..8 {
            lanes[lane] += sums[lane];
        }
    }
    add_lanes(lanes).sqrt()
}

/// Brings a row to norm 1 by its [`factor`].
pub fn apply(row: &mut [f32], factor: f32) {
    for x in row {
        *x = (*x * (1.0 / LIFT)) * factor;
    }
}

fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}
