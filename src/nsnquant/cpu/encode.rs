//! Packs chunks: scales, means, Hadamard transform and the nearest centroids.

use half::f16;

use crate::error::{Error, Result};
use crate::layout::{Bits, PIECE, PageLayout, encode_scale};
use crate::nsnquant::codebook::{Block, LANES};
use crate::nsnquant::codec::{Codec, MIN_SCALE, square_sum};
use crate::shape::Elements;

/// Packs one page per entry of `starts`: page p holds the token rows `starts[p]` to
/// `starts[p] + chunk` of `data`, which is a flat list of token rows `[rows, head_dim]`. Chunks may
/// overlap and come in any order. Returns `[pages, words]`.
///
/// A non-finite element is read as 0. The scale of a row does not overflow or underflow: it is
/// taken from the row times a power of two.
///
/// # Errors
/// [`Error::Length`] when `data` is no whole number of rows; [`Error::Offsets`] for a chunk that
/// does not lie within the rows.
pub fn encode(codec: &Codec, data: Elements<'_>, starts: &[u32]) -> Result<Vec<u32>> {
    check(codec, data, starts)?;
    let words = codec.layout().words();
    let mut pages = vec![0; starts.len() * words];
    let work = |scratch: &mut Scratch, (page, start): (&mut [u32], &u32)| {
        scratch.analyse(codec, data, *start as usize);
        scratch.write(codec, page);
    };
    #[cfg(feature = "parallel")]
    {
        use rayon::prelude::*;
        pages
            .par_chunks_mut(words)
            .zip(starts)
            .for_each_init(|| Scratch::new(codec.layout()), work);
    }
    #[cfg(not(feature = "parallel"))]
    {
        let mut scratch = Scratch::new(codec.layout());
        pages.chunks_mut(words).zip(starts).for_each(|item| work(&mut scratch, item));
    }
    Ok(pages)
}

/// What an encoder knows of a chunk before it rounds anything.
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// First scale of each token `[chunk]`.
    pub s1: Vec<f32>,
    /// Second scale of each token `[chunk]`.
    pub s2: Vec<f32>,
    /// Mean of each channel `[head_dim]`.
    pub o: Vec<f32>,
    /// Tokens in the Hadamard domain `[chunk, head_dim]`, what the codes stand for.
    pub y: Vec<f32>,
}

/// Takes the chunk that starts at token row `start` apart without packing it.
///
/// # Errors
/// As [`encode`].
pub fn analyse(codec: &Codec, data: Elements<'_>, start: u32) -> Result<Analysis> {
    check(codec, data, &[start])?;
    let mut scratch = Scratch::new(codec.layout());
    scratch.analyse(codec, data, start as usize);
    Ok(Analysis { s1: scratch.s1, s2: scratch.s2, o: scratch.o, y: scratch.x })
}

fn check(codec: &Codec, data: Elements<'_>, starts: &[u32]) -> Result<()> {
    let dim = codec.layout().head_dim();
    if !data.len().is_multiple_of(dim) {
        let expected = data.len().next_multiple_of(dim);
        return Err(Error::Length { argument: "data", got: data.len(), expected });
    }
    let rows = data.len() / dim;
    let outside = |start: u32| start as usize + codec.layout().chunk() > rows;
    match starts.iter().position(|start| outside(*start)) {
        None => Ok(()),
        Some(index) => Err(Error::Offsets {
            argument: "starts",
            index,
            got: u64::from(starts[index]),
            expected: "a chunk within the token rows",
        }),
    }
}

struct Scratch {
    x: Vec<f32>,
    s1: Vec<f32>,
    s2: Vec<f32>,
    o: Vec<f32>,
}

impl Scratch {
    fn new(layout: &PageLayout) -> Self {
        Self {
            x: vec![0.0; layout.chunk() * layout.head_dim()],
            s1: vec![0.0; layout.chunk()],
            s2: vec![0.0; layout.chunk()],
            o: vec![0.0; layout.head_dim()],
        }
    }

