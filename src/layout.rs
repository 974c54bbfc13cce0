//! How a packed page lies in memory: the only file that knows the bit packing.
//!
//! A page holds one tensor (keys or values) of one chunk of one KV head, as little-endian 32-bit
//! words, in this order: the indices, piece after piece and token after token, lowest bit first (8
//! bits a piece, 6 in plain books at 3 bits); with unit books at 2 bits the sign plane (a byte for
//! each piece of 8 channels); `s1` and `s2` of each token, `o` of each channel (f16, or 4-bit codes);
//! with 4-bit codes their grids (a pair of f16 each). Every plane starts on a
//! word. The indices of 4 tokens fill whole words, those of one token do when the head dimension is
//! a multiple of 32.

mod grid;
pub mod pool;
mod preset;
mod scheme;
pub mod tables;

pub use grid::Grid;
pub use preset::Preset;
pub use scheme::{Gain, MeanDomain, Profile, Scheme};

use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::shape::check_head_dim;

/// Channels that share one codebook index.
pub const PIECE: usize = 8;
/// Entries of a codebook.
pub const CODEBOOK_ROWS: usize = 256;
/// Smallest chunk: a channel mean needs two tokens to mean anything.
pub const MIN_CHUNK: usize = 2;
/// Largest chunk that the encoder's workgroup memory holds.
pub const MAX_CHUNK: usize = 1024;

/// Code bits per value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bits {
    /// 1 bit.
    One,
    /// 2 bits.
    Two,
    /// 3 bits.
    Three,
    /// 4 bits.
    Four,
}

impl Bits {
    /// Every rate, the lowest first.
    pub const ALL: [Self; 4] = [Self::One, Self::Two, Self::Three, Self::Four];

    /// The rate of this number of bits.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for anything but 1 to 4.
    pub fn new(argument: &'static str, bits: u32) -> Result<Self> {
        Family::Plain.rate(argument, bits)
    }

    /// Bits per value.
    pub const fn get(self) -> usize {
        self as usize + 1
    }
}

/// How an index stands for channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Family {
    /// 256 rows of 8 channels and norm 1: signed ones at 1 bit, positive ones beside 8 sign bits at
    /// 2 bits.
    #[default]
    Unit,
    /// Signed rows of any norm: 256 x 8, 256 x 4, 64 x 2, 256 x 2 (rows x channels) at 1 to 4 bits.
    Plain,
}

impl Family {
    /// The rate of this number of bits, if the family has it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for anything but 1 and 2 ([`Self::Unit`]) or 1 to 4 ([`Self::Plain`]).
    pub fn rate(self, argument: &'static str, bits: u32) -> Result<Bits> {
        let rates = match self {
            Self::Unit => &Bits::ALL[..2],
            Self::Plain => &Bits::ALL[..],
        };
        let fault = || Error::OutOfRange {
            argument,
            got: u64::from(bits),
            min: 1,
            max: rates.len() as u64,
        };
        (bits as usize).checked_sub(1).and_then(|at| rates.get(at)).copied().ok_or_else(fault)
    }

    /// Channels that share an index.
    pub const fn width(self, bits: Bits) -> usize {
        match (self, bits) {
            (Self::Unit, _) | (Self::Plain, Bits::One) => PIECE,
            (Self::Plain, Bits::Two) => 4,
            (Self::Plain, Bits::Three | Bits::Four) => 2,
        }
    }

    /// Rows of a book.
    pub const fn rows(self, bits: Bits) -> usize {
        match (self, bits) {
            (Self::Plain, Bits::Three) => 64,
            _ => CODEBOOK_ROWS,
        }
    }

    /// Whether the signs of the channels are stored beside the indices.
    pub const fn signs(self, bits: Bits) -> bool {
        matches!((self, bits), (Self::Unit, Bits::Two))
    }
}

