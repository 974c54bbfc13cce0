//! Grids of 16 values, for scales and means of 4 bits.
//!
//! Logs and powers are made of plain arithmetic, so that every host and the shaders
//! (`wgsl/common/grid.wgsl`) agree but for the rounding of products that are fused.

use half::f16;

/// Largest code.
const TOP: f32 = 15.0;
/// The grid of scales reaches at most this far down from the largest, as a power of two: a row of
/// zeros must not take the resolution of the others.
pub const SCALE_RANGE: f32 = 10.0;
/// A linear grid of scales reaches down to this part of the largest: a smaller scale would take a
/// code that stands for many times less than it or for nothing.
pub const LINEAR_RANGE: f32 = 32.0;
/// Largest scale of a linear grid, whose ends are rounded.
const MAX_LINEAR: f32 = 1.5e38;
/// What low ends and steps of linear grids are limited to, so that no value overflows.
const LINEAR_LIMITS: [f32; 2] = [1.6e38, 1.1e37];
/// Log of a scale of 0.
const NOTHING: f32 = -128.0;
/// Logs of the smallest and the largest scale that is not 0.
const MIN_LOG: f32 = -126.0;
const MAX_LOG: f32 = 127.0;

/// The values `low + step * code` for codes 0 to 15; of scales, their logs to base 2 or themselves.
///
/// Both numbers are f16. A step of 0 stands for equal values, whose codes are 0. A grid that no
/// encoder made may hold a non-finite number, which reads as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    low: u16,
    step: u16,
}

impl Grid {
    /// The grid from `low` to `high`.
    pub fn spanning(low: f32, high: f32) -> Self {
        let low = f16::from_f32(low.clamp(-65504.0, 65504.0));
        let step = f16::from_f32(((high - low.to_f32()) / TOP).clamp(0.0, 65504.0));
        Self { low: low.to_bits(), step: step.to_bits() }
    }

    /// The grid of scales between `low` and `high`, both at least 0, in logs; it reaches down by
    /// `SCALE_RANGE` at most. Without a scale above 0 all its scales are 0.
    pub fn of_scales(low: f32, high: f32) -> Self {
        if high > 0.0 {
            let top = log2(high);
            let bottom = if low > 0.0 { log2(low) } else { NOTHING };
            Self::spanning(bottom.max(top - SCALE_RANGE), top)
        } else {
            Self::spanning(NOTHING, NOTHING)
        }
    }

    /// The linear grid of scales between `low` and `high`, both at least 0, from the larger of `low`
    /// and `high / LINEAR_RANGE` on; scales end at `MAX_LINEAR`. Its numbers are stored by [`encode_scale`](super::encode_scale).
    pub fn of_linear_scales(low: f32, high: f32) -> Self {
        let high = high.min(MAX_LINEAR);
        let low = super::encode_scale(low.clamp(high / LINEAR_RANGE, high));
        let step = ((high - super::decode_scale(low)) / TOP).max(0.0);
        Self { low, step: super::encode_scale(step) }
    }

    /// Takes a grid from its word: the step above the low end.
    pub const fn from_word(word: u32) -> Self {
        Self { low: word as u16, step: (word >> 16) as u16 }
    }

    /// The word of a grid.
    pub const fn word(self) -> u32 {
        self.low as u32 | (self.step as u32) << 16
    }

    fn parts(self) -> (f32, f32) {
        let finite = |bits| {
            let value = f16::from_bits(bits).to_f32();
            if value.is_finite() { value } else { 0.0 }
        };
        (finite(self.low), finite(self.step))
    }

    /// Code of the value nearest to `value`; of the even one of two.
    pub fn code(self, value: f32) -> u16 {
        let (low, step) = self.parts();
        if step > 0.0 { ((value - low) / step).clamp(0.0, TOP).round_ties_even() as u16 } else { 0 }
    }

    /// Value of a code.
    pub fn value(self, code: u16) -> f32 {
        let (low, step) = self.parts();
        low + step * f32::from(code)
    }

    fn linear_parts(self) -> (f32, f32) {
        let finite = |stored, limit: f32| {
            let value = super::decode_scale(stored);
            if value.is_finite() { value.min(limit) } else { 0.0 }
        };
        (finite(self.low, LINEAR_LIMITS[0]), finite(self.step, LINEAR_LIMITS[1]))
    }

    /// Code of the scale nearest to a scale on a linear grid of scales; of the even one of two.
    pub fn linear_code(self, scale: f32) -> u16 {
        let (low, step) = self.linear_parts();
        if step > 0.0 { ((scale - low) / step).clamp(0.0, TOP).round_ties_even() as u16 } else { 0 }
    }

