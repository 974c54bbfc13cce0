//! Normalised Hadamard transforms of every head dimension that the library takes.

use crate::error::Result;
use crate::shape::{MAX_HEAD_DIM, check_head_dim};

/// Rows of the Hadamard matrices of order 12 and 28 (Paley's second construction for 5 and 13) and
/// 20 (his first for 19), one bit a column: set where the entry is -1. Those of 12 and 28 are
/// symmetric, that of 20 is not. The same numbers stand in `wgsl/common/hadamard.wgsl`.
const ORDER_12: [u32; 12] =
    [0x2, 0xaab, 0x3c8, 0x96e, 0xf20, 0x5ba, 0xc8c, 0x6e6, 0x23c, 0xb96, 0x8f0, 0xe5a];
const ORDER_20: [u32; 20] = [
    0x0, 0x615e5, 0xc2bc9, 0x85793, 0xaf27, 0x15e4d, 0x2bc99, 0x57931, 0xaf261, 0x5e4c3, 0xbc985,
    0x7930b, 0xf2615, 0xe4c2b, 0xc9857, 0x930af, 0x2615f, 0x4c2bd, 0x98579, 0x30af3,
];
const ORDER_28: [u32; 28] = [
    0x2, 0xaaaaaab, 0x30ff0c8, 0x9a55a6e, 0xc3fc320, 0x69569ba, 0xff0c8c, 0xa55a6e6, 0x3fc3230,
    0x9569b9a, 0xff0c8c0, 0x55a6e6a, 0xfc3230c, 0x569b9a6, 0xf0c8c3c, 0x5a6e696, 0xc3230fc,
    0x69b9a56, 0xc8c3fc, 0xa6e6956, 0x3230ff0, 0x9b9a55a, 0xc8c3fc0, 0x6e6956a, 0x230ff0c,
    0xb9a55a6, 0x8c3fc30, 0xe69569a,
];

/// The orthogonal transform `kron(H_m, H_2^k) / sqrt(d)` of `d = m * 2^k` channels, `H_2^k` being
/// Sylvester's and m one of 1, 12, 20, 28.
///
/// The order of the sums is fixed: butterflies of distance 1, 2, 4, ... within each run of `2^k`
/// channels, then, for m > 1, the signed sum over the runs, first to last, then the factor
/// `1 / sqrt(d)`.
///
/// With a seed every channel gets a fixed sign before the transform (and after its inverse), drawn
/// from the seed and the channel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hadamard {
    dim: usize,
    rows: &'static [u32],
    run: usize,
    seed: Option<u32>,
}

impl Hadamard {
    /// The transform of `dim` channels (step 4 of [`crate::nsnquant`]).
    ///
    /// # Errors
    /// [`crate::Error::HeadDim`] when [`check_head_dim`] refuses `dim`.
    pub fn new(argument: &'static str, dim: usize) -> Result<Self> {
        Self::signed(argument, dim, None)
    }

    /// The transform of `dim` channels whose signs are drawn from a seed, if there is one.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn signed(argument: &'static str, dim: usize, seed: Option<u32>) -> Result<Self> {
        check_head_dim(argument, dim)?;
        let tables: [&'static [u32]; 3] = [&ORDER_12, &ORDER_20, &ORDER_28];
        let rows = tables
            .into_iter()
            .find(|rows| dim.is_multiple_of(rows.len()) && (dim / rows.len()).is_power_of_two())
            .unwrap_or(&[0]);
        Ok(Self { dim, rows, run: dim / rows.len(), seed })
    }

    /// Channels.
    pub const fn dim(&self) -> usize {
        self.dim
    }

    /// The order m of the factor that is no power of two: 1, 12, 20 or 28.
    pub const fn order(&self) -> usize {
        self.rows.len()
    }

    /// Channels `2^k` of a run, the part that butterflies transform.
    pub const fn run(&self) -> usize {
        self.run
    }

    /// The seed of the signs.
    pub const fn seed(&self) -> Option<u32> {
        self.seed
    }

