//! The judge: every stage once more in f64, from its definition and in the plainest way.
//!
//! It shares no code with the CPU or the GPU path: it has its own number formats, Hadamard matrices,
//! bit unpacking and sorting, so that an error in a shared helper cannot hide. Slow, and panics on
//! shapes that do not fit; only tests and `wgkv conformance` call it.

pub mod attention;
pub mod codec;
pub mod nestedkv;
pub mod nsnquant;

use crate::shape::Elements;

/// The value of IEEE half bits; infinities and NaN included.
pub fn from_f16(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 31);
    let fraction = f64::from(bits & 1023);
    sign * match (exponent, fraction != 0.0) {
        (31, true) => f64::NAN,
        (31, false) => f64::INFINITY,
        (0, _) => fraction * 2f64.powi(-24),
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

/// The value of bfloat16 bits; infinities and NaN included.
pub fn from_bf16(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 7 & 255);
    let fraction = f64::from(bits & 127);
    sign * match (exponent, fraction != 0.0) {
        (255, true) => f64::NAN,
        (255, false) => f64::INFINITY,
        (0, _) => fraction * 2f64.powi(-133),
        _ => (128.0 + fraction) * 2f64.powi(exponent - 134),
    }
}

/// The bits of the half nearest to a number, ties to even; beyond the range infinity.
pub fn to_f16(value: f64) -> u16 {
    let sign = u16::from(value.is_sign_negative()) << 15;
    let size = value.abs();
    if size.is_nan() {
        return sign | 0x7e00;
    }
    // Positive halves are ordered as their bits are: the nearest is found among all of them.
    let (mut low, mut high) = (0u16, 0x7c00u16);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if from_f16(middle) <= size {
            low = middle;
        } else {
            high = middle;
        }
    }
    // What a half of unbounded range would hold after the largest finite one.
    let above = if high == 0x7c00 { 65536.0 } else { from_f16(high) };
    let (down, up) = (size - from_f16(low), above - size);
    sign | if size >= 65536.0 || up < down || (up == down && low % 2 == 1) { high } else { low }
}

/// Elements as f64 by this module's own decoding, NaN and Inf kept.
pub fn widen(elements: Elements<'_>) -> Vec<f64> {
    match elements {
        Elements::F32(x) => x.iter().map(|x| f64::from(*x)).collect(),
        Elements::F16(x) => x.iter().map(|x| from_f16(x.to_bits())).collect(),
        Elements::Bf16(x) => x.iter().map(|x| from_bf16(x.to_bits())).collect(),
    }
}

/// The one treatment of non-finite values: they read as 0.
pub fn tame(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}
