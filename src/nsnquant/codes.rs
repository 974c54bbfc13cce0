//! Pages taken apart, for files, tests and people.

use super::codec::Codec;
use crate::error::Result;
use crate::layout::{PageLayout, Vector};

/// The parts of a list of pages, plane by plane, page after page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codes {
    /// Codebook indices `[pages, chunk, pieces]`.
    pub idx: Vec<u8>,
    /// Sign masks of the same shape where they are stored (unit books at 2 bits): bit e is set where channel e of the piece is at
    /// least 0.
    pub signs: Option<Vec<u8>>,
    /// Token scales `[pages, chunk]` as stored: see [`crate::layout::encode_scale`]; 4-bit codes where
    /// there are grids.
    pub s1: Vec<u16>,
    /// Second token scales `[pages, chunk]`, f16 bits or 4-bit codes.
    pub s2: Vec<u16>,
    /// Channel means `[pages, head_dim]`, f16 bits or 4-bit codes.
    pub o: Vec<u16>,
    /// Grids of the 4-bit codes, `[pages, grids]`, as their words ([`crate::layout::Grid`]); empty
    /// without.
    pub grids: Vec<u32>,
}

impl Codes {
    /// Takes pages apart.
    ///
    /// # Errors
    /// [`crate::Error::Length`] when `pages` is no whole number of pages.
    pub fn unpack(codec: &Codec, pages: &[u32]) -> Result<Self> {
        let layout = codec.layout();
        codec.page_count("pages", pages.len())?;
        let (tokens, dim) = (layout.chunk(), layout.head_dim());
        let parts = pages.chunks_exact(layout.words());
        let stored = |vector: Vector, len: usize| -> Vec<u16> {
            let of = |page| (0..len).map(move |i| layout.stored(page, vector, i));
            parts.clone().flat_map(of).collect()
        };
        let codes = tokens * layout.pieces();
        let idx = parts.clone().flat_map(|page| (0..codes).map(|i| layout.index(page, i)));
        let signs = parts
            .clone()
            .flat_map(|page| (0..codes).map(|i| PageLayout::byte(page, layout.sign_offset(), i)));
        Ok(Self {
            idx: idx.collect(),
            signs: layout.signs().then(|| signs.collect()),
            s1: stored(Vector::S1, tokens),
            s2: stored(Vector::S2, tokens),
            o: stored(Vector::O, dim),
            grids: parts.flat_map(|page| page[layout.grid_offset()..].iter().copied()).collect(),
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
        let sign_codes = if layout.signs() { codes } else { 0 };
        fits("signs", self.signs.as_ref().map_or(0, Vec::len), sign_codes)?;
        fits("s1", self.s1.len(), layout.chunk())?;
        fits("s2", self.s2.len(), layout.chunk())?;
        fits("o", self.o.len(), layout.head_dim())?;
        let grids = layout.words() - layout.grid_offset();
        fits("grids", self.grids.len(), grids)?;
        let mut out = vec![0; pages * layout.words()];
        for (p, page) in out.chunks_exact_mut(layout.words()).enumerate() {
            for i in 0..codes {
                layout.set_index(page, i, self.idx[p * codes + i]);
                if let Some(signs) = &self.signs {
                    PageLayout::set_byte(page, layout.sign_offset(), i, signs[p * codes + i]);
                }
            }
            for t in 0..layout.chunk() {
                let at = p * layout.chunk() + t;
                layout.set_stored(page, Vector::S1, t, self.s1[at]);
                layout.set_stored(page, Vector::S2, t, self.s2[at]);
            }
            for c in 0..layout.head_dim() {
                let o = self.o[p * layout.head_dim() + c];
                layout.set_stored(page, Vector::O, c, o);
            }
            let own = &self.grids[p * grids..(p + 1) * grids];
            page[layout.grid_offset()..].copy_from_slice(own);
        }
        Ok(out)
    }
}
