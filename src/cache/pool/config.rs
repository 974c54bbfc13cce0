//! What a pool is made from.

use crate::error::{Error, Result};
use crate::layout::pool::{MAX_SLAB_BYTES, PageClass, PoolLayout};
use crate::layout::{Bits, Preset, Profile};
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
    /// Seed of the signs that the channels of keys and of values get before they are transformed
    /// ([`Scheme::signs`](crate::layout::Scheme::signs)), one seed for both; `None` for no signs, as
    /// presets have it: on the texts of `tools/eval` they change nothing that can be told.
    pub signs: Option<u32>,
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
    /// Bytes that all slabs together may take; [`Self::smallest_bytes`] at least.
    pub byte_budget: u64,
    /// Most bytes of one slab: at most what the device lets a kernel bind.
    ///
    /// Slabs are made whole, for each layer and each class of page, when a page of theirs is first
    /// needed; so the smallest cache in use takes about `layers * (2 * slab_bytes + a slab of sinks)`.
    /// Choose them a small part of `byte_budget` over `layers`, such as 1 MiB for short sequences.
    pub slab_bytes: u64,
}

/// Largest slab that [`PoolConfig::new`] chooses: what every WebGPU device can bind.
const USUAL_SLAB: u64 = 1 << 27;
/// Slabs of a layer in a whole budget, as [`PoolConfig::new`] chooses their size: attention reads four
/// of a class at once, and three classes share a layer's part.
const USUAL_SLABS: u64 = 8;

impl PoolConfig {
    /// The cache of a model of `layers` layers with `heads` KV heads of `head_dims` channels (keys,
    /// values), packed as a preset says, in `byte_budget` bytes. Raw elements are f16; slabs take an
    /// eighth of a layer's part of the budget, but hold a page at least and have 128 MiB at most.
    ///
    /// # Errors
    /// As [`Self::layout`]; [`Error::OutOfBudget`] for a budget below [`Self::smallest_bytes`].
    pub fn new(
        preset: &Preset,
        layers: usize,
        heads: usize,
        head_dims: [usize; 2],
        byte_budget: u64,
    ) -> Result<Self> {
        let mut config = Self {
            layers,
            heads,
            head_dim_k: head_dims[0],
            head_dim_v: head_dims[1],
            bits: Some((preset.k_bits, preset.v_bits)),
            profile: preset.profile,
            rope: None,
            signs: None,
            key_scale: preset.key_scale,
            chunk: preset.chunk,
            sinks: preset.sinks,
            recent: preset.recent,
            raw: Dtype::F16,
            byte_budget,
            slab_bytes: MAX_SLAB_BYTES,
        };
        let roomy = config.layout()?;
        let page = PageClass::ALL.map(|class| roomy.bytes(class)).into_iter().fold(0, u64::max);
        let part = byte_budget / (USUAL_SLABS * layers as u64);
        config.slab_bytes = part.clamp(page, page.max(USUAL_SLAB));
        config.check_budget()?;
        Ok(config)
    }

    /// Refuses a budget that cannot hold the smallest cache.
    pub(super) fn check_budget(&self) -> Result<()> {
        let (needed, available) = (self.smallest_bytes()?, self.byte_budget);
        if available < needed { Err(Error::OutOfBudget { needed, available }) } else { Ok(()) }
    }

    /// Bytes that the smallest cache takes that keeps, packs and decodes rows: a slab of each class in
    /// each layer. A pool is refused a smaller `byte_budget`.
    ///
    /// # Errors
    /// As [`Self::layout`].
    pub fn smallest_bytes(&self) -> Result<u64> {
        let layout = self.layout()?;
        let slabs: u64 = PageClass::ALL.map(|class| layout.slab_bytes(class)).into_iter().sum();
        Ok(slabs.saturating_mul(self.layers as u64))
    }

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
        let profile = self.profile;
        PoolLayout::with(
            self.head_dim_k,
            self.head_dim_v,
            self.bits.map(|(keys, values)| profile.schemes(keys, values, self.signs)),
            self.key_scale,
            self.chunk,
            self.sinks,
            self.slab_bytes,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::PoolConfig;
    use crate::error::Error;
    use crate::layout::Preset;

    #[test]
    fn presets_make_pools_of_any_budget_that_holds_something() {
        let of = |preset: &Preset, budget| PoolConfig::new(preset, 3, 2, [64, 80], budget);
        for (name, preset) in Preset::ALL {
            let Err(Error::OutOfBudget { needed, available: 1 }) = of(&preset, 1) else {
                panic!("{name}: a budget of 1 byte is taken");
            };
            let small = of(&preset, needed).expect("the smallest budget");
            assert_eq!(small.smallest_bytes().expect("bytes"), needed);
            assert!(of(&preset, needed - 1).is_err());
            let large = of(&preset, 1 << 40).expect("a large budget");
            assert_eq!(large.slab_bytes, 1 << 27);
            assert_eq!(
                (large.bits, large.profile),
                (Some((preset.k_bits, preset.v_bits)), preset.profile)
            );
        }
        assert!(matches!(of(&Preset::default(), u64::MAX), Ok(config) if config.chunk == 64));
        assert!(PoolConfig::new(&Preset::default(), 0, 1, [64, 64], 1 << 30).is_err());
        assert!(PoolConfig::new(&Preset::default(), 1, 1, [64, 65], 1 << 30).is_err());
    }
}
