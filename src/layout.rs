//! How a packed page lies in memory: the only file that knows the bit packing.
//!
//! A page holds one tensor (keys or values) of one chunk of one KV head, as little-endian 32-bit
//! words, in this order: the index plane (one byte per piece of 8 channels, token after token), at
//! 2 bits the sign plane (the same shape), `s1` and `s2` (f16 per token), `o` (f16 per channel).
//! Every plane starts on a word.

pub mod pool;
pub mod tables;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bits {
    /// An index into 256 signed centroids per 8 channels.
    One,
    /// 8 signs and an index into 256 positive centroids per 8 channels.
    Two,
}

impl Bits {
    /// The rate of this number of bits.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for anything but 1 and 2.
    pub fn new(argument: &'static str, bits: u32) -> Result<Self> {
        match bits {
            1 => Ok(Self::One),
            2 => Ok(Self::Two),
            _ => Err(Error::OutOfRange { argument, got: u64::from(bits), min: 1, max: 2 }),
        }
    }

    /// Bits per value: 1 or 2.
    pub const fn get(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// Shape of a packed page and where its parts lie, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageLayout {
    head_dim: usize,
    bits: Bits,
    chunk: usize,
}

impl PageLayout {
    /// The layout of pages of `chunk` tokens of `head_dim` channels.
    ///
    /// # Errors
    /// [`Error::HeadDim`]; [`Error::OutOfRange`] for a chunk outside [`MIN_CHUNK`] to [`MAX_CHUNK`].
    pub fn new(argument: &'static str, head_dim: usize, bits: Bits, chunk: usize) -> Result<Self> {
        check_head_dim(argument, head_dim)?;
        if !(MIN_CHUNK..=MAX_CHUNK).contains(&chunk) {
            return Err(Error::OutOfRange {
                argument: "chunk",
                got: chunk as u64,
                min: MIN_CHUNK as u64,
                max: MAX_CHUNK as u64,
            });
        }
        Ok(Self { head_dim, bits, chunk })
    }

    /// Channels per token.
    pub const fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Rate of the codes.
    pub const fn bits(&self) -> Bits {
        self.bits
    }

    /// Tokens per page.
    pub const fn chunk(&self) -> usize {
        self.chunk
    }

    /// Pieces of 8 channels per token.
    pub const fn pieces(&self) -> usize {
        self.head_dim / PIECE
    }

    /// Words of one plane of codes.
    pub const fn plane_words(&self) -> usize {
        (self.chunk * self.pieces()).div_ceil(4)
    }

    /// First word of the sign plane; equal to [`Self::s1_offset`] when there is none (1 bit).
    pub const fn sign_offset(&self) -> usize {
        self.plane_words()
    }

    /// First word of `s1`.
    pub const fn s1_offset(&self) -> usize {
        self.plane_words() * self.bits.get()
    }

    /// First word of `s2`.
    pub const fn s2_offset(&self) -> usize {
        self.s1_offset() + self.chunk.div_ceil(2)
    }

    /// First word of `o`.
    pub const fn o_offset(&self) -> usize {
        self.s2_offset() + self.chunk.div_ceil(2)
    }

    /// Words of a page.
    pub const fn words(&self) -> usize {
        self.o_offset() + self.head_dim / 2
    }

    /// Bytes of codes in a page: `chunk * head_dim * bits / 8`.
    pub const fn code_bytes(&self) -> usize {
        self.chunk * self.pieces() * self.bits.get()
    }

    /// Bytes of `s1` and `s2` in a page: 4 a token.
    pub const fn scale_bytes(&self) -> usize {
        4 * self.chunk
    }

    /// Bytes of `o` in a page: 2 a channel.
    pub const fn mean_bytes(&self) -> usize {
        2 * self.head_dim
    }

    /// Bytes of data in a page, padding not counted.
    pub const fn data_bytes(&self) -> usize {
        self.code_bytes() + self.scale_bytes() + self.mean_bytes()
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
