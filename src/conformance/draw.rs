//! Random numbers and what is drawn with them, the same on every host.

use half::{bf16, f16};

use crate::shape::{Dtype, Elements};

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn word(&mut self) -> u32 {
        (self.bits() >> 32) as u32
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end.max(1) as u64) as usize
    }

    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    pub fn odds(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Uniform in 0 to 1, 1 excluded.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    pub fn within(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// Close to normal: the sum of 12 uniform numbers less 6.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    pub fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }

    pub fn words(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.word()).collect()
    }

    /// Words whose elements are of every kind: ordinary, huge, tiny, NaN, Inf, zero of both signs.
    pub fn odd_words(&mut self, count: usize) -> Vec<u32> {
        const ODD: [u32; 12] = [
            0,
            0x8000_0000,
            0x7fc0_0000,
            0xff80_0001,
            0x7f80_0000,
            0xff80_0000,
            0x477f_efff,
            0x477f_f000,
            0x4780_0000,
            0xc7ff_ffff,
            0x3380_0001,
            0x7f7f_ffff,
        ];
        (0..count).map(|_| if self.odds(7) { self.pick(&ODD) } else { self.word() }).collect()
    }

    /// A score: any bits, one of few levels, or a special value.
    pub fn score(&mut self) -> f32 {
        match self.below(9) {
            0..4 => f32::from_bits(self.word()),
            4..8 => self.below(6) as f32,
            _ => self.pick(&[0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, -1.0]),
        }
    }
}

pub(crate) const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Owned elements of one type.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Data {
    /// Rounds values to a type; what is beyond f16 becomes Inf.
    pub fn new(values: &[f32], dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(values.to_vec()),
            Dtype::F16 => Self::F16(values.iter().map(|&x| f16::from_f32(x)).collect()),
            Dtype::Bf16 => Self::Bf16(values.iter().map(|&x| bf16::from_f32(x)).collect()),
        }
    }

    /// As [`Data::new`], but what is finite and beyond f16 saturates.
    pub fn saturated(values: &[f32], dtype: Dtype) -> Self {
        match dtype {
            Dtype::F16 => {
                let held: Vec<f32> = values.iter().map(|v| v.clamp(-65504.0, 65504.0)).collect();
                Self::new(&held, dtype)
            }
            _ => Self::new(values, dtype),
        }
    }

    pub fn view(&self) -> Elements<'_> {
        match self {
            Self::F32(x) => Elements::F32(x),
            Self::F16(x) => Elements::F16(x),
            Self::Bf16(x) => Elements::Bf16(x),
        }
    }
}

/// The elements that words hold.
pub(crate) fn elements(words: &[u32], dtype: Dtype) -> Elements<'_> {
    match dtype {
        Dtype::F32 => Elements::F32(bytemuck::cast_slice(words)),
        Dtype::F16 => Elements::F16(bytemuck::cast_slice(words)),
        Dtype::Bf16 => Elements::Bf16(bytemuck::cast_slice(words)),
    }
}
