//! What a layer's cache is made from.

use std::sync::Arc;

use super::counters::Counters;
use super::plan::Frontier;
use crate::error::{Error, Result};
use crate::layout::{Bits, PageLayout, Preset, Profile};
use crate::nsnquant::{Codebook, Codec, Rope};
use crate::shape::{Dtype, check_count};

/// Shape and rates of the cache of one layer.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Rows: sequences times KV heads.
    pub rows: usize,
    /// Channels of a key.
    pub head_dim_k: usize,
    /// Channels of a value.
    pub head_dim_v: usize,
    /// Rate of the packed keys.
    pub k_bits: Bits,
    /// Rate of the packed values.
    pub v_bits: Bits,
    /// How rows are packed at these rates; 3 and 4 bits are rates of [`Profile::Tuned`].
    pub profile: Profile,
    /// Whether packed keys of a row are under a key scale of its own
    /// ([`key_scale`](crate::nsnquant::key_scale)). It is fixed from the row's first chunk when that is
    /// packed, so it depends on the tokens, not on how they came, and stays as long as anything is
    /// packed. Forks share it; a trim that leaves nothing packed ends it.
    ///
    /// Pages of two caches can be compared only where both have one scale: the two paths fix factors
    /// that may differ by one step of f16.
    pub key_scale: bool,
    /// The rotary embedding that keys come with, which packed chunks take off
    /// ([`Codec::with_rope`](crate::nsnquant::Codec::with_rope)); the position of a token is its place
    /// in its row. `None` packs keys as they come.
    pub rope: Option<Rope>,
    /// Seed of the signs that the channels of keys and of values get before they are transformed
    /// ([`Scheme::signs`](crate::layout::Scheme::signs)), one seed for both; `None` for no signs, as
    /// presets have it: on the texts of `tools/eval` they change nothing that can be told.
    pub signs: Option<u32>,
    /// Tokens of a chunk (the paper's residual length; 64, and 128 advised at 1 bit).
    pub chunk: usize,
    /// First tokens of a row, raw for good.
    pub sinks: usize,
    /// Newest tokens of a row that are always raw.
    pub recent: usize,
    /// Element type of the tokens that come and of the raw rows, which keep their bits.
    pub dtype: Dtype,
    /// Codebook of the packed rows.
    pub codebook: Arc<Codebook>,
}

/// Keys and values share their code: index 0 and 1 of every pair.
pub(super) const SIDES: [usize; 2] = [0, 1];

/// Shape of an incoming tensor.
pub(super) struct Incoming {
    pub(super) argument: &'static str,
    pub(super) rows: usize,
    pub(super) tokens: usize,
    pub(super) head_dim: usize,
    pub(super) dtype: Dtype,
}

impl CacheConfig {
    /// The cache of `rows` rows of f16 keys and values of `head_dims` channels, packed as a preset says
    /// with the project's own books.
    pub fn new(preset: &Preset, rows: usize, head_dims: [usize; 2]) -> Self {
        Self {
            rows,
            head_dim_k: head_dims[0],
            head_dim_v: head_dims[1],
            k_bits: preset.k_bits,
            v_bits: preset.v_bits,
            profile: preset.profile,
            key_scale: preset.key_scale,
            rope: None,
            signs: None,
            chunk: preset.chunk,
            sinks: preset.sinks,
            recent: preset.recent,
            dtype: Dtype::F16,
            codebook: Codebook::builtin(),
        }
    }

    /// Checks everything and returns an empty frontier and the codecs of keys and values.
    pub(super) fn parts(&self) -> Result<(Frontier, [Codec; 2])> {
        if self.rows == 0 {
            return Err(Error::Empty { argument: "rows" });
        }
        check_count("rows", &[self.rows, self.chunk])?;
        let frontier = Frontier::new(self.chunk, self.sinks, self.recent)?;
        let codec = |argument, head_dim, scheme| {
            Codec::with(argument, head_dim, scheme, self.chunk, self.codebook.clone())
        };
        let [keys, values] = self.profile.schemes(self.k_bits, self.v_bits, self.signs);
        let keys = codec("head_dim_k", self.head_dim_k, keys)?;
        let keys = keys.with_rope(self.rope.clone())?;
        let values = codec("head_dim_v", self.head_dim_v, values)?;
        Ok((frontier, [keys, values]))
    }

    /// Channels of keys and values.
    pub(super) fn head_dims(&self) -> [usize; 2] {
        [self.head_dim_k, self.head_dim_v]
    }

    /// Words of one raw token row.
    pub(super) fn raw_words(&self, side: usize) -> usize {
        self.head_dims()[side] * self.dtype.bytes() / 4
    }

    /// Bytes of raw rows of keys and values of `tokens` tokens.
    pub(super) fn raw_bytes(&self, tokens: usize) -> u64 {
        SIDES.iter().map(|&side| 4 * (self.rows * tokens * self.raw_words(side)) as u64).sum()
    }

    /// Bytes of the key scales of all rows.
    pub(super) fn scale_bytes(&self) -> u64 {
        2 * (self.rows * self.head_dim_k) as u64
    }

    /// Checks incoming keys and values and returns how many tokens they hold.
    pub(super) fn check(&self, keys: &Incoming, values: &Incoming) -> Result<usize> {
        for (incoming, head_dim) in [(keys, self.head_dim_k), (values, self.head_dim_v)] {
            let argument = incoming.argument;
            let equal = |got, expected, reference| {
                if got == expected {
                    Ok(())
                } else {
                    Err(Error::Mismatch { argument, got, expected, reference })
                }
            };
            equal(incoming.rows, self.rows, "the cache's rows")?;
            equal(incoming.head_dim, head_dim, "the cache's head dimension")?;
            equal(incoming.tokens, keys.tokens, "the tokens of keys")?;
            if incoming.dtype != self.dtype {
                let (got, expected) = (incoming.dtype.name(), self.dtype.name());
                return Err(Error::Dtype { argument, got, expected });
            }
        }
        Ok(keys.tokens)
    }

    /// The counters at a frontier.
    pub(super) fn counters(
        &self,
        frontier: &Frontier,
        layouts: [PageLayout; 2],
        held: u64,
    ) -> Counters {
        let [keys, values] = &layouts;
        Counters::new(frontier, self.rows, keys, values, self.dtype.bytes(), held)
    }
}