/// How scales and means are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Metadata {
    /// 16 bits each: `s1` as [`encode_scale`] has it, `s2` and `o` as f16.
    #[default]
    Half,
    /// 4 bits each on the chunk's own grids ([`Grid`]): logarithmic for `s1` and `s2`, linear for
    /// `o`.
    Four,
    /// `s1` in 4 bits on a linear grid of the chunk, `o` in 4 bits on linear grids of [`GROUP`]
    /// channels each, `s2` as f16 (the form of arXiv 2505.18231).
    Linear,
}

/// Channels of a mean that share a grid with [`Metadata::Linear`].
pub const GROUP: usize = 32;

/// A vector of a page beside its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vector {
    /// First scales of the tokens.
    S1,
    /// Second scales of the tokens.
    S2,
    /// Mean of the channels.
    O,
}

impl Vector {
    /// Every vector, in the order in which a page has them.
    pub const ALL: [Self; 3] = [Self::S1, Self::S2, Self::O];
}

/// Shape of a packed page and where its parts lie, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageLayout {
    head_dim: usize,
    scheme: Scheme,
    chunk: usize,
}

impl PageLayout {
    /// The layout of pages of `chunk` tokens of `head_dim` channels of [`Profile::Compat`].
    ///
    /// # Errors
    /// As [`Self::with`].
    pub fn new(argument: &'static str, head_dim: usize, bits: Bits, chunk: usize) -> Result<Self> {
        Self::with(argument, head_dim, Profile::Compat.scheme(bits), chunk)
    }

    /// The layout of pages of `chunk` tokens of `head_dim` channels of a scheme.
    ///
    /// # Errors
    /// [`Error::HeadDim`]; [`Error::OutOfRange`] for a rate that the family has no book of and for a
    /// chunk outside [`MIN_CHUNK`] to [`MAX_CHUNK`].
    pub fn with(
        argument: &'static str,
        head_dim: usize,
        scheme: Scheme,
        chunk: usize,
    ) -> Result<Self> {
        check_head_dim(argument, head_dim)?;
        scheme.family.rate("bits", scheme.bits.get() as u32)?;
        if !(MIN_CHUNK..=MAX_CHUNK).contains(&chunk) {
            return Err(Error::OutOfRange {
                argument: "chunk",
                got: chunk as u64,
                min: MIN_CHUNK as u64,
                max: MAX_CHUNK as u64,
            });
        }
        Ok(Self { head_dim, scheme, chunk })
    }

    /// Channels per token.
    pub const fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// The choices that the pages were made by.
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Rate of the codes.
    pub const fn bits(&self) -> Bits {
        self.scheme.bits
    }

    /// Tokens per page.
    pub const fn chunk(&self) -> usize {
        self.chunk
    }

    /// Channels that share an index.
    pub const fn width(&self) -> usize {
        self.scheme.family.width(self.scheme.bits)
    }

    /// Bits of an index: 6 or 8.
    pub const fn index_bits(&self) -> usize {
        self.scheme.family.rows(self.scheme.bits).ilog2() as usize
    }

    /// Whether there is a sign plane.
    pub const fn signs(&self) -> bool {
        self.scheme.family.signs(self.scheme.bits)
    }

    /// Indices per token.
    pub const fn pieces(&self) -> usize {
        self.head_dim / self.width()
    }

    /// Words of the indices, and of the signs where there are any.
    pub const fn plane_words(&self) -> usize {
        (self.chunk * self.pieces() * self.index_bits()).div_ceil(32)
    }

    /// First word of the sign plane; equal to [`Self::s1_offset`] when there is none.
    pub const fn sign_offset(&self) -> usize {
        self.plane_words()
    }

    /// First word of `s1`.
    pub const fn s1_offset(&self) -> usize {
        self.plane_words() * if self.signs() { 2 } else { 1 }
    }

    /// Numbers of a vector in a word.
    const fn per_word(&self, vector: Vector) -> usize {
        match (self.scheme.metadata, vector) {
            (Metadata::Half, _) | (Metadata::Linear, Vector::S2) => 2,
            (Metadata::Four | Metadata::Linear, _) => 8,
        }
    }

