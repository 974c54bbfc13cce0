//! The cache in host memory.

pub mod copy;
pub mod fetch;
mod flat;
pub mod keep;
pub mod pack;
mod paged;
mod pages;
pub mod restore;
pub mod rows;
pub mod scales;
mod transfer;
pub mod write;

pub use flat::Flat;
pub use paged::{Batch, Eviction, FetchedRows, PagedCache, Step};
pub use pages::Slabs;
pub use write::IncomingRows;

use std::sync::Arc;

use half::f16;

use super::config::{CacheConfig, Incoming, SIDES};
use super::counters::Counters;
use super::ledger::{Held, Ledger};
use super::plan::{Append, Fetch, Frontier, Span, Trim, rows_of_pages};
use crate::error::Result;
use crate::nsnquant::{Codec, KeyScales, cpu, key_scale};
use crate::shape::{Dtype, Elements, Tensor};

/// Sinks and tail of every row, `[rows, raw, head_dim]`.
#[derive(Debug)]
struct Raw {
    words: [Vec<u32>; 2],
    _held: Held,
}

/// One chunk of every row: `[rows, page words]`.
#[derive(Debug)]
struct Page {
    words: [Vec<u32>; 2],
    _held: Held,
}

/// The key scales of all rows, `[rows, head_dim_k]`.
#[derive(Debug)]
struct Scales {
    values: Vec<f16>,
    _held: Held,
}

/// The cache of one layer of a batch of sequences, all of one length.
///
/// Chunks never change once they are packed; forks share them, and the raw rows too until one side
/// changes them.
#[derive(Debug)]
pub struct LayerCache {
    config: Arc<CacheConfig>,
    codecs: Arc<[Codec; 2]>,
    frontier: Frontier,
    raw: Arc<Raw>,
    pages: Vec<Arc<Page>>,
    /// There while anything is packed, if the cache has key scales.
    scales: Option<Arc<Scales>>,
    ledger: Ledger,
}

/// Keys and values as an engine reads them, `[rows, len, head_dim]` each.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetched {
    /// Tokens of each row.
    pub len: usize,
    /// Keys as they decode, f16 `[rows, len, head_dim_k]`.
    pub keys: Vec<f16>,
    /// Values as they decode, f16 `[rows, len, head_dim_v]`.
    pub values: Vec<f16>,
}