    /// The factor `1 / sqrt(d)`, as both paths use it.
    pub fn scale(&self) -> f32 {
        (1.0 / (self.dim as f64).sqrt()) as f32
    }

    /// Transforms one token of `dim` channels in place: `x <- H x`.
    ///
    /// # Panics
    /// When `x` is not of `dim` channels.
    pub fn forward(&self, x: &mut [f32]) {
        self.forward_unscaled(x);
        let scale = self.scale();
        x.iter_mut().for_each(|value| *value *= scale);
    }

    /// Transforms one token of `dim` channels back in place: `x <- H^T x`.
    ///
    /// # Panics
    /// When `x` is not of `dim` channels.
    pub fn inverse(&self, x: &mut [f32]) {
        self.inverse_unscaled(x);
        let scale = self.scale();
        x.iter_mut().for_each(|value| *value *= scale);
    }

    /// As [`Self::forward`] without the factor `1 / sqrt(d)`.
    pub(crate) fn forward_unscaled(&self, x: &mut [f32]) {
        assert_eq!(x.len(), self.dim, "channels of a token");
        self.flip(x);
        self.butterflies(x);
        self.mix(x, |row, column| self.rows[row] >> column & 1);
    }

    /// As [`Self::inverse`] without the factor `1 / sqrt(d)`.
    pub(crate) fn inverse_unscaled(&self, x: &mut [f32]) {
        assert_eq!(x.len(), self.dim, "channels of a token");
        self.butterflies(x);
        self.mix(x, |row, column| self.rows[column] >> row & 1);
        self.flip(x);
    }

    fn flip(&self, x: &mut [f32]) {
        let Some(seed) = self.seed else { return };
        for (channel, value) in x.iter_mut().enumerate() {
            *value = f32::from_bits(value.to_bits() ^ flipped(seed, channel as u32) << 31);
        }
    }

    fn butterflies(&self, x: &mut [f32]) {
        let mut done = 1;
        // Distances 1, 2 and 4 on eight values in registers: the same sums as one after the other.
        if self.run >= 8 {
            for piece in x.chunks_exact_mut(8) {
                let mut v = [0.0f32; 8];
                v.copy_from_slice(piece);
                let a = [
                    v[0] + v[1],
                    v[0] - v[1],
                    v[2] + v[3],
                    v[2] - v[3],
                    v[4] + v[5],
                    v[4] - v[5],
                    v[6] + v[7],
                    v[6] - v[7],
                ];
                let b = [
                    a[0] + a[2],
                    a[1] + a[3],
                    a[0] - a[2],
                    a[1] - a[3],
                    a[4] + a[6],
                    a[5] + a[7],
                    a[4] - a[6],
                    a[5] - a[7],
                ];
                for i in 0..4 {
                    piece[i] = b[i] + b[i + 4];
                    piece[i + 4] = b[i] - b[i + 4];
                }
            }
            done = 8;
        }
        while done < self.run {
            for pair in x.chunks_exact_mut(2 * done) {
                let (low, high) = pair.split_at_mut(done);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            done *= 2;
        }
    }

    fn mix(&self, x: &mut [f32], negative: impl Fn(usize, usize) -> u32) {
        let order = self.order();
        if order == 1 {
            return;
        }
        let mut runs = [0.0; MAX_HEAD_DIM];
        let runs = &mut runs[..self.dim];
        runs.copy_from_slice(x);
        for (row, out) in x.chunks_exact_mut(self.run).enumerate() {
            out.fill(0.0);
            for (column, run) in runs.chunks_exact(self.run).enumerate() {
                let flip = negative(row, column) << 31;
                for (out, value) in out.iter_mut().zip(run) {
                    *out += f32::from_bits(value.to_bits() ^ flip);
                }
            }
        }
    }
}

/// Whether a channel is negated: a bit of a hash (MurmurHash3's finaliser, Appleby 2011).
fn flipped(seed: u32, channel: u32) -> u32 {
    let mut x = seed.wrapping_add(channel.wrapping_mul(0x9e37_79b9));
    x = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
    x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
    (x ^ x >> 16) & 1
}