    /// First word of a vector.
    pub const fn offset(&self, vector: Vector) -> usize {
        match vector {
            Vector::S1 => self.s1_offset(),
            Vector::S2 => self.s2_offset(),
            Vector::O => self.o_offset(),
        }
    }

    /// First word of `s2`.
    pub const fn s2_offset(&self) -> usize {
        self.s1_offset() + self.chunk.div_ceil(self.per_word(Vector::S1))
    }

    /// First word of `o`.
    pub const fn o_offset(&self) -> usize {
        self.s2_offset() + self.chunk.div_ceil(self.per_word(Vector::S2))
    }

    /// First word of the grids, a word each: those of `s1`, `s2` and `o` with [`Metadata::Four`],
    /// those of `s1` and of the groups of `o` with [`Metadata::Linear`]; the end of the page where
    /// there are none.
    pub const fn grid_offset(&self) -> usize {
        self.o_offset() + self.head_dim / self.per_word(Vector::O)
    }

    /// Grids of a page.
    pub const fn grids(&self) -> usize {
        match self.scheme.metadata {
            Metadata::Half => 0,
            Metadata::Four => 3,
            Metadata::Linear => 1 + self.head_dim.div_ceil(GROUP),
        }
    }

    /// The grid of a channel of the mean, if means have grids.
    pub const fn mean_grid(&self, channel: usize) -> usize {
        match self.scheme.metadata {
            Metadata::Half | Metadata::Four => 2,
            Metadata::Linear => 1 + channel / GROUP,
        }
    }

    /// Words of a page.
    pub const fn words(&self) -> usize {
        self.grid_offset() + self.grids()
    }

    /// Bytes of codes in a page: `chunk * head_dim * bits / 8`.
    pub const fn code_bytes(&self) -> usize {
        self.chunk * (self.head_dim / 8) * self.scheme.bits.get()
    }

    /// Bytes of `s1` and `s2` in a page with their grids: 4 a token, 1 a token and 8, or 2.5 a token
    /// and 4.
    pub const fn scale_bytes(&self) -> usize {
        match self.scheme.metadata {
            Metadata::Half => 4 * self.chunk,
            Metadata::Four => 2 * self.chunk.div_ceil(2) + 8,
            Metadata::Linear => self.chunk.div_ceil(2) + 4 + 2 * self.chunk,
        }
    }

    /// Bytes of `o` in a page with its grids: 2 a channel, or half a one and 4 a grid.
    pub const fn mean_bytes(&self) -> usize {
        match self.scheme.metadata {
            Metadata::Half => 2 * self.head_dim,
            Metadata::Four => self.head_dim / 2 + 4,
            Metadata::Linear => self.head_dim / 2 + 4 * self.head_dim.div_ceil(GROUP),
        }
    }

    /// Bytes of data in a page, padding not counted.
    pub const fn data_bytes(&self) -> usize {
        self.code_bytes() + self.scale_bytes() + self.mean_bytes()
    }

    /// Reads index `piece` of a page, counted over its tokens.
    pub fn index(&self, page: &[u32], piece: usize) -> u8 {
        let bit = piece * self.index_bits();
        let (word, shift) = (bit / 32, bit % 32);
        let low = page[word] >> shift;
        // Only an index of 6 bits can lie in two words.
        let high = if shift > 26 { page[word + 1] << (32 - shift) } else { 0 };
        let mask = if self.index_bits() == 6 { 0x3f } else { 0xff };
        ((low | high) & mask) as u8
    }

