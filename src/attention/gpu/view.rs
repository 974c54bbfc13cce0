//! What attention reads, in device memory.

use crate::attention::view::{check_codecs, length};
use crate::error::{Error, Result};
use crate::gpu::Slice;
use crate::nsnquant::gpu::DeviceCodec;
use crate::shape::{Dtype, check_head_dim};

/// Rows of a cache on the device; see [`CacheView`](crate::attention::CacheView).
#[derive(Clone, Copy, Debug)]
pub struct DeviceCacheView<'a> {
    /// Rows: sequences times KV heads.
    pub kv_rows: usize,
    /// Channels of a key.
    pub head_dim_k: usize,
    /// Channels of a value.
    pub head_dim_v: usize,
    /// Raw tokens of all rows; where there are none, the slices of the raw part are not read.
    pub raw_tokens: usize,
    /// Type of the raw keys.
    pub key_dtype: Dtype,
    /// Type of the raw values.
    pub value_dtype: Dtype,
    /// u32, first raw token of each row, and the number of all, `[kv_rows + 1]`.
    pub raw_offsets: Slice<'a>,
    /// Raw keys `[raw tokens, head_dim_k]`.
    pub raw_keys: Slice<'a>,
    /// Raw values `[raw tokens, head_dim_v]`.
    pub raw_values: Slice<'a>,
    /// u32, positions of the raw tokens; needed where attention is causal.
    pub raw_positions: Option<Slice<'a>>,
    /// Packed pages, if any.
    pub packed: Option<DevicePackedView<'a>>,
}

/// Packed pages on the device; see [`PackedView`](crate::attention::PackedView).
#[derive(Clone, Copy, Debug)]
pub struct DevicePackedView<'a> {
    /// How keys are packed.
    pub keys: &'a DeviceCodec,
    /// How values are packed.
    pub values: &'a DeviceCodec,
    /// Pages of all rows; where there are none, the slices are not read.
    pub pages: usize,
    /// u32, first page of each row, and the number of all, `[kv_rows + 1]`.
    pub page_offsets: Slice<'a>,
    /// Key pages `[pages, words]`.
    pub key_pages: Slice<'a>,
    /// Value pages `[pages, words]`.
    pub value_pages: Slice<'a>,
    /// u32, positions of the tokens `[pages, chunk]`; needed where attention is causal or the key
    /// codec knows a rotary embedding.
    pub page_positions: Option<Slice<'a>>,
    /// f16, the key scale that the pages of each row are packed under, `[kv_rows, head_dim_k]`, if
    /// any. Nothing checks the factors: one that is not from 2^-10 to 2^10 counts as 1.
    pub key_scales: Option<Slice<'a>>,
}

/// Queries on the device, `[batch, heads, tokens, head_dim]`; see
/// [`Queries`](crate::attention::Queries).
#[derive(Clone, Copy, Debug)]
pub struct DeviceQueries<'a> {
    /// The elements, `[batch, heads, tokens, head_dim]`.
    pub data: Slice<'a>,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Sequences of the batch.
    pub batch: usize,
    /// Query heads of a sequence, a multiple of its KV heads.
    pub heads: usize,
    /// Query tokens of a sequence.
    pub tokens: usize,
    /// Channels; those of the keys.
    pub head_dim: usize,
}

impl DeviceCacheView<'_> {
    /// Checks that the parts belong together.
    pub(super) fn check(&self, causal: bool) -> Result<()> {
        if self.kv_rows == 0 {
            return Err(Error::Empty { argument: "kv_rows" });
        }
        check_head_dim("head_dim_k", self.head_dim_k)?;
        check_head_dim("head_dim_v", self.head_dim_v)?;
        check_count("kv_rows", self.kv_rows)?;
        if self.raw_tokens > 0 {
            check_count("raw tokens", self.raw_tokens)?;
            let (tokens, words) = (self.raw_tokens, self.kv_rows + 1);
            holds("raw_offsets", self.raw_offsets, 4, words)?;
            let keys = tokens.saturating_mul(self.head_dim_k);
            holds("raw_keys", self.raw_keys, self.key_dtype.bytes(), keys)?;
            let values = tokens.saturating_mul(self.head_dim_v);
            holds("raw_values", self.raw_values, self.value_dtype.bytes(), values)?;
            positions("raw_positions", self.raw_positions, tokens, causal)?;
        }
        let Some(packed) = &self.packed else { return Ok(()) };
        let (keys, values) = (packed.keys.codec(), packed.values.codec());
        check_codecs(keys, values, self.head_dim_k, self.head_dim_v)?;
        if packed.pages == 0 {
            return Ok(());
        }
        let tokens = packed.pages.saturating_mul(keys.layout().chunk());
        check_count("packed tokens", tokens)?;
        holds("page_offsets", packed.page_offsets, 4, self.kv_rows + 1)?;
        let words = packed.pages.saturating_mul(keys.layout().words());
        holds("key_pages", packed.key_pages, 4, words)?;
        let words = packed.pages.saturating_mul(values.layout().words());
        holds("value_pages", packed.value_pages, 4, words)?;
        if let Some(scales) = packed.key_scales {
            holds("key_scales", scales, 2, self.kv_rows.saturating_mul(self.head_dim_k))?;
        }
        let needed = causal || keys.rope().is_some();
        positions("page_positions", packed.page_positions, tokens, needed)
    }
}

/// Refuses a count that a shader's 32-bit arithmetic cannot hold with room to spare.
pub(super) fn check_count(argument: &'static str, count: usize) -> Result<()> {
    let max = u64::from(u32::MAX) / 4;
    if count as u64 <= max {
        Ok(())
    } else {
        Err(Error::OutOfRange { argument, got: count as u64, min: 0, max })
    }
}

/// Refuses a slice that holds fewer elements of `bytes` bytes than `expected`.
pub(super) fn holds(
    argument: &'static str,
    slice: Slice<'_>,
    bytes: usize,
    expected: usize,
) -> Result<()> {
    let got = (slice.size / bytes as u64) as usize;
    length(argument, got.min(expected), expected)
}

fn positions(
    argument: &'static str,
    slice: Option<Slice<'_>>,
    expected: usize,
    needed: bool,
) -> Result<()> {
    match slice {
        Some(slice) if needed => holds(argument, slice, 4, expected),
        None if needed => length(argument, 0, expected),
        _ => Ok(()),
    }
}
