//! Caches in device memory. [`PagedCache`] writes its slabs in place, so its recordings must be
//! submitted in the order of its steps; [`LayerCache`] makes new buffers instead.

pub mod copy;
pub mod fetch;
mod flat;
pub mod keep;
mod lists;
pub mod pack;
mod paged;
mod pages;
pub mod restore;
pub mod rows;
pub mod scales;
mod slabs;
mod transfer;
pub mod write;

pub use flat::Flat;
pub use paged::{Batch, Counts, Eviction, Fetch, PagedCache, Step};
pub use pages::{List, Slab};
pub use transfer::Exporting;
pub use write::IncomingRows;

use std::ops::Range;
use std::sync::Arc;

use super::config::{CacheConfig, Incoming, SIDES};
use super::counters::Counters;
use super::ledger::{Held, Ledger};
use super::plan::{Append, Fetch as Fetching, Frontier, Trim};
use crate::error::Result;
use crate::gpu::{Context, DeviceTensor, Recorder, Slice};
use crate::nsnquant::gpu::{self, DeviceCodec};
use crate::shape::Dtype;

/// Sinks and tail of every row, `[rows, raw, head_dim]`; no buffers when there are none.
#[derive(Debug)]
struct Raw {
    buffers: Option<[wgpu::Buffer; 2]>,
    _held: Held,
}

/// One chunk of every row: `[rows, page words]`.
#[derive(Debug)]
struct Page {
    buffers: [wgpu::Buffer; 2],
    _held: Held,
}

/// The cache of one layer of a batch of sequences, all of one length, in device memory.
///
/// Chunks never change once they are packed; forks share them, and the raw rows too until one side
/// changes them. The methods record into the caller's [`Recorder`]; the state on the host moves at
/// once, so each recording must be submitted, in the order of the calls.
///
/// Every buffer is written once, by the recording that makes it: an append or a trim makes new raw
/// rows and leaves the old ones to whoever still reads them, a fork or a recording not yet
/// submitted. So nothing recorded earlier sees a later change.
#[derive(Debug)]
pub struct LayerCache {
    config: Arc<CacheConfig>,
    codecs: Arc<[DeviceCodec; 2]>,
    frontier: Frontier,
    raw: Arc<Raw>,
    pages: Vec<Arc<Page>>,
    ledger: Ledger,
}

/// Keys and values as an engine reads them, f16 `[rows, len, head_dim]` each.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Tokens of each row.
    pub len: usize,
    /// The keys; a buffer of one word when there are none.
    pub keys: wgpu::Buffer,
    /// The values; a buffer of one word when there are none.
    pub values: wgpu::Buffer,
}

