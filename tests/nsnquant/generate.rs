//! Token rows of every kind that the codec must take.

use half::{bf16, f16};
use wgkv::shape::Dtype;

use crate::common::Data;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Uniform in 0..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// Close to normal: the sum of 12 uniform numbers.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }
}

/// Kinds of token rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Normal,
    Outliers,
    Constant,
    Duplicated,
    SomeZero,
    Huge,
    Tiny,
    Mixed,
}

pub const KINDS: [Kind; 8] = [
    Kind::Normal,
    Kind::Outliers,
    Kind::Constant,
    Kind::Duplicated,
    Kind::SomeZero,
    Kind::Huge,
    Kind::Tiny,
    Kind::Mixed,
];

/// `rows` token rows of `dim` channels.
pub fn rows(random: &mut Random, kind: Kind, rows: usize, dim: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows * dim);
    let offset: Vec<f32> = (0..dim).map(|_| random.normal()).collect();
    let repeated: Vec<f32> = (0..dim).map(|_| random.normal()).collect();
    for _ in 0..rows {
        let kind = if kind == Kind::Mixed { KINDS[random.below(KINDS.len() - 1)] } else { kind };
        let level = random.normal();
        let zero = random.below(3) == 0;
        for channel in 0..dim {
            let value = random.normal();
            out.push(match kind {
                Kind::Normal | Kind::Mixed => value + offset[channel],
                Kind::Outliers => value * if channel % 13 == 5 { 40.0 } else { 1.0 },
                Kind::Constant => level,
                Kind::Duplicated => repeated[channel],
                Kind::SomeZero if zero => 0.0,
                Kind::SomeZero => value,
                Kind::Huge => (value / 6.0) * 3e38,
                Kind::Tiny => value * 1e-30,
            });
        }
    }
    out
}

/// The values in a type; what is beyond f16 saturates.
pub fn typed(values: &[f32], dtype: Dtype) -> Data {
    match dtype {
        Dtype::F32 => Data::F32(values.to_vec()),
        Dtype::F16 => {
            let saturated = values.iter().map(|v| f16::from_f32(v.clamp(-65504.0, 65504.0)));
            Data::F16(saturated.collect())
        }
        Dtype::Bf16 => Data::Bf16(values.iter().map(|v| bf16::from_f32(*v)).collect()),
    }
}

pub const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];
