//! What a pool is made from.

use crate::error::{Error, Result};
use crate::layout::pool::PoolLayout;
use crate::layout::{Bits, Profile};
use crate::nsnquant::Rope;
use crate::shape::Dtype;

/// Most rows of [`PoolConfig::recent`].
pub const MAX_RECENT: usize = 1 << 24;

/// Most KV heads of all layers together: a pool and each of its sequences keep an account of each.
pub const MAX_HEADS: usize = 1 << 20;

/// Shape of a model's cache, how it is packed, and how much memory it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of a layer.
    pub heads: usize,
    /// Channels of a key.
    pub head_dim_k: usize,
    /// Channels of a value.
    pub head_dim_v: usize,
    /// Rates of packed keys and values; `None` keeps all rows raw.
    pub bits: Option<(Bits, Bits)>,
    /// How rows are packed at these rates; 3 and 4 bits are rates of [`Profile::Tuned`].
    pub profile: Profile,
    /// The rotary embedding that keys come with, which packed pages take off
    /// ([`Codec::with_rope`](crate::nsnquant::Codec::with_rope)); `None` packs keys as they come. Raw
    /// rows stay as they come.
    pub rope: Option<Rope>,
    /// Whether packed keys of a head are under a key scale of its own
    /// ([`key_scale`](crate::nsnquant::key_scale)), one f16 a channel in its sink page. It is fixed
    /// when the head is first packed, from the chunks of the prompt that are packed then, 8 at most,
    /// or else from the first chunk; so it depends on the tokens, not on how they came. It stays as
    /// long as anything is packed. Forks share it; a trim that leaves nothing packed ends it.
    ///
    /// Pages of two caches can be compared only where both have one scale: the two paths fix factors
    /// that may differ by one step of f16.
    pub key_scale: bool,
    /// Rows of a page and of a packed chunk (the residual length of arXiv 2505.18231; 64, and 128
    /// advised at 1 bit).
    pub chunk: usize,
    /// First rows of a head, raw for good. The sinks of an eviction
    /// ([`EvictConfig::sinks`](crate::nestedkv::EvictConfig::sinks)) must be at least these.
    pub sinks: usize,
    /// Newest rows of a head that are always raw.
    pub recent: usize,
    /// Type of raw elements, f16 or bf16.
    pub raw: Dtype,
    /// Bytes that all slabs together may take.
    pub byte_budget: u64,
    /// Most bytes of one slab: at most what the device lets a kernel bind.
    ///
    /// Slabs are made whole, for each layer and each class of page, when a page of theirs is first
    /// needed; so the smallest cache in use takes about `layers * (2 * slab_bytes + a slab of sinks)`.
    /// Choose them a small part of `byte_budget` over `layers`, such as 1 MiB for short sequences.
    pub slab_bytes: u64,
}

impl PoolConfig {
    /// Checks everything and lays out the pages.
    ///
    /// # Errors
    /// [`Error::Empty`] without layers or heads; [`Error::OutOfRange`] and [`Error::HeadDim`] for
    /// what is outside its range; [`Error::Dtype`] for f32 elements.
    pub fn layout(&self) -> Result<PoolLayout> {
        for (argument, count) in [("layers", self.layers), ("heads", self.heads)] {
            if count == 0 {
                return Err(Error::Empty { argument });
            }
        }
        let within = |argument, got: usize, min: u64, max: u64| {
            let got = got as u64;
            let fault = Error::OutOfRange { argument, got, min, max };
            if (min..=max).contains(&got) { Ok(()) } else { Err(fault) }
        };
        let heads = self.layers.saturating_mul(self.heads);
        within("layers * heads", heads, 1, MAX_HEADS as u64)?;
        within("recent", self.recent, 0, MAX_RECENT as u64)?;
        if self.raw == Dtype::F32 {
            let (got, expected) = (self.raw.name(), "f16 or bf16");
            return Err(Error::Dtype { argument: "raw", got, expected });
        }
        if let Some(rope) = &self.rope {
            rope.check(self.head_dim_k)?;
        }
        let scheme = |bits| self.profile.scheme(bits);
        PoolLayout::with(
            self.head_dim_k,
            self.head_dim_v,
            self.bits.map(|(keys, values)| [scheme(keys), scheme(values)]),
            self.key_scale,
            self.chunk,
            self.sinks,
            self.slab_bytes,
        )
    }
}
