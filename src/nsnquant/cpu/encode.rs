//! Packs chunks: scales, means, Hadamard transform and the nearest centroids.

use half::f16;

use crate::error::{Error, Result};
use crate::layout::{
    GROUP, Gain, Grid, MeanDomain, Metadata, PIECE, PageLayout, Vector, encode_scale,
};
use crate::nsnquant::codebook::square_sum;
use crate::nsnquant::codec::{Codec, MIN_SCALE};
use crate::nsnquant::key_scale::{KeyScales, factor};
use crate::primitives::math::min_max;
use crate::shape::Elements;

/// Packs one page per entry of `starts`: page p holds the token rows `starts[p]` to
/// `starts[p] + chunk` of `data`, which is a flat list of token rows `[rows, head_dim]`. Chunks may
/// overlap and come in any order. Returns `[pages, words]`. Steps 1 to 6 of [`crate::nsnquant`] (arXiv
/// 2505.18231).
///
/// A non-finite element is read as 0. The scale of a row does not overflow or underflow: it is
/// taken from the row times a power of two.
///
/// # Errors
/// [`Error::Length`] when `data` is no whole number of rows, and for a codec that needs positions;
/// [`Error::Offsets`] for a chunk that does not lie within the rows.
pub fn encode(codec: &Codec, data: Elements<'_>, starts: &[u32]) -> Result<Vec<u32>> {
    encode_at(codec, data, &[], starts, None)
}

/// As [`encode`], with channels of the centred tokens divided by the key scale of their page.
///
/// # Errors
/// As [`encode`] and [`KeyScales::check`].
pub fn encode_scaled(
    codec: &Codec,
    data: Elements<'_>,
    starts: &[u32],
    scales: Option<&KeyScales<'_>>,
) -> Result<Vec<u32>> {
    encode_at(codec, data, &[], starts, scales)
}

/// As [`encode_scaled`], with the positions of the token rows `[rows]`, from which a codec with a
/// rotary embedding turns them back: `o` is the mean of the rows turned back, and what is left of a
/// row is taken from `o` turned to its position.
///
/// # Errors
/// As [`encode_scaled`]; [`Error::Length`] for another number of positions, of which there may be none
/// where the codec has no embedding.
pub fn encode_at(
    codec: &Codec,
    data: Elements<'_>,
    positions: &[u32],
    starts: &[u32],
    scales: Option<&KeyScales<'_>>,
) -> Result<Vec<u32>> {
    check(codec, data, positions, starts)?;
    if let Some(scales) = scales {
        scales.check(codec.layout().head_dim(), starts.len())?;
    }
    let words = codec.layout().words();
    let mut pages = vec![0; starts.len() * words];
    let work = |scratch: &mut Scratch, (number, page): (usize, &mut [u32])| {
        let channels = scales.map(|scales| scales.of(number, codec.layout().head_dim()));
        scratch.analyse(codec, data, positions, starts[number] as usize, channels);
        scratch.write(codec, page);
    };
    #[cfg(feature = "parallel")]
    {
        use rayon::prelude::*;
        pages
            .par_chunks_mut(words)
            .enumerate()
            .for_each_init(|| Scratch::new(codec.layout()), work);
    }
    #[cfg(not(feature = "parallel"))]
    {
        let mut scratch = Scratch::new(codec.layout());
        pages.chunks_mut(words).enumerate().for_each(|item| work(&mut scratch, item));
    }
    Ok(pages)
}

/// What an encoder knows of a chunk before it chooses codes.
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// First scale of each token `[chunk]`; with 4-bit scales what its code stands for.
    pub s1: Vec<f32>,
    /// Second scale of each token `[chunk]`.
    pub s2: Vec<f32>,
    /// Mean of each channel `[head_dim]`, in the domain in which it is stored; with 4-bit means what
    /// its codes stand for.
    pub o: Vec<f32>,
    /// Tokens in the Hadamard domain `[chunk, head_dim]`, what the codes stand for.
    pub y: Vec<f32>,
}

/// Takes the chunk that starts at token row `start` apart without packing it: steps 1 to 4 of
/// [`crate::nsnquant`].
///
/// # Errors
/// As [`encode`].
pub fn analyse(codec: &Codec, data: Elements<'_>, start: u32) -> Result<Analysis> {
    check(codec, data, &[], &[start])?;
    let mut scratch = Scratch::new(codec.layout());
    scratch.analyse(codec, data, &[], start as usize, None);
    Ok(Analysis { s1: scratch.s1, s2: scratch.s2, o: scratch.o, y: scratch.x })
}

fn check(codec: &Codec, data: Elements<'_>, positions: &[u32], starts: &[u32]) -> Result<()> {
    let dim = codec.layout().head_dim();
    if !data.len().is_multiple_of(dim) {
        let expected = data.len().next_multiple_of(dim);
        return Err(Error::Length { argument: "data", got: data.len(), expected });
    }
    let rows = data.len() / dim;
    codec.check_positions(positions, rows)?;
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
    /// The mean in the plain domain.
    shift: Vec<f32>,
    /// A row turned to or from its position.
    turned: Vec<f32>,
    /// What is stored of `s1`, `s2` and `o`.
    stored: [Vec<u16>; 3],
    grids: Vec<Grid>,
}