    /// Writes index `piece` of a page, counted over its tokens.
    pub fn set_index(&self, page: &mut [u32], piece: usize, value: u8) {
        let bit = piece * self.index_bits();
        let (word, shift) = (bit / 32, bit % 32);
        let mask = if self.index_bits() == 6 { 0x3f } else { 0xffu32 };
        let value = u32::from(value) & mask;
        page[word] = page[word] & !(mask << shift) | value << shift;
        if shift > 26 {
            let high = &mut page[word + 1];
            *high = *high & !(mask >> (32 - shift)) | value >> (32 - shift);
        }
    }

    /// Reads the byte at `byte` of the plane that starts at word `plane`.
    pub fn byte(page: &[u32], plane: usize, byte: usize) -> u8 {
        (page[plane + byte / 4] >> (8 * (byte % 4))) as u8
    }

    /// Writes the byte at `byte` of the plane that starts at word `plane`.
    pub fn set_byte(page: &mut [u32], plane: usize, byte: usize, value: u8) {
        let shift = 8 * (byte % 4);
        let word = &mut page[plane + byte / 4];
        *word = *word & !(0xff << shift) | u32::from(value) << shift;
    }

    /// Reads the number at `index` of a vector as stored: 16 or 4 bits.
    pub fn stored(&self, page: &[u32], vector: Vector, index: usize) -> u16 {
        let first = self.offset(vector);
        match self.per_word(vector) {
            2 => Self::half(page, first, index),
            _ => (page[first + index / 8] >> (4 * (index % 8))) as u16 & 15,
        }
    }

    /// Writes the number at `index` of a vector as stored.
    pub fn set_stored(&self, page: &mut [u32], vector: Vector, index: usize, value: u16) {
        let first = self.offset(vector);
        match self.per_word(vector) {
            2 => Self::set_half(page, first, index, value),
            _ => {
                let shift = 4 * (index % 8);
                let word = &mut page[first + index / 8];
                *word = *word & !(15 << shift) | u32::from(value & 15) << shift;
            }
        }
    }

    /// Grid `which` of a page with 4-bit codes, in the order of [`Self::grid_offset`].
    ///
    /// # Panics
    /// When the page has no such grid.
    pub fn grid(&self, page: &[u32], which: usize) -> Grid {
        Grid::from_word(page[self.grid_offset() + which])
    }

    /// Writes a grid of a page with 4-bit codes.
    ///
    /// # Panics
    /// When the page has no such grid.
    pub fn set_grid(&self, page: &mut [u32], which: usize, grid: Grid) {
        page[self.grid_offset() + which] = grid.word();
    }

    /// Reads the half at `index` of the vector that starts at word `vector`.
    pub fn half(page: &[u32], vector: usize, index: usize) -> u16 {
        (page[vector + index / 2] >> (16 * (index % 2))) as u16
    }

    /// Writes the half at `index` of the vector that starts at word `vector`.
    pub fn set_half(page: &mut [u32], vector: usize, index: usize, value: u16) {
        let shift = 16 * (index % 2);
        let word = &mut page[vector + index / 2];
        *word = *word & !(0xffff << shift) | u32::from(value) << shift;
    }
}

/// Stores a row scale in 16 bits: f16 where f16 holds it; a scale beyond f16 (from 65,520 on, which
/// only bf16 and f32 input can have) as bf16 with the sign bit set, since a scale is never negative.
///
/// Relative error at most 2^-11 in f16's normal range and 2^-8 beyond it; below f16's normal range
/// the absolute error is at most 2^-25, so a row whose scale is under 2^-25 comes back as zero.
pub fn encode_scale(scale: f32) -> u16 {
    let half = f16::from_f32(scale);
    if half.is_finite() {
        half.to_bits()
    } else {
        // Rounding up from the top of the range would reach infinity.
        bf16::from_f32(scale).to_bits().min(bf16::MAX.to_bits()) | 0x8000
    }
}

/// Reads back what [`encode_scale`] stored.
pub fn decode_scale(stored: u16) -> f32 {
    if stored & 0x8000 == 0 {
        f16::from_bits(stored).to_f32()
    } else {
        bf16::from_bits(stored & 0x7fff).to_f32()
    }
}
