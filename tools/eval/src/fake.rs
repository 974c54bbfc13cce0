//! Other methods' quantisers, for comparison: rows are quantised and restored here, and the cache
//! keeps the restored rows raw.

use anyhow::{Context, Result, ensure};
use wgkv::half::f16;
use wgkv::nsnquant::cpu::{decode_scaled, encode_scaled};
use wgkv::nsnquant::{Codebook, Codec, Hadamard, KeyScales, Scheme};
use wgkv::shape::Elements;

/// A quantiser of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fake {
    /// Asymmetric integers: keys a channel and `group` tokens, values a token and `group` channels,
    /// scale and zero in f16 (KIVI, arXiv 2402.02750).
    Grid {
        /// Bits of an integer.
        bits: u32,
        /// Elements that share scale and zero.
        group: usize,
    },
    /// Blocks of 32 channels of a token that share an f16 scale, after a Hadamard transform
    /// (llama.cpp's `q4_0` and `q8_0` with rotated heads).
    Block {
        /// Bits of an integer, 4 or 8.
        bits: u32,
    },
    /// The library's codec, apart from its attention.
    Decoded {
        /// Of keys and of values.
        schemes: [Scheme; 2],
        /// Whether keys have a scale.
        scaled: bool,
        /// What of a row is not the chunk's mean comes back times this, in percent, of keys and of values.
        gains: [u32; 2],
    },
}

/// Channels of a block.
const BLOCK: usize = 32;

impl Fake {
    /// Bits an element of keys and values, scales counted.
    ///
    /// # Errors
    /// Those of [`Codec::with`].
    pub fn bits(&self, chunk: usize, head_dim: usize) -> Result<[f64; 2]> {
        Ok(match *self {
            Self::Grid { bits, group } => [f64::from(bits) + 32.0 / group as f64; 2],
            Self::Block { bits } => [f64::from(bits) + 16.0 / BLOCK as f64; 2],
            Self::Decoded { schemes: [keys, values], .. } => {
                let bits = |scheme| -> Result<f64> {
                    let bytes = library(scheme, chunk, head_dim)?.layout().data_bytes();
                    Ok(8.0 * bytes as f64 / (chunk * head_dim) as f64)
                };
                [bits(keys)?, bits(values)?]
            }
        })
    }

    /// Checks that chunks and heads divide into groups.
    ///
    /// # Errors
    /// Where they do not.
    pub fn check(&self, chunk: usize, head_dim: usize) -> Result<()> {
        let fits = match *self {
            Self::Grid { group, .. } => {
                chunk.is_multiple_of(group) && head_dim.is_multiple_of(group)
            }
            Self::Block { .. } => head_dim.is_multiple_of(BLOCK),
            Self::Decoded { schemes, .. } => {
                return schemes
                    .into_iter()
                    .try_for_each(|scheme| library(scheme, chunk, head_dim).map(drop));
            }
        };
        ensure!(fits, "chunks of {chunk} tokens of {head_dim} channels have no whole groups");
        Ok(())
    }

    /// Whether the keys of a head have a scale, which is fixed when its first chunk is quantised.
    pub fn scaled(&self) -> bool {
        matches!(self, Self::Decoded { scaled: true, .. })
    }

