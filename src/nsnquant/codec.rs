//! What a chunk is packed with: a page layout and a codebook.

use std::sync::Arc;

use super::codebook::Codebook;
use super::hadamard::Hadamard;
use crate::error::{Error, Result};
use crate::layout::{Bits, PIECE, PageLayout};

/// Smallest scale of a token: a row of zeros divides by it (arXiv 2505.18231, section 4.1).
pub(crate) const MIN_SCALE: f32 = 1e-8;

/// A page layout with the codebook and the Hadamard transform that go with it.
///
/// Profile: post-RoPE keys, 16-bit scales and means, nearest unit centroid by dot product, the
/// decoded token rescaled to norm sqrt(d). The unrounded scales and means are used on the way to
/// the codes; they are rounded when stored.
#[derive(Clone, Debug)]
pub struct Codec {
    layout: PageLayout,
    codebook: Arc<Codebook>,
    hadamard: Hadamard,
}

impl Codec {
    /// Puts a layout and a codebook together.
    ///
    /// # Errors
    /// [`Error::HeadDim`] when the layout's head dimension has no Hadamard matrix here.
    pub fn new(layout: PageLayout, codebook: Arc<Codebook>) -> Result<Self> {
        let hadamard = Hadamard::new("head_dim", layout.head_dim())?;
        Ok(Self { layout, codebook, hadamard })
    }

    /// Shape of a page.
    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// The codebook.
    pub fn codebook(&self) -> &Arc<Codebook> {
        &self.codebook
    }

    /// The transform of a token.
    pub fn hadamard(&self) -> &Hadamard {
        &self.hadamard
    }

    /// Looks up token `token` of a page in the Hadamard domain: `out[d]` gets its centroids with
    /// their signs, and the gain `sqrt(d) / max(|c|, 1e-8)` that brings them to norm sqrt(d) comes
    /// back. The stored token is `s1 * (s2 * gain * H^T out + o)`.
    ///
    /// # Panics
    /// When `page` is shorter than the layout's page, `out` not of `head_dim` channels or `token`
    /// outside the chunk.
    pub fn centroids(&self, page: &[u32], token: usize, out: &mut [f32]) -> f32 {
        let layout = &self.layout;
        assert!(token < layout.chunk() && out.len() == layout.head_dim());
        let mut square = 0.0f32;
        for (piece, out) in out.chunks_exact_mut(PIECE).enumerate() {
            let byte = token * layout.pieces() + piece;
            let index = PageLayout::byte(page, 0, byte);
            let signs = match layout.bits() {
                Bits::One => 0xff,
                Bits::Two => PageLayout::byte(page, layout.sign_offset(), byte),
            };
            let row = self.codebook.row(layout.bits(), index);
            for (channel, (out, value)) in out.iter_mut().zip(row).enumerate() {
                let flip = u32::from(!signs >> channel & 1) << 31;
                *out = f32::from_bits(value.to_bits() ^ flip);
            }
            square += square_sum(row);
        }
        (layout.head_dim() as f32).sqrt() / square.sqrt().max(MIN_SCALE)
    }

    /// The scale `s1` of token `token` of a page.
    pub fn s1(&self, page: &[u32], token: usize) -> f32 {
        crate::layout::decode_scale(PageLayout::half(page, self.layout.s1_offset(), token))
    }

    /// The scale `s2` of token `token` of a page.
    pub fn s2(&self, page: &[u32], token: usize) -> f32 {
        half::f16::from_bits(PageLayout::half(page, self.layout.s2_offset(), token)).to_f32()
    }

    /// The mean `o` of channel `channel` of a page.
    pub fn o(&self, page: &[u32], channel: usize) -> f32 {
        half::f16::from_bits(PageLayout::half(page, self.layout.o_offset(), channel)).to_f32()
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

/// Sum of the squares of one piece, in the order that every path keeps.
pub(super) fn square_sum(v: &[f32]) -> f32 {
    ((v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3]))
        + ((v[4] * v[4] + v[5] * v[5]) + (v[6] * v[6] + v[7] * v[7]))
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