    /// Scale of a code on a linear grid of scales.
    pub fn linear_scale(self, code: u16) -> f32 {
        let (low, step) = self.linear_parts();
        low + step * f32::from(code)
    }

    /// Code of a scale of at least 0 on a grid of scales.
    pub fn scale_code(self, scale: f32) -> u16 {
        self.code(if scale > 0.0 { log2(scale) } else { NOTHING })
    }

    /// Scale of a code on a grid of scales: 0, or 2^-126 to 2^127.
    pub fn scale(self, code: u16) -> f32 {
        exp2(self.value(code))
    }
}

/// Log to base 2 of a positive number, at least -126.
fn log2(x: f32) -> f32 {
    let bits = x.max(f32::MIN_POSITIVE).to_bits();
    let mut exponent = (bits >> 23) as i32 - 127;
    let mut mantissa = f32::from_bits(bits & 0x7f_ffff | 127 << 23);
    if mantissa > core::f32::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let mut sum = 1.0 / 9.0;
    for coefficient in [1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
        sum = sum * square + coefficient;
    }
    exponent as f32 + (2.0 * core::f32::consts::LOG2_E) * (z * sum)
}

/// 2 to a power of at most 127; 0 below -126.
fn exp2(x: f32) -> f32 {
    let held = x.clamp(MIN_LOG, MAX_LOG);
    // Truncation after adding half a step away from 0 rounds to nearest.
    let exponent = (held + if held < 0.0 { -0.5 } else { 0.5 }) as i32;
    let r = (held - exponent as f32) * core::f32::consts::LN_2;
    let mut poly = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        poly = poly * r + coefficient;
    }
    let power = poly * f32::from_bits(((exponent + 127) as u32) << 23);
    if x < MIN_LOG { 0.0 } else { power }
}

#[cfg(test)]
mod tests {
    use super::{Grid, exp2, log2};

    #[test]
    fn logs_and_powers_are_close() {
        for step in -1260..=1270 {
            let x = step as f32 / 10.0;
            let power = f64::from(x).exp2();
            assert!((f64::from(exp2(x)) - power).abs() <= 2.5e-7 * power, "{x}");
            let log = f64::from(power as f32).log2();
            let close = 2e-7 * log.abs().max(1.0);
            assert!((f64::from(log2(power as f32)) - log).abs() <= close, "{x}");
        }
        assert_eq!(exp2(-128.0), 0.0);
        assert_eq!(exp2(1e30), exp2(127.0));
    }

    #[test]
    fn grids_hold_their_ends_and_equal_values() {
        let grid = Grid::spanning(-1.5, 3.0);
        assert_eq!((grid.code(-1.5), grid.code(3.0)), (0, 15));
        assert_eq!((grid.code(-9.0), grid.code(9.0)), (0, 15));
        assert!((grid.value(15) - 3.0).abs() < 1e-2);
        let equal = Grid::spanning(0.25, 0.25);
        assert_eq!((equal.code(0.25), equal.value(0)), (0, 0.25));
        assert_eq!(Grid::from_word(grid.word()), grid);
    }

    #[test]
    fn linear_scales_keep_their_range() {
        for (low, high) in [(0.0, 4.0), (1.0, 3.0), (0.0, 0.0), (1e30, f32::MAX), (2.0, 2.0)] {
            let grid = Grid::of_linear_scales(low, high);
            let ends = [grid.linear_scale(grid.linear_code(low)), grid.linear_scale(15)];
            let highest = high.min(1.5e38);
            let lowest = low.max(highest / 32.0);
            assert!((ends[0] - lowest).abs() <= 0.01 * lowest, "{low} {high}: {ends:?}");
            assert!((ends[1] - highest).abs() <= 0.01 * highest, "{low} {high}: {ends:?}");
        }
        let wild = Grid::from_word(u32::MAX);
        assert!(wild.linear_scale(15).is_finite());
    }

    #[test]
    fn scales_keep_their_range() {
        let nothing = Grid::of_scales(0.0, 0.0);
        assert_eq!(nothing.scale(nothing.scale_code(0.0)), 0.0);
        let wide = Grid::of_scales(0.0, 4.0);
        let low = wide.scale(wide.scale_code(0.0));
        assert!((low * 256.0 - 1.0).abs() < 0.01, "{low}");
        let huge = Grid::of_scales(f32::MAX, f32::MAX);
        assert!(huge.scale(huge.scale_code(f32::MAX)).is_finite());
    }
}
