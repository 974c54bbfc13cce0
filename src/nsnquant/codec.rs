//! What a chunk is packed with: a page layout, a book, and the choices of a scheme.

use std::sync::Arc;

use half::f16;

use super::codebook::{Book, Codebook, square_sum};
use super::hadamard::Hadamard;
use super::rope::Rope;
use crate::error::{Error, Result};
use crate::layout::{Family, Gain, MeanDomain, Metadata, PIECE, PageLayout, Scheme, Vector};

/// Smallest scale of a token: a row of zeros divides by it (steps 1 and 3 of [`crate::nsnquant`]).
pub(crate) const MIN_SCALE: f32 = 1e-8;

/// A page layout with the book, the Hadamard transform and the choices that go with it.
///
/// With 16-bit scales and means the unrounded ones are used on the way to the codes and rounded when
/// stored; those of 4 bits are quantised before the next step uses them.
#[derive(Clone, Debug)]
pub struct Codec {
    layout: PageLayout,
    codebook: Arc<Codebook>,
    book: Arc<Book>,
    hadamard: Hadamard,
    rope: Option<Rope>,
}

impl Codec {
    /// Puts a layout and a codebook together.
    ///
    /// # Errors
    /// [`Error::HeadDim`] when the layout's head dimension has no Hadamard matrix here.
    pub fn new(layout: PageLayout, codebook: Arc<Codebook>) -> Result<Self> {
        let scheme = layout.scheme();
        let hadamard = Hadamard::signed("head_dim", layout.head_dim(), scheme.signs)?;
        let book = codebook.book(scheme.family, scheme.bits)?.clone();
        Ok(Self { layout, codebook, book, hadamard, rope: None })
    }

    /// This codec for keys after a rotary embedding, which it takes off (as arXiv 2505.18231 packs keys): the mean of a chunk is that
    /// of the keys turned back from their positions, and what is left of a key is taken from the mean
    /// turned to its position. So rows need their positions, when they are packed and whenever a page
    /// is read.
    ///
    /// # Errors
    /// As [`Rope::check`].
    pub fn with_rope(self, rope: Option<Rope>) -> Result<Self> {
        if let Some(rope) = &rope {
            rope.check(self.layout.head_dim())?;
        }
        Ok(Self { rope, ..self })
    }

    /// The rotary embedding that the codec takes off.
    pub fn rope(&self) -> Option<&Rope> {
        self.rope.as_ref()
    }

    /// Checks positions of `rows` rows; without an embedding there may be none.
    ///
    /// # Errors
    /// [`Error::Length`].
    pub(crate) fn check_positions(&self, positions: &[u32], rows: usize) -> Result<()> {
        if positions.len() == rows || positions.is_empty() && self.rope.is_none() {
            return Ok(());
        }
        Err(Error::Length { argument: "positions", got: positions.len(), expected: rows })
    }

    /// Largest factor by which the gain lengthens a token. Tokens that are close to normal need at
    /// most 1.5 with plain books; one that the transform leaves in a single channel may ask for
    /// sqrt(d) / 3, which would carry the rounding of its other channels along. Rows of unit books
    /// are shorter by sqrt(8).
    pub(crate) fn max_gain(&self) -> f32 {
        match self.scheme().family {
            Family::Plain => 4.0,
            Family::Unit => 11.313_709,
        }
    }

    /// The codec of a scheme for chunks of `chunk` tokens of `head_dim` channels.
    ///
    /// # Errors
    /// As [`PageLayout::with`].
    pub fn with(
        argument: &'static str,
        head_dim: usize,
        scheme: Scheme,
        chunk: usize,
        codebook: Arc<Codebook>,
    ) -> Result<Self> {
        Self::new(PageLayout::with(argument, head_dim, scheme, chunk)?, codebook)
    }

    /// Where codes, scales and means lie in a page, in words.
    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// The choices that the codec is made of.
    pub fn scheme(&self) -> Scheme {
        self.layout.scheme()
    }

    /// The codebook that codes are entries of.
    pub fn codebook(&self) -> &Arc<Codebook> {
        &self.codebook
    }

    /// The book of the codec's family and rate.
    pub fn book(&self) -> &Book {
        &self.book
    }

    /// The transform of a token.
    pub fn hadamard(&self) -> &Hadamard {
        &self.hadamard
    }