impl LayerCache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`crate::Error::Empty`] for no rows; [`crate::Error::HeadDim`];
    /// [`crate::Error::OutOfRange`] for a chunk, `sinks` or `recent` outside its range.
    pub fn new(context: &Context, config: CacheConfig) -> Result<Self> {
        let (frontier, codecs) = config.parts()?;
        let [keys, values] = codecs;
        let codecs = [DeviceCodec::new(context, keys)?, DeviceCodec::new(context, values)?];
        let ledger = Ledger::default();
        let raw = Arc::new(Raw { buffers: None, _held: ledger.hold(0) });
        Ok(Self {
            config: Arc::new(config),
            codecs: Arc::new(codecs),
            frontier,
            raw,
            pages: Vec::new(),
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
    pub fn codecs(&self) -> &[DeviceCodec; 2] {
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
            ledger: self.ledger.clone(),
        }
    }

    /// Adds tokens: keys `[rows, n, head_dim_k]` and values `[rows, n, head_dim_v]`. Chunks that
    /// become complete are packed.
    ///
    /// # Errors
    /// [`crate::Error::Mismatch`] or [`crate::Error::Dtype`] when the tensors do not fit the cache or
    /// each other; [`crate::Error::OutOfRange`] when the token rows would no longer count in 32
    /// bits; [`crate::Error::DeviceLimit`] when the device allows no buffer of the size needed. The
    /// cache has not changed then.
    pub fn append(
        &mut self,
        rec: &mut Recorder<'_>,
        keys: &DeviceTensor<'_>,
        values: &DeviceTensor<'_>,
    ) -> Result<()> {
        let incoming = |argument, tensor: &DeviceTensor<'_>| Incoming {
            argument,
            rows: tensor.rows(),
            tokens: tensor.tokens(),
            head_dim: tensor.head_dim(),
            dtype: tensor.dtype(),
        };
        let tokens = self.config.check(&incoming("keys", keys), &incoming("values", values))?;
        let config = &self.config;
        let plan = Append::new(&self.frontier, config.rows, tokens)?;
        let joined = self.make(rec, plan.joined)?;
        for (side, tensor) in SIDES.into_iter().zip([keys, values]) {
            let to = Slice::all(&joined[side]);
            if let Some(raw) = &self.raw.buffers {
                let old =
                    plan.old.of(config.rows, config.head_dims()[side], config.dtype, config.dtype);
                rows::record(rec, &old, Slice::all(&raw[side]), to)?;
            }
            let new =
                plan.new.of(config.rows, config.head_dims()[side], config.dtype, config.dtype);
            rows::record(rec, &new, tensor.slice(), to)?;
        }
        if plan.flushed == 0 {
            self.settle(plan.next, Some(joined));
            return Ok(());
        }
        let pages = self.encode(rec, &plan, &joined)?;
        let raw = match plan.next.raw() {
            0 => None,
            tokens => {
                let raw = self.make(rec, tokens)?;
                for side in SIDES {
                    let (from, to) = (Slice::all(&joined[side]), Slice::all(&raw[side]));
                    let head_dim = config.head_dims()[side];
                    for span in [plan.sinks, plan.tail] {
                        let span = span.of(config.rows, head_dim, config.dtype, config.dtype);
                        rows::record(rec, &span, from, to)?;
                    }
                }
                Some(raw)
            }
        };
        self.pages.extend(pages);
        self.settle(plan.next, raw);
        Ok(())
    }

    /// Drops the last `tokens` tokens. Rows that come back from a broken chunk come back as they
    /// decode.
    ///
    /// # Errors
    /// [`crate::Error::TrimTooLong`] when there are fewer; nothing has changed then.
    pub fn trim(&mut self, rec: &mut Recorder<'_>, tokens: usize) -> Result<()> {
        let plan = Trim::new(&self.frontier, tokens)?;
        if tokens == 0 {
            return Ok(());
        }
        let (config, rows) = (&self.config, self.config.rows);
        let mut raw = None;
        if plan.next.raw() > 0 {
            let fresh = self.make(rec, plan.next.raw())?;
            for side in SIDES {
                let (head_dim, to) = (config.head_dims()[side], Slice::all(&fresh[side]));
                if let Some(old) = &self.raw.buffers {
                    let kept = plan.kept.of(rows, head_dim, config.dtype, config.dtype);
                    rows::record(rec, &kept, Slice::all(&old[side]), to)?;
                }
                if plan.restored.tokens > 0 {
                    let chunk = plan.next.chunks();
                    let page = &self.pages[chunk].buffers[side];
                    let starts: Vec<u32> =
                        (0..rows).map(|row| (row * config.chunk) as u32).collect();
                    let size = rows * config.chunk * head_dim * config.dtype.bytes();
                    let decoded = rec.context().create("cache decoded chunk", size as u64)?;
                    self.decode(
                        rec,
                        side,
                        page,
                        chunk..chunk + 1,
                        &starts,
                        &decoded,
                        config.dtype,
                        rows * config.chunk,
                    )?;
                    let restored = plan.restored.of(rows, head_dim, config.dtype, config.dtype);
                    rows::record(rec, &restored, Slice::all(&decoded), to)?;
                }
            }
            raw = Some(fresh);
        }
        self.pages.truncate(plan.next.chunks());
        self.settle(plan.next, raw);
        Ok(())
    }

    /// Keys and values as an engine reads them: raw rows as they are, packed rows decoded; as f16,
    /// finite values beyond its range as +-65504.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLimit`] when the device allows no buffer of the size needed.
    pub fn fetch(&self, rec: &mut Recorder<'_>) -> Result<Fetched> {
        let (config, len) = (&self.config, self.frontier.len());
        let plan = Fetching::new(&self.frontier);
        let out = self.pair(|side| {
            let size = config.rows * len * config.head_dims()[side] * 2;
            rec.context().create("cache fetched rows", size as u64)
        })?;
        if !self.pages.is_empty() {
            let starts = plan.starts(config.rows);
            for side in SIDES {
                let pages = self.gather(rec, side)?;
                let (chunks, total) = (0..self.pages.len(), config.rows * len);
                self.decode(rec, side, &pages, chunks, &starts, &out[side], Dtype::F16, total)?;
            }
        }
        if let Some(raw) = &self.raw.buffers {
            for side in SIDES {
                for span in plan.raw {
                    let head_dim = config.head_dims()[side];
                    let span = span.of(config.rows, head_dim, config.dtype, Dtype::F16);
                    rows::record(rec, &span, Slice::all(&raw[side]), Slice::all(&out[side]))?;
                }
            }
        }
        let [keys, values] = out;
        Ok(Fetched { len, keys, values })
    }

    /// The cache as attention reads it, laid out by this recording.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLimit`] when the device allows no buffer of the size needed.
    pub fn flat(&self, rec: &mut Recorder<'_>) -> Result<Flat<'_>> {
        Flat::new(self, rec)
    }

    /// The pages of keys or values in one buffer, chunk after chunk.
    fn gather(&self, rec: &mut Recorder<'_>, side: usize) -> Result<wgpu::Buffer> {
        if let [page] = &*self.pages {
            return Ok(page.buffers[side].clone());
        }
        let size = self.page_bytes(side);
        let all = rec.context().create("cache pages", size * self.pages.len() as u64)?;
        for (chunk, page) in self.pages.iter().enumerate() {
            rec.copy(&page.buffers[side], 0, &all, chunk as u64 * size, size)?;
        }
        Ok(all)
    }

    fn decode(
        &self,
        rec: &mut Recorder<'_>,
        side: usize,
        pages: &wgpu::Buffer,
        chunks: Range<usize>,
        starts: &[u32],
        out: &wgpu::Buffer,
        dtype: Dtype,
        total_rows: usize,
    ) -> Result<()> {
        let places = rec.context().upload("cache starts", bytemuck::cast_slice(starts))?;
        let codec = &self.codecs[side];
        let rows = self.config.rows;
        let all = || self.frontier.chunk_positions(chunks, rows);
        let positions = positions_of(rec, codec, all)?;
        let at = positions.as_ref().map(Slice::all);
        let [pages, places, out] = [pages, &places, out].map(Slice::all);
        gpu::decode_at(rec, codec, pages, starts.len(), at, places, out, dtype, total_rows, None)
    }

    fn encode(
        &self,
        rec: &mut Recorder<'_>,
        plan: &Append,
        joined: &[wgpu::Buffer; 2],
    ) -> Result<Vec<Arc<Page>>> {
        let config = &self.config;
        let starts = plan.starts();
        let places = rec.context().upload("cache starts", bytemuck::cast_slice(&starts))?;
        let all = self.pair(|side| {
            rec.context().create("cache page", self.page_bytes(side) * plan.flushed as u64)
        })?;
        for side in SIDES {
            let codec = &self.codecs[side];
            let positions = positions_of(rec, codec, || plan.positions(&self.frontier))?;
            gpu::encode_at(
                rec,
                codec,
                Slice::all(&joined[side]),
                config.dtype,
                config.rows * plan.joined,
                positions.as_ref().map(Slice::all),
                Slice::all(&places),
                starts.len(),
                Slice::all(&all[side]),
                None,
            )?;
        }
        let held = || self.ledger.hold(SIDES.iter().map(|&side| self.page_bytes(side)).sum());
        if plan.flushed == 1 {
            return Ok(vec![Arc::new(Page { buffers: all, _held: held() })]);
        }
        (0..plan.flushed as u64)
            .map(|chunk| {
                let buffers = self.pair(|side| {
                    let size = self.page_bytes(side);
                    let page = rec.context().create("cache page", size)?;
                    rec.copy(&all[side], chunk * size, &page, 0, size)?;
                    Ok(page)
                })?;
                Ok(Arc::new(Page { buffers, _held: held() }))
            })
            .collect()
    }

    /// Bytes of one chunk of all rows.
    fn page_bytes(&self, side: usize) -> u64 {
        4 * (self.config.rows * self.codecs[side].layout().words()) as u64
    }

    /// Buffers for raw rows of `tokens` tokens.
    fn make(&self, rec: &Recorder<'_>, tokens: usize) -> Result<[wgpu::Buffer; 2]> {
        self.pair(|side| {
            let words = self.config.rows * tokens * self.config.raw_words(side);
            rec.context().create("cache raw rows", 4 * words as u64)
        })
    }

    fn pair(
        &self,
        mut make: impl FnMut(usize) -> Result<wgpu::Buffer>,
    ) -> Result<[wgpu::Buffer; 2]> {
        Ok([make(0)?, make(1)?])
    }

    fn settle(&mut self, next: Frontier, buffers: Option<[wgpu::Buffer; 2]>) {
        let held = self.config.raw_bytes(next.raw());
        self.raw = Arc::new(Raw { buffers, _held: self.ledger.hold(held) });
        self.frontier = next;
    }
}

/// Uploads positions for a codec that has a rotary embedding.
fn positions_of(
    rec: &Recorder<'_>,
    codec: &DeviceCodec,
    positions: impl FnOnce() -> Vec<u32>,
) -> Result<Option<wgpu::Buffer>> {
    if codec.codec().rope().is_none() {
        return Ok(None);
    }
    rec.context().upload("cache positions", bytemuck::cast_slice(&positions())).map(Some)
}
