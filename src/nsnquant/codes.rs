//! Pages taken apart, for files, tests and people.

use super::codec::Codec;
use crate::error::Result;
use crate::layout::{Bits, PageLayout};

/// The parts of a list of pages, plane by plane, page after page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codes {
    /// Codebook indices `[pages, chunk, head_dim / 8]`.
    pub idx: Vec<u8>,
    /// Sign masks of the same shape at 2 bits: bit e is set where channel e of the piece is at
    /// least 0.
    pub signs: Option<Vec<u8>>,
    /// Token scales `[pages, chunk]` as stored: see [`crate::layout::encode_scale`].
    pub s1: Vec<u16>,
    /// Second token scales `[pages, chunk]`, f16 bits.
    pub s2: Vec<u16>,
    /// Channel means `[pages, head_dim]`, f16 bits.
    pub o: Vec<u16>,
}

impl Codes {
    /// Takes pages apart.
    ///
    /// # Errors
    /// [`crate::Error::Length`] when `pages` is no whole number of pages.
    pub fn unpack(codec: &Codec, pages: &[u32]) -> Result<Self> {
        let layout = codec.layout();
        codec.page_count("pages", pages.len())?;
        let bytes = |plane: usize| -> Vec<u8> {
            pages
                .chunks_exact(layout.words())
                .flat_map(|page| {
                    (0..layout.chunk() * layout.pieces())
                        .map(move |i| PageLayout::byte(page, plane, i))
                })
                .collect()
        };
        let halves = |vector: usize, len: usize| -> Vec<u16> {
            pages
                .chunks_exact(layout.words())
                .flat_map(|page| (0..len).map(move |i| PageLayout::half(page, vector, i)))
                .collect()
        };
        Ok(Self {
            idx: bytes(0),
            signs: (layout.bits() == Bits::Two).then(|| bytes(layout.sign_offset())),
            s1: halves(layout.s1_offset(), layout.chunk()),
            s2: halves(layout.s2_offset(), layout.chunk()),
            o: halves(layout.o_offset(), layout.head_dim()),
        })
    }

    /// Puts pages together again.
    ///
    /// # Errors
    /// [`crate::Error::Length`] when the parts do not belong to the same whole number of pages of
    /// this codec.
    pub fn pack(&self, codec: &Codec) -> Result<Vec<u32>> {
        let layout = codec.layout();
        let codes = layout.chunk() * layout.pieces();
        let pages = self.s1.len() / layout.chunk();
        let fits = |argument, got: usize, per_page: usize| {
            let expected = pages * per_page;
            if got == expected {
                Ok(())
            } else {
                Err(crate::Error::Length { argument, got, expected })
            }
        };
        fits("idx", self.idx.len(), codes)?;
        let sign_codes = codes * (layout.bits().get() - 1);
        fits("signs", self.signs.as_ref().map_or(0, Vec::len), sign_codes)?;
        fits("s1", self.s1.len(), layout.chunk())?;
        fits("s2", self.s2.len(), layout.chunk())?;
        fits("o", self.o.len(), layout.head_dim())?;
        let mut out = vec![0; pages * layout.words()];
        for (p, page) in out.chunks_exact_mut(layout.words()).enumerate() {
            for i in 0..codes {
                PageLayout::set_byte(page, 0, i, self.idx[p * codes + i]);
                if let Some(signs) = &self.signs {
                    PageLayout::set_byte(page, layout.sign_offset(), i, signs[p * codes + i]);
                }
            }
            for t in 0..layout.chunk() {
                let at = p * layout.chunk() + t;
                PageLayout::set_half(page, layout.s1_offset(), t, self.s1[at]);
                PageLayout::set_half(page, layout.s2_offset(), t, self.s2[at]);
            }
            for c in 0..layout.head_dim() {
                let o = self.o[p * layout.head_dim() + c];
                PageLayout::set_half(page, layout.o_offset(), c, o);
            }
        }
        Ok(out)
    }
}