    /// Step 5 backwards: looks up token `token` of a page in the Hadamard domain: `out[d]` gets its centroids with
    /// their signs, and the gain that they still need comes back: `sqrt(d) / max(|c|, 1e-8)` with
    /// [`Gain::TokenNorm`], else 1. The stored token is `s1 * (s2 * gain * H^T out + o)`.
    ///
    /// # Panics
    /// When `page` is shorter than the layout's page, `out` not of `head_dim` channels or `token`
    /// outside the chunk.
    pub fn centroids(&self, page: &[u32], token: usize, out: &mut [f32]) -> f32 {
        let layout = &self.layout;
        assert!(token < layout.chunk() && out.len() == layout.head_dim());
        let first = token * layout.pieces();
        for (piece, out) in out.chunks_exact_mut(layout.width()).enumerate() {
            out.copy_from_slice(self.book.row(layout.index(page, first + piece)));
        }
        if layout.signs() {
            for (piece, out) in out.chunks_exact_mut(PIECE).enumerate() {
                let signs = PageLayout::byte(page, layout.sign_offset(), first + piece);
                for (channel, value) in out.iter_mut().enumerate() {
                    let flip = u32::from(!signs >> channel & 1) << 31;
                    *value = f32::from_bits(value.to_bits() ^ flip);
                }
            }
        }
        match self.scheme().gain {
            Gain::TokenNorm => {
                let square = out.chunks_exact(PIECE).map(square_sum).fold(0.0, |a, b| a + b);
                (layout.head_dim() as f32).sqrt() / square.sqrt().max(MIN_SCALE)
            }
            Gain::Unbiased | Gain::NormPreserving => 1.0,
        }
    }

    /// The scale `s1` (step 1) of token `token` of a page; 0 for a non-finite one.
    pub fn s1(&self, page: &[u32], token: usize) -> f32 {
        let stored = self.layout.stored(page, Vector::S1, token);
        match self.scheme().metadata {
            Metadata::Half => finite(crate::layout::decode_scale(stored)),
            Metadata::Four => self.layout.grid(page, 0).scale(stored),
            Metadata::Linear => self.layout.grid(page, 0).linear_scale(stored),
        }
    }

    /// The scale `s2` (step 3) of token `token` of a page, with the gain where that is folded in; 0 for a
    /// non-finite one.
    pub fn s2(&self, page: &[u32], token: usize) -> f32 {
        let stored = self.layout.stored(page, Vector::S2, token);
        match self.scheme().metadata {
            Metadata::Half | Metadata::Linear => finite(f16::from_bits(stored).to_f32()),
            Metadata::Four => self.layout.grid(page, 1).scale(stored),
        }
    }

    /// The mean `o` (step 2) of channel `channel` of a page, in the domain in which it is stored; 0 for a
    /// non-finite one.
    pub fn o(&self, page: &[u32], channel: usize) -> f32 {
        let stored = self.layout.stored(page, Vector::O, channel);
        match self.scheme().metadata {
            Metadata::Half => finite(f16::from_bits(stored).to_f32()),
            Metadata::Four | Metadata::Linear => {
                self.layout.grid(page, self.layout.mean_grid(channel)).value(stored)
            }
        }
    }

    /// The mean of a page, not transformed.
    ///
    /// # Panics
    /// When `out` is not of `head_dim` channels.
    pub fn mean(&self, page: &[u32], out: &mut [f32]) {
        for (channel, o) in out.iter_mut().enumerate() {
            *o = self.o(page, channel);
        }
        if self.scheme().mean == MeanDomain::Hadamard {
            self.hadamard.inverse(out);
        }
    }

    /// Checks that `words` is a whole number of pages and returns how many.
    ///
    /// # Errors
    /// [`Error::Length`] otherwise.
    pub fn page_count(&self, argument: &'static str, words: usize) -> Result<usize> {
        let size = self.layout.words();
        if words.is_multiple_of(size) {
            Ok(words / size)
        } else {
            Err(Error::Length {
                argument,
                got: words,
                expected: crate::shape::next_multiple(words, size),
            })
        }
    }
}

/// A page that was not made by an encoder may hold a non-finite number, which reads as 0.
fn finite(value: f32) -> f32 {
    if value.is_finite() { value } else { 0.0 }
}

/// Bits per value of packed keys and values together, scales and means counted, raw rows not;
/// 16 when nothing is packed.
pub fn assigned_avg_bits(keys: &PageLayout, values: &PageLayout, packed_tokens: usize) -> f64 {
    if packed_tokens == 0 {
        return 16.0;
    }
    let bits = |layout: &PageLayout| 8.0 * layout.data_bytes() as f64 / layout.chunk() as f64;
    (bits(keys) + bits(values)) / (keys.head_dim() + values.head_dim()) as f64
}