    /// Quantises and restores a chunk of keys (side 0) or values, `[chunk, head_dim]`; `scale` goes with
    /// keys.
    ///
    /// # Errors
    /// Those of the library.
    pub fn restore(
        &self,
        side: usize,
        rows: &mut [f32],
        head_dim: usize,
        scale: Option<&[f16]>,
    ) -> Result<()> {
        match *self {
            Self::Grid { bits, group } if side == 0 => {
                for rows in rows.chunks_mut(group * head_dim) {
                    for channel in 0..head_dim {
                        grid(rows.iter_mut().skip(channel).step_by(head_dim), bits);
                    }
                }
            }
            Self::Grid { bits, group } => {
                rows.chunks_mut(group).for_each(|row| grid(row.iter_mut(), bits));
            }
            Self::Block { bits } => block(rows, head_dim, bits)?,
            Self::Decoded { schemes, gains, .. } => {
                let codec = library(schemes[side], rows.len() / head_dim, head_dim)?;
                let scale = scale.filter(|_| side == 0);
                let scales = scale.map(|values| KeyScales { values, of_page: &[0] });
                let page = encode_scaled(&codec, Elements::F32(rows), &[0], scales.as_ref())?;
                rows.copy_from_slice(&decode_scaled(&codec, &page, scales.as_ref())?);
                if gains[side] != 100 {
                    let (mut mean, gain) = (vec![0.0; head_dim], gains[side] as f32 / 100.0);
                    codec.mean(&page, &mut mean);
                    for (token, row) in rows.chunks_exact_mut(head_dim).enumerate() {
                        let s1 = codec.s1(&page, token);
                        for (x, mean) in row.iter_mut().zip(&mean) {
                            *x = s1 * mean + gain * (*x - s1 * mean);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn library(scheme: Scheme, chunk: usize, head_dim: usize) -> Result<Codec> {
    Ok(Codec::with("head_dim", head_dim, scheme, chunk, Codebook::builtin())?)
}

fn half(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// Integers from the least to the greatest element.
fn grid<'a>(elements: impl Iterator<Item = &'a mut f32>, bits: u32) {
    let elements: Vec<_> = elements.collect();
    let low = elements.iter().fold(f32::INFINITY, |low, x| low.min(**x));
    let high = elements.iter().fold(f32::NEG_INFINITY, |high, x| high.max(**x));
    let top = ((1u32 << bits) - 1) as f32;
    let (zero, step) = (half(low), half((high - low) / top));
    for x in elements {
        let code = if step > 0.0 { ((*x - zero) / step).round().clamp(0.0, top) } else { 0.0 };
        *x = zero + step * code;
    }
}

fn block(rows: &mut [f32], head_dim: usize, bits: u32) -> Result<()> {
    let hadamard = Hadamard::new("head_dim", head_dim).context("the rotation of a head")?;
    for row in rows.chunks_exact_mut(head_dim) {
        hadamard.forward(row);
        for block in row.chunks_mut(BLOCK) {
            let far =
                block.iter().fold(0.0f32, |far, x| if x.abs() > far.abs() { *x } else { far });
            // The element furthest from 0 gets the integer -8, or 127 where there are 8 bits.
            let (scale, low, high) = match bits {
                4 => (far / -8.0, -8.0, 7.0),
                _ => (far.abs() / 127.0, -127.0, 127.0),
            };
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            for x in block {
                *x = half(scale) * (*x * inverse).round().clamp(low, high);
            }
        }
        hadamard.inverse(row);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<f32> {
        (0..64 * 64).map(|i| (i as f32 * 0.37).sin() + (i % 64) as f32 / 16.0).collect()
    }

    /// Errors are at most half a step of the group.
    #[test]
    fn grids_are_near() {
        for (bits, group) in [(2, 32), (4, 64), (8, 32)] {
            let fake = Fake::Grid { bits, group };
            let (before, mut keys, mut values) = (rows(), rows(), rows());
            fake.restore(0, &mut keys, 64, None).unwrap();
            fake.restore(1, &mut values, 64, None).unwrap();
            let far = |after: &[f32]| {
                before.iter().zip(after).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
            };
            let top = ((1 << bits) - 1) as f32;
            // Keys span 2 a channel, values 6 a token; 1% is for the rounding of scales.
            assert!(far(&keys) <= 1.01 * 1.0 / top + 0.003, "{bits} {}", far(&keys));
            assert!(far(&values) <= 1.01 * 3.0 / top + 0.003, "{bits} {}", far(&values));
        }
    }

    #[test]
    fn blocks_are_near() {
        for (bits, most) in [(4, 0.1), (8, 0.01)] {
            let before: Vec<f32> = (0..64 * 64).map(|i| ((i * i) as f32 * 0.37).sin()).collect();
            let mut after = before.clone();
            Fake::Block { bits }.restore(0, &mut after, 64, None).unwrap();
            let square = |x: f32| f64::from(x * x);
            let error: f64 = before.iter().zip(&after).map(|(a, b)| square(a - b)).sum();
            let size: f64 = before.iter().map(|x| square(*x)).sum();
            assert!((error / size).sqrt() < most, "{bits} {}", (error / size).sqrt());
        }
    }
}
