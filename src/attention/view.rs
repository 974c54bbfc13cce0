//! What attention reads: rows of a cache and queries, in host memory.

use half::f16;

use crate::error::{Error, Result};
use crate::nsnquant::{Codec, check_factors};
use crate::shape::{Elements, check_head_dim, check_offsets};

/// Rows of a cache; a row is one KV head of one sequence, the rows of a sequence side by side. Each
/// row has any number of raw and of packed tokens, in any order of positions.
#[derive(Clone, Copy, Debug)]
pub struct CacheView<'a> {
    /// Rows: sequences times KV heads.
    pub kv_rows: usize,
    /// Channels of a key.
    pub head_dim_k: usize,
    /// Channels of a value.
    pub head_dim_v: usize,
    /// First raw token of each row, and the number of all, `[kv_rows + 1]`.
    pub raw_offsets: &'a [u32],
    /// Raw keys `[raw tokens, head_dim_k]`.
    pub raw_keys: Elements<'a>,
    /// Raw values `[raw tokens, head_dim_v]`.
    pub raw_values: Elements<'a>,
    /// Positions of the raw tokens; may be empty where attention is not causal.
    pub raw_positions: &'a [u32],
    /// Packed pages, if any.
    pub packed: Option<PackedView<'a>>,
}

/// Packed pages of the rows of a cache; keys and values have the same pages and tokens.
#[derive(Clone, Copy, Debug)]
pub struct PackedView<'a> {
    /// How keys are packed.
    pub keys: &'a Codec,
    /// How values are packed.
    pub values: &'a Codec,
    /// First page of each row, and the number of all, `[kv_rows + 1]`.
    pub page_offsets: &'a [u32],
    /// Key pages `[pages, words]`.
    pub key_pages: &'a [u32],
    /// Value pages `[pages, words]`.
    pub value_pages: &'a [u32],
    /// Positions of the tokens `[pages, chunk]`; may be empty where attention is not causal and the
    /// key codec knows no rotary embedding.
    pub page_positions: &'a [u32],
    /// The key scale that the pages of each row are packed under, `[kv_rows, head_dim_k]`, if any.
    pub key_scales: Option<&'a [f16]>,
}

/// Queries `[batch, heads, tokens, head_dim]`. Query head j reads KV head `j * H / heads` of its
/// sequence, H being the KV heads.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// The elements, `[batch, heads, tokens, head_dim]`.
    pub data: Elements<'a>,
    /// Sequences of the batch.
    pub batch: usize,
    /// Query heads of a sequence, a multiple of its KV heads.
    pub heads: usize,
    /// Query tokens of a sequence.
    pub tokens: usize,
    /// Channels; those of the keys.
    pub head_dim: usize,
}

impl CacheView<'_> {
    /// Checks that the parts belong together.
    ///
    /// # Errors
    /// [`Error::Empty`] without rows; [`Error::HeadDim`]; [`Error::Length`] and [`Error::Offsets`]
    /// where a part does not fit; [`Error::Mismatch`] for codecs of other shapes.
    pub(super) fn check(&self, causal: bool) -> Result<()> {
        if self.kv_rows == 0 {
            return Err(Error::Empty { argument: "kv_rows" });
        }
        check_head_dim("head_dim_k", self.head_dim_k)?;
        check_head_dim("head_dim_v", self.head_dim_v)?;
        let total = self.raw_offsets.last().map_or(0, |total| *total as usize);
        check_offsets("raw_offsets", self.raw_offsets, self.kv_rows, total)?;
        length("raw_keys", self.raw_keys.len(), total * self.head_dim_k)?;
        length("raw_values", self.raw_values.len(), total * self.head_dim_v)?;
        positions("raw_positions", self.raw_positions.len(), total, causal)?;
        let Some(packed) = &self.packed else { return Ok(()) };
        check_codecs(packed.keys, packed.values, self.head_dim_k, self.head_dim_v)?;
        let pages = packed.page_offsets.last().map_or(0, |total| *total as usize);
        check_offsets("page_offsets", packed.page_offsets, self.kv_rows, pages)?;
        let (keys, values) = (packed.keys.layout(), packed.values.layout());
        length("key_pages", packed.key_pages.len(), pages * keys.words())?;
        length("value_pages", packed.value_pages.len(), pages * values.words())?;
        if let Some(scales) = packed.key_scales {
            length("key_scales", scales.len(), self.kv_rows * self.head_dim_k)?;
            check_factors(scales)?;
        }
        let needed = causal || packed.keys.rope().is_some();
        positions("page_positions", packed.page_positions.len(), pages * keys.chunk(), needed)
    }
}

/// Checks that two codecs have the head dimensions of the cache and one chunk length.
pub(super) fn check_codecs(
    keys: &Codec,
    values: &Codec,
    head_dim_k: usize,
    head_dim_v: usize,
) -> Result<()> {
    same("head_dim of the key codec", keys.layout().head_dim(), head_dim_k, "head_dim_k")?;
    same("head_dim of the value codec", values.layout().head_dim(), head_dim_v, "head_dim_v")?;
    if values.rope().is_some() {
        let expected = "no rotary embedding";
        return Err(Error::Codec { argument: "value codec", expected });
    }
    let chunk = keys.layout().chunk();
    same("chunk of the value codec", values.layout().chunk(), chunk, "the key codec")
}

/// Refuses two numbers that should be one.
pub(super) fn same(
    argument: &'static str,
    got: usize,
    expected: usize,
    reference: &'static str,
) -> Result<()> {
    if got == expected {
        Ok(())
    } else {
        Err(Error::Mismatch { argument, got, expected, reference })
    }
}

/// Refuses a list of the wrong length.
pub(super) fn length(argument: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::Length { argument, got, expected }) }
}

fn positions(argument: &'static str, got: usize, expected: usize, needed: bool) -> Result<()> {
    if got == 0 && !needed { Ok(()) } else { length(argument, got, expected) }
}