impl Scratch {
    fn new(layout: &PageLayout) -> Self {
        let (chunk, dim) = (layout.chunk(), layout.head_dim());
        Self {
            x: vec![0.0; chunk * dim],
            s1: vec![0.0; chunk],
            s2: vec![0.0; chunk],
            o: vec![0.0; dim],
            shift: vec![0.0; dim],
            turned: vec![0.0; dim],
            stored: [vec![0; chunk], vec![0; chunk], vec![0; dim]],
            grids: vec![Grid::from_word(0); layout.grids()],
        }
    }

    /// Fills the scratch but for what is stored of `s2`; `x` ends as the tokens in the Hadamard
    /// domain. With 4-bit scales and means `s1` and `o` end as those that the codes stand for.
    fn analyse(
        &mut self,
        codec: &Codec,
        data: Elements<'_>,
        positions: &[u32],
        start: usize,
        channels: Option<&[f16]>,
    ) {
        let dim = codec.layout().head_dim();
        // A turn keeps the norm of a row, so s1 is taken from the row as it comes.
        let place = |token: usize| positions[start + token];
        data.read(start * dim, &mut self.x);
        for (token, s1) in self.x.chunks_exact(dim).zip(&mut self.s1) {
            *s1 = row_scale(token);
        }
        self.store_s1(codec);
        self.o.fill(0.0);
        for (index, (token, s1)) in self.x.chunks_exact_mut(dim).zip(&self.s1).enumerate() {
            divide_row(token, *s1);
            let row = match codec.rope() {
                None => &*token,
                Some(rope) => {
                    self.turned.copy_from_slice(token);
                    rope.turn_back(&mut self.turned, place(index));
                    &self.turned
                }
            };
            self.o.iter_mut().zip(row).for_each(|(o, value)| *o += value);
        }
        let count = codec.layout().chunk() as f32;
        self.o.iter_mut().for_each(|o| *o /= count);
        let hadamard = codec.hadamard();
        let transformed = codec.scheme().mean == MeanDomain::Hadamard;
        if transformed {
            hadamard.forward(&mut self.o);
        }
        self.store_o(codec);
        self.shift.copy_from_slice(&self.o);
        if transformed {
            hadamard.inverse(&mut self.shift);
        }
        let scale = hadamard.scale();
        for (index, (token, s2)) in self.x.chunks_exact_mut(dim).zip(&mut self.s2).enumerate() {
            let shift = match codec.rope() {
                None => &self.shift,
                Some(rope) => {
                    self.turned.copy_from_slice(&self.shift);
                    rope.turn(&mut self.turned, place(index));
                    &self.turned
                }
            };
            for (value, o) in token.iter_mut().zip(shift) {
                *value -= *o;
            }
            for (value, channel) in token.iter_mut().zip(channels.unwrap_or(&[])) {
                *value /= factor(*channel);
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

    fn store_s1(&mut self, codec: &Codec) {
        let (s1, stored) = (&mut self.s1, &mut self.stored[0]);
        match codec.scheme().metadata {
            Metadata::Half => {
                stored.iter_mut().zip(s1).for_each(|(stored, s1)| *stored = encode_scale(*s1));
            }
            Metadata::Four => {
                let grid = scale_grid(s1);
                for (stored, s1) in stored.iter_mut().zip(s1) {
                    *stored = grid.scale_code(*s1);
                    *s1 = grid.scale(*stored);
                }
                self.grids[0] = grid;
            }
            Metadata::Linear => {
                let (low, high) = min_max(s1);
                let grid = Grid::of_linear_scales(low, high);
                for (stored, s1) in stored.iter_mut().zip(s1) {
                    *stored = grid.linear_code(*s1);
                    *s1 = grid.linear_scale(*stored).max(MIN_SCALE);
                }
                self.grids[0] = grid;
            }
        }
    }

    fn store_s2(&mut self, codec: &Codec) {
        let (s2, stored) = (&self.s2, &mut self.stored[1]);
        match codec.scheme().metadata {
            Metadata::Half | Metadata::Linear => {
                stored.iter_mut().zip(s2).for_each(|(s, s2)| *s = f16::from_f32(*s2).to_bits());
            }
            Metadata::Four => {
                self.grids[1] = scale_grid(s2);
                stored.iter_mut().zip(s2).for_each(|(s, s2)| *s = self.grids[1].scale_code(*s2));
            }
        }
    }

    fn store_o(&mut self, codec: &Codec) {
        let (o, stored) = (&mut self.o, &mut self.stored[2]);
        match codec.scheme().metadata {
            Metadata::Half => {
                stored.iter_mut().zip(o).for_each(|(s, o)| *s = f16::from_f32(*o).to_bits());
            }
            Metadata::Four | Metadata::Linear => {
                let layout = codec.layout();
                let linear = codec.scheme().metadata == Metadata::Linear;
                let group = if linear { GROUP } else { layout.head_dim() };
                let groups = stored.chunks_mut(group).zip(o.chunks_mut(group)).enumerate();
                for (number, (stored, o)) in groups {
                    let (low, high) = min_max(o);
                    let grid = Grid::spanning(low, high);
                    for (stored, o) in stored.iter_mut().zip(o) {
                        *stored = grid.code(*o);
                        *o = grid.value(*stored);
                    }
                    self.grids[layout.mean_grid(number * group)] = grid;
                }
            }
        }
    }

    fn write(&mut self, codec: &Codec, page: &mut [u32]) {
        match codec.layout().width() {
            2 => self.write_codes::<2>(codec, page),
            4 => self.write_codes::<4>(codec, page),
            _ => self.write_codes::<PIECE>(codec, page),
        }
        self.store_s2(codec);
        let layout = codec.layout();
        for (vector, stored) in Vector::ALL.into_iter().zip(&self.stored) {
            for (at, stored) in stored.iter().enumerate() {
                layout.set_stored(page, vector, at, *stored);
            }
        }
        self.grids.iter().enumerate().for_each(|(at, grid)| layout.set_grid(page, at, *grid));
    }

    /// Writes the codes, and folds the gain into `s2`.
    fn write_codes<const W: usize>(&mut self, codec: &Codec, page: &mut [u32]) {
        let (layout, book, gain) = (codec.layout(), codec.book(), codec.scheme().gain);
        let pieces = PIECE / W;
        let mut place = 0;
        for (token, s2) in self.x.chunks_exact(layout.head_dim()).zip(&mut self.s2) {
            let (mut length, mut product, mut coded) = (0.0, 0.0, 0.0);
            for eight in token.chunks_exact(PIECE) {
                let mut target = [0.0; PIECE];
                target.copy_from_slice(eight);
                if layout.signs() {
                    let mut signs = 0;
                    for (channel, value) in target.iter_mut().enumerate() {
                        signs |= u8::from(*value >= 0.0) << channel;
                        *value = value.abs();
                    }
                    PageLayout::set_byte(page, layout.sign_offset(), place, signs);
                }
                let mut centroids = [0.0; PIECE];
                for (piece, out) in centroids.chunks_exact_mut(W).enumerate() {
                    let mut part = [0.0; W];
                    part.copy_from_slice(&target[piece * W..(piece + 1) * W]);
                    let index = book.nearest(&part);
                    layout.set_index(page, place * pieces + piece, index);
                    out.copy_from_slice(book.row(index));
                }
                if gain != Gain::TokenNorm {
                    length += square_sum(&target);
                    product += dot(&target, &centroids);
                    coded += square_sum(&centroids);
                }
                place += 1;
            }
            *s2 *= match gain {
                Gain::TokenNorm => 1.0,
                Gain::Unbiased if product > 0.0 => (length / product).min(codec.max_gain()),
                Gain::NormPreserving if coded > 0.0 => {
                    (length / coded).sqrt().min(codec.max_gain())
                }
                Gain::Unbiased | Gain::NormPreserving => 0.0,
            };
        }
    }
}

/// The grid of the scales of a chunk.
fn scale_grid(scales: &[f32]) -> Grid {
    let (low, high) = min_max(scales);
    Grid::of_scales(low, high)
}

/// Dot product of 8 channels, in the order of [`square_sum`].
fn dot(a: &[f32; PIECE], b: &[f32; PIECE]) -> f32 {
    ((a[0] * b[0] + a[1] * b[1]) + (a[2] * b[2] + a[3] * b[3]))
        + ((a[4] * b[4] + a[5] * b[5]) + (a[6] * b[6] + a[7] * b[7]))
}

/// Above this, numerator and divisor are shrunk by [`SHRINK`] before they are divided: WGSL's
/// division is accurate for divisors up to 2^126 only.
const HUGE: f32 = 1.2676506e30;
const SHRINK: f32 = 9.313226e-10;
/// The largest f32 below 4, an upper bound of a row's scaled root mean square.
const BELOW_FOUR: f32 = 3.9999998;

/// Divides a row by its scale. Both are shrunk alike where that is needed, so that the divisor stays
/// where every GPU divides accurately.
pub(super) fn divide_row(row: &mut [f32], s1: f32) {
    let shrink = if s1 > HUGE { SHRINK } else { 1.0 };
    let divisor = s1 * shrink;
    row.iter_mut().for_each(|value| *value = *value * shrink / divisor);
}

/// `max(|x| / sqrt(d), 1e-8)`. The row is first multiplied by the power of two that brings its
/// largest magnitude to 2..4 (or as far as 2^64 goes), so that no square over- or underflows.
pub(super) fn row_scale(row: &[f32]) -> f32 {
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
