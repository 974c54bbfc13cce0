//! Floats out of a file.

use half::{bf16, f16};

use crate::shape::{Dtype, Elements};

/// Floats as they lie in the file.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// IEEE halves.
    F16(Vec<f16>),
    /// Brain floats.
    Bf16(Vec<bf16>),
}

impl Data {
    /// Takes elements out of bytes that hold a whole number of them.
    pub(super) fn new(dtype: Dtype, bytes: &[u8]) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(bytemuck::pod_collect_to_vec(bytes)),
            Dtype::F16 => Self::F16(bytemuck::pod_collect_to_vec(bytes)),
            Dtype::Bf16 => Self::Bf16(bytemuck::pod_collect_to_vec(bytes)),
        }
    }

    /// The floats, borrowed.
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(x) => Elements::F32(x),
            Self::F16(x) => Elements::F16(x),
            Self::Bf16(x) => Elements::Bf16(x),
        }
    }

    /// NaN and Inf among them.
    pub fn nonfinite(&self) -> usize {
        match self {
            Self::F32(x) => x.iter().filter(|v| !v.is_finite()).count(),
            Self::F16(x) => x.iter().filter(|v| v.to_bits() & 0x7c00 == 0x7c00).count(),
            Self::Bf16(x) => x.iter().filter(|v| v.to_bits() & 0x7f80 == 0x7f80).count(),
        }
    }

    /// Of every `held` elements the first `kept`: of `[heads, held tokens]` the first tokens.
    #[must_use]
    pub fn cut(self, held: usize, kept: usize) -> Self {
        fn first<T: Copy>(mut all: Vec<T>, held: usize, kept: usize) -> Vec<T> {
            let parts = all.len().checked_div(held).unwrap_or(0);
            for part in 0..parts {
                all.copy_within(part * held..part * held + kept, part * kept);
            }
            all.truncate(parts * kept);
            all
        }
        if kept >= held {
            return self;
        }
        match self {
            Self::F32(x) => Self::F32(first(x, held, kept)),
            Self::F16(x) => Self::F16(first(x, held, kept)),
            Self::Bf16(x) => Self::Bf16(first(x, held, kept)),
        }
    }
}