    /// Fills the scratch; `x` ends as the tokens in the Hadamard domain.
    fn analyse(&mut self, codec: &Codec, data: Elements<'_>, start: usize) {
        let dim = codec.layout().head_dim();
        data.read(start * dim, &mut self.x);
        self.o.fill(0.0);
        for (token, s1) in self.x.chunks_exact_mut(dim).zip(&mut self.s1) {
            *s1 = row_scale(token);
            // Both scaled alike, so that the divisor stays where every GPU divides accurately.
            let shrink = if *s1 > HUGE { SHRINK } else { 1.0 };
            let divisor = *s1 * shrink;
            for (value, o) in token.iter_mut().zip(&mut self.o) {
                *value = *value * shrink / divisor;
                *o += *value;
            }
        }
        let count = codec.layout().chunk() as f32;
        self.o.iter_mut().for_each(|o| *o /= count);
        let hadamard = codec.hadamard();
        let scale = hadamard.scale();
        for (token, s2) in self.x.chunks_exact_mut(dim).zip(&mut self.s2) {
            for (value, o) in token.iter_mut().zip(&self.o) {
                *value -= *o;
            }
            let square = token.chunks_exact(PIECE).map(square_sum).fold(0.0, |a, b| a + b);
            *s2 = (square / dim as f32).sqrt().max(MIN_SCALE);
            for value in token.iter_mut() {
                *value /= *s2;
            }
            hadamard.forward_unscaled(token);
            token.iter_mut().for_each(|value| *value *= scale);
        }
    }

    fn write(&self, codec: &Codec, page: &mut [u32]) {
        let layout = codec.layout();
        let blocks = codec.codebook().blocks(layout.bits());
        for (byte, piece) in self.x.chunks_exact(PIECE).enumerate() {
            let mut target = [0.0; PIECE];
            target.copy_from_slice(piece);
            if layout.bits() == Bits::Two {
                let mut signs = 0;
                for (channel, value) in target.iter_mut().enumerate() {
                    signs |= u8::from(*value >= 0.0) << channel;
                    *value = value.abs();
                }
                PageLayout::set_byte(page, layout.sign_offset(), byte, signs);
            }
            PageLayout::set_byte(page, 0, byte, nearest(blocks, &target));
        }
        for (token, (s1, s2)) in self.s1.iter().zip(&self.s2).enumerate() {
            PageLayout::set_half(page, layout.s1_offset(), token, encode_scale(*s1));
            PageLayout::set_half(page, layout.s2_offset(), token, f16::from_f32(*s2).to_bits());
        }
        for (channel, o) in self.o.iter().enumerate() {
            PageLayout::set_half(page, layout.o_offset(), channel, f16::from_f32(*o).to_bits());
        }
    }
}

/// Above this, numerator and divisor are shrunk by [`SHRINK`] before they are divided: WGSL's
/// division is accurate for divisors up to 2^126 only.
const HUGE: f32 = 1.2676506e30;
const SHRINK: f32 = 9.313226e-10;
/// The largest f32 below 4, an upper bound of a row's scaled root mean square.
const BELOW_FOUR: f32 = 3.9999998;

/// `max(|x| / sqrt(d), 1e-8)`. The row is first multiplied by the power of two that brings its
/// largest magnitude to 2..4 (or as far as 2^64 goes), so that no square over- or underflows.
fn row_scale(row: &[f32]) -> f32 {
    let top = row.iter().map(|x| x.to_bits() & 0x7fff_ffff).fold(0, u32::max);
    let exponent = (top >> 23).max(64);
    let up = f32::from_bits((255 - exponent) << 23);
    let down = f32::from_bits((exponent - 1) << 23);
    let mut square = 0.0;
    for piece in row.chunks_exact(PIECE) {
        let mut scaled = [0.0; PIECE];
        for (scaled, value) in scaled.iter_mut().zip(piece) {
            *scaled = value * up;
        }
        square += square_sum(&scaled);
    }
    let rms = (square / row.len() as f32).sqrt().min(BELOW_FOUR);
    (rms * down).max(MIN_SCALE)
}

/// Index of the centroid with the largest dot product, the first of equals.
fn nearest(blocks: &[Block], target: &[f32; PIECE]) -> u8 {
    let mut best = [f32::MIN; LANES];
    let mut block_of = [0u32; LANES];
    for (index, block) in blocks.iter().enumerate() {
        let mut dot = [0.0f32; LANES];
        for (value, column) in target.iter().zip(block) {
            for lane in 0..LANES {
                dot[lane] += value * column[lane];
            }
        }
        for lane in 0..LANES {
            let better = dot[lane] > best[lane];
            best[lane] = if better { dot[lane] } else { best[lane] };
            block_of[lane] = if better { index as u32 } else { block_of[lane] };
        }
    }
    let mut index = block_of[0] as usize * LANES;
    let mut top = best[0];
    for lane in 1..LANES {
        let candidate = block_of[lane] as usize * LANES + lane;
        if best[lane] > top || (best[lane] == top && candidate < index) {
            top = best[lane];
            index = candidate;
        }
    }
    index as u8
}