impl LayerCache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`crate::Error::Empty`] for no rows; [`crate::Error::HeadDim`];
    /// [`crate::Error::OutOfRange`] for a chunk, `sinks` or `recent` outside its range.
    pub fn new(config: CacheConfig) -> Result<Self> {
        let (frontier, codecs) = config.parts()?;
        let ledger = Ledger::default();
        let raw = Arc::new(Raw { words: [Vec::new(), Vec::new()], _held: ledger.hold(0) });
        Ok(Self {
            config: Arc::new(config),
            codecs: Arc::new(codecs),
            frontier,
            raw,
            pages: Vec::new(),
            scales: None,
            ledger,
        })
    }

    /// What the cache was made from.
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// Length and frontier.
    pub fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// The codecs of keys and values.
    pub fn codecs(&self) -> &[Codec; 2] {
        &self.codecs
    }

    /// What the cache holds.
    pub fn counters(&self) -> Counters {
        let layouts = SIDES.map(|side| *self.codecs[side].layout());
        self.config.counters(&self.frontier, layouts, self.ledger.bytes())
    }

    /// A cache of the same content that goes its own way. Shared memory counts once and goes when
    /// the last owner does.
    pub fn fork(&self) -> Self {
        Self {
            config: self.config.clone(),
            codecs: self.codecs.clone(),
            frontier: self.frontier,
            raw: self.raw.clone(),
            pages: self.pages.clone(),
            scales: self.scales.clone(),
            ledger: self.ledger.clone(),
        }
    }

    /// Adds tokens: keys `[rows, n, head_dim_k]` and values `[rows, n, head_dim_v]`. Chunks that
    /// become complete are packed.
    ///
    /// # Errors
    /// [`crate::Error::Mismatch`] or [`crate::Error::Dtype`] when the tensors do not fit the cache or
    /// each other; [`crate::Error::OutOfRange`] when the token rows would no longer count in 32
    /// bits. Nothing has changed then.
    pub fn append(&mut self, keys: &Tensor<'_>, values: &Tensor<'_>) -> Result<()> {
        let incoming = |argument, tensor: &Tensor<'_>| Incoming {
            argument,
            rows: tensor.rows(),
            tokens: tensor.tokens(),
            head_dim: tensor.head_dim(),
            dtype: tensor.data().dtype(),
        };
        let tokens = self.config.check(&incoming("keys", keys), &incoming("values", values))?;
        let plan = Append::new(&self.frontier, self.config.rows, tokens)?;
        let (rows, dtype) = (self.config.rows, self.config.dtype);
        let (starts, positions) = (plan.starts(), plan.positions(&self.frontier));
        let of_page = rows_of_pages(plan.flushed, rows);
        let mut scales = self.scales.clone();
        let mut raw = [Vec::new(), Vec::new()];
        let mut encoded = [Vec::new(), Vec::new()];
        for (side, tensor) in SIDES.into_iter().zip([keys, values]) {
            let words = rows * self.config.raw_words(side);
            let mut joined = vec![0; words * plan.joined];
            self.copy(side, plan.old, self.held(side), &mut joined)?;
            self.copy(side, plan.new, tensor.data(), &mut joined)?;
            if plan.flushed == 0 {
                raw[side] = joined;
                continue;
            }
            let source = rows::elements(&joined, dtype);
            if side == 0 && scales.is_none() && self.config.key_scale {
                scales = Some(Arc::new(self.fix(source, &plan)?));
            }
            let under = under(scales.as_deref(), side, &of_page);
            let codec = &self.codecs[side];
            encoded[side] = cpu::encode_at(codec, source, &positions, &starts, under.as_ref())?;
            raw[side] = vec![0; words * plan.next.raw()];
            self.copy(side, plan.sinks, source, &mut raw[side])?;
            self.copy(side, plan.tail, source, &mut raw[side])?;
        }
        for chunk in 0..plan.flushed {
            let words = SIDES.map(|side| {
                let size = rows * self.codecs[side].layout().words();
                encoded[side][chunk * size..(chunk + 1) * size].to_vec()
            });
            let held = 4 * words.iter().map(|w| w.len() as u64).sum::<u64>();
            self.pages.push(Arc::new(Page { words, _held: self.ledger.hold(held) }));
        }
        self.scales = scales;
        self.settle(plan.next, raw);
        Ok(())
    }

    /// Drops the last `tokens` tokens. Rows that come back from a broken chunk come back as they
    /// decode.
    ///
    /// # Errors
    /// [`crate::Error::TrimTooLong`] when there are fewer; nothing has changed then.
    pub fn trim(&mut self, tokens: usize) -> Result<()> {
        let plan = Trim::new(&self.frontier, tokens)?;
        if tokens == 0 {
            return Ok(());
        }
        let (config, rows) = (&self.config, self.config.rows);
        let of_page = rows_of_pages(1, rows);
        let mut raw = [Vec::new(), Vec::new()];
        for side in SIDES {
            raw[side] = vec![0; rows * config.raw_words(side) * plan.next.raw()];
            self.copy(side, plan.kept, self.held(side), &mut raw[side])?;
            if plan.restored.tokens > 0 {
                let chunk = plan.next.chunks();
                let page = &self.pages[chunk].words[side];
                let positions = self.frontier.chunk_positions(chunk..chunk + 1, rows);
                let under = under(self.scales.as_deref(), side, &of_page);
                let codec = &self.codecs[side];
                let decoded = cpu::decode_at(codec, page, &positions, under.as_ref())?;
                let head_dim = config.head_dims()[side];
                let plan = plan.restored.of(rows, head_dim, Dtype::F32, config.dtype);
                rows::copy(&plan, Elements::F32(&decoded), &mut raw[side])?;
            }
        }
        self.pages.truncate(plan.next.chunks());
        if self.pages.is_empty() {
            self.scales = None;
        }
        self.settle(plan.next, raw);
        Ok(())
    }

    /// Keys and values as an engine reads them: raw rows as they are, packed rows decoded; as f16,
    /// finite values beyond its range as +-65504.
    ///
    /// # Errors
    /// None that a cache made by [`Self::new`] can reach.
    pub fn fetch(&self) -> Result<Fetched> {
        let plan = Fetch::new(&self.frontier);
        let (rows, len) = (self.config.rows, self.frontier.len());
        let of_page = rows_of_pages(1, rows);
        let mut out = [Vec::new(), Vec::new()];
        for side in SIDES {
            let head_dim = self.config.head_dims()[side];
            let mut words = vec![0; rows * len * head_dim / 2];
            for span in plan.raw {
                let span = span.of(rows, head_dim, self.config.dtype, Dtype::F16);
                rows::copy(&span, self.held(side), &mut words)?;
            }
            for (chunk, page) in self.pages.iter().enumerate() {
                let positions = self.frontier.chunk_positions(chunk..chunk + 1, rows);
                let (codec, packed) = (&self.codecs[side], &page.words[side]);
                let under = under(self.scales.as_deref(), side, &of_page);
                let decoded = cpu::decode_at(codec, packed, &positions, under.as_ref())?;
                let span = plan.chunk(chunk).of(rows, head_dim, Dtype::F32, Dtype::F16);
                rows::copy(&span, Elements::F32(&decoded), &mut words)?;
            }
            out[side] = bytemuck::cast_slice(&words).to_vec();
        }
        let [keys, values] = out;
        Ok(Fetched { len, keys, values })
    }

    /// The cache as attention reads it.
    pub fn flat(&self) -> Flat<'_> {
        Flat::new(self)
    }

    /// Fixes the key scales from the first chunk of every row.
    fn fix(&self, joined: Elements<'_>, plan: &Append) -> Result<Scales> {
        let (dim, chunk) = (self.config.head_dim_k, self.config.chunk);
        let mut values = Vec::with_capacity(self.config.rows * dim);
        for part in plan.first_chunks() {
            let rows = joined.slice(part.start * dim..part.end * dim);
            values.extend(key_scale(rows, dim, chunk)?);
        }
        Ok(Scales { values, _held: self.ledger.hold(self.config.scale_bytes()) })
    }

    /// The raw rows of keys or values.
    fn held(&self, side: usize) -> Elements<'_> {
        rows::elements(&self.raw.words[side], self.config.dtype)
    }

    fn copy(
        &self,
        side: usize,
        span: Span,
        source: Elements<'_>,
        result: &mut [u32],
    ) -> Result<()> {
        let config = &self.config;
        let plan = span.of(config.rows, config.head_dims()[side], config.dtype, config.dtype);
        rows::copy(&plan, source, result)
    }

    fn settle(&mut self, next: Frontier, words: [Vec<u32>; 2]) {
        let held = self.config.raw_bytes(next.raw());
        self.raw = Arc::new(Raw { words, _held: self.ledger.hold(held) });
        self.frontier = next;
    }
}

/// What pages of a side are under: scales are for keys.
fn under<'a>(scales: Option<&'a Scales>, side: usize, of_page: &'a [u32]) -> Option<KeyScales<'a>> {
    scales.filter(|_| side == 0).map(|scales| KeyScales { values: &scales.values, of_page })
}
