//! The paged cache in device memory.

use std::sync::Arc;

use super::fetch::Target;
use super::keep::Kept;
use super::lists::{Lists, Run, Words};
use super::restore::Dense;
use super::scales::{Gathered, ScaleLists};
use super::slabs::{self, Slabs};
use super::write::IncomingRows;
use super::{copy, fetch, keep, pack, restore, write};
use crate::attention::PagedAttend;
use crate::attention::gpu::{
    DeviceAttended, DevicePagedView, DeviceQueries, DeviceTables, attend_paged,
};
use crate::cache::paged::{self, FetchPlan, Tag};
use crate::cache::pool::{Keep, Operation, Pool, PoolConfig, SequenceId, Tables};
use crate::error::{Error, Result};
use crate::gpu::{Binding, Context, DeviceTensor, Readback, Recorder, Slice, binding_limit};
use crate::layout::pool::PageClass;
use crate::nestedkv::gpu::{DeviceKept, check_limits, keep as select, score};
use crate::nestedkv::{Budget, EvictConfig};
use crate::nsnquant::Codebook;
use crate::nsnquant::gpu::{DeviceCodebook, DeviceCodec};
use crate::shape::{Dtype, check_count};

use super::pages::{List, words};

/// What a step has to do, layer after layer, uploaded. It keeps the slabs that it works on.
#[derive(Debug)]
pub struct Step {
    cache: Tag,
    first: usize,
    /// Equal layers share their lists; `None` for a layer without work.
    layers: Vec<Option<Arc<Lists>>>,
    slabs: Arc<Slabs>,
    source_rows: u32,
    prompt: u32,
}

impl Step {
    /// Rows of the incoming keys and values of each layer; 0 where none come in.
    pub fn source_rows(&self) -> u32 {
        self.source_rows
    }

    /// The layers that the operation is for.
    pub fn layers(&self) -> core::ops::Range<usize> {
        self.first..self.first + self.layers.len()
    }

    /// Lists that were uploaded: layers with equal work share one, layers without work have none.
    pub fn uploads(&self) -> usize {
        let place = |lists: &Arc<Lists>| Arc::as_ptr(lists);
        let mut distinct: Vec<_> = self.layers.iter().flatten().map(place).collect();
        distinct.dedup();
        distinct.len()
    }

    fn lists(&self, layer: usize) -> Option<&Lists> {
        self.layers.get(layer.checked_sub(self.first)?)?.as_deref()
    }
}

/// Members of a batch, whose lengths may differ; a sequence may come more than once. It remembers
/// what was uploaded for the layer before, which layers of equal tables share, and may be kept over
/// steps: it always shows the present state.
#[derive(Debug)]
pub struct Batch {
    cache: Tag,
    pub(in crate::cache) members: Vec<SequenceId>,
    fetched: Option<FetchLists>,
    attended: Option<(Tables, DeviceTables, Option<ScaleLists>)>,
}

impl Batch {
    /// The sequences of the batch, in its order.
    pub fn members(&self) -> &[SequenceId] {
        &self.members
    }
}

#[derive(Debug)]
struct FetchLists {
    tables: Tables,
    tokens: usize,
    words: wgpu::Buffer,
    pages: [Vec<Run>; 3],
    rest: Vec<Run>,
    scales: Option<ScaleLists>,
}

/// Where the rows of a batch go: buffers of the caller, `[members, heads, tokens, head_dim]`.
#[derive(Clone, Copy, Debug)]
pub struct Fetch<'a> {
    /// Room for the keys, `[members, heads, tokens, head_dim_k]`.
    pub keys: Slice<'a>,
    /// Room for the values, `[members, heads, tokens, head_dim_v]`.
    pub values: Slice<'a>,
    /// The positions, u32 `[members, heads, tokens]`, if they are wanted.
    pub positions: Option<Slice<'a>>,
    /// Tokens of each row, at least as many as the longest head of the batch holds.
    pub tokens: usize,
    /// Element type of keys and values.
    pub dtype: Dtype,
}

/// Which rows of a prompt stay in one layer.
#[derive(Debug)]
pub struct Eviction {
    /// The sequence whose prompt it is.
    pub sequence: SequenceId,
    /// Number of the layer, from 0.
    pub layer: usize,
    /// Tokens of the prompt.
    pub tokens: u32,
    /// The rows of each head that stay, on the device.
    pub kept: DeviceKept,
    /// How many rows of each head stay.
    pub counts: Counts,
    /// Their positions as u32, head after head, for [`PagedCache::told`].
    pub positions: Readback,
}

/// Rows of each head that stay of a prompt.
#[derive(Debug)]
pub enum Counts {
    /// Known at once: budgets are uniform.
    Known(Vec<u32>),
    /// Known once the recording has run: u32 a head.
    Later(Readback),
}

impl Counts {
    /// The counts, once they are there.
    ///
    /// # Errors
    /// Those of [`Readback`].
    pub async fn get(&mut self) -> Result<Vec<u32>> {
        match self {
            Self::Known(counts) => Ok(counts.clone()),
            Self::Later(readback) => Ok(bytemuck::pod_collect_to_vec(&readback.await?)),
        }
    }
}

/// A paged cache of many sequences and layers in device memory: the twin of
/// [`crate::cache::cpu::PagedCache`].
///
/// An operation is a [`PagedCache::step`], which plans it, uploads its lists and books it, followed by
/// [`PagedCache::record`] for every layer. Every layer of every step must be recorded, in the order of
/// the steps, and the recordings submitted in that order. The tables show the state after the step at
/// once, so a layer can be attended to right after its rows were recorded.
///
/// How many dispatches are recorded depends on the slabs that a step touches, not on the batch. The
/// slabs, [`PagedCache::device_bytes`], are all that stays on the device besides the codebooks; what a
/// recording needs beside them goes with it.
#[derive(Debug)]
pub struct PagedCache {
    tag: Tag,
    pub(super) context: Context,
    pub(super) pool: Pool,
    codecs: Option<[DeviceCodec; 2]>,
    codebook: Option<DeviceCodebook>,
    pub(super) slabs: Arc<Slabs>,
}

impl PagedCache {
    /// An empty cache.
    ///
    /// # Errors
    /// Those of [`PoolConfig::layout`]; [`Error::DeviceLimit`] when the device cannot bind a slab.
    pub fn new(context: &Context, config: PoolConfig, codebook: Arc<Codebook>) -> Result<Self> {
        let pool = Pool::new(config)?;
        let limits = context.device().limits();
        let bindable = ("max_storage_buffer_binding_size", binding_limit(&limits));
        for class in PageClass::ALL {
            let needed = pool.layout().slab_bytes(class);
            for (limit, allowed) in [bindable, ("max_buffer_size", limits.max_buffer_size)] {
                if needed > allowed {
                    let argument = "slab_bytes";
                    return Err(Error::DeviceLimit { argument, limit, needed, allowed });
                }
            }
        }
        let codecs = match paged::codecs(&pool, &codebook)? {
            Some([keys, values]) => {
                Some([DeviceCodec::new(context, keys)?, DeviceCodec::new(context, values)?])
            }
            None => None,
        };
        let codebook = match &codecs {
            Some(_) => Some(DeviceCodebook::new(context, &codebook)?),
            None => None,
        };
        let slabs = Arc::new(Slabs::new(pool.config().layers));
        let (tag, context) = (Tag::new(), context.clone());
        Ok(Self { tag, context, pool, codecs, codebook, slabs })
    }

    /// The account: lengths, positions, needs, figures.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The codecs of keys and values, if rows are packed.
    pub fn codecs(&self) -> Option<&[DeviceCodec; 2]> {
        self.codecs.as_ref()
    }

    /// The slabs of one class and layer by number; none for a layer that there is not.
    pub fn slabs(&self, class: PageClass, layer: usize) -> &[Option<wgpu::Buffer>] {
        self.slabs.of(class, layer)
    }

    /// Bytes of the slabs that are really there.
    pub fn device_bytes(&self) -> u64 {
        self.slabs.bytes()
    }

    /// Begins a sequence without rows.
    pub fn begin(&mut self) -> SequenceId {
        self.pool.begin()
    }

    /// Begins a sequence that is equal to another and shares all its pages.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        self.pool.fork(sequence)
    }

    /// Ends a sequence and gives its pages back.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn free(&mut self, sequence: SequenceId) -> Result<()> {
        self.pool.free(sequence)
    }

    /// Lets go of slabs without pages; what was recorded before still uses them.
    pub fn shrink(&mut self) {
        let dropped = self.pool.shrink();
        if !dropped.is_empty() {
            Arc::make_mut(&mut self.slabs).drop(&dropped);
        }
    }

    /// Plans an operation, makes the slabs that it needs, uploads its lists and books it. Where slabs
    /// must make room for others, all empty ones are let go of first.
    ///
    /// It is booked at once: if its recording is lost, the rows that it was to write are undefined,
    /// and its sequences should be freed.
    ///
    /// # Errors
    /// Those of [`Pool::plan`]; [`Error::DeviceLimit`] for lists that the device cannot bind;
    /// as for more incoming rows than it can bind; [`Error::OutOfDeviceMemory`];
    /// [`Error::DeviceLost`]. No sequence has changed then.
    pub fn step(&mut self, operation: &Operation<'_>) -> Result<Step> {
        let slabs = &mut self.slabs;
        let drop = |gone: Vec<_>| Arc::make_mut(slabs).drop(&gone);
        let plan = paged::plan(&mut self.pool, operation, drop)?;
        let layout = self.pool.layout();
        self.check_rows(plan.source_rows())?;
        let made = slabs::make(&self.context, layout, plan.opened())?;
        let mut layers: Vec<Option<Arc<Lists>>> = Vec::new();
        let (mut first, mut before) = (0, None);
        for (layer, work) in plan.layers() {
            let lists = match layers.last() {
                Some(last) if before == Some(work) => last.clone(),
                _ => Lists::new(&self.context, layout, work)?.map(Arc::new),
            };
            if layers.is_empty() {
                first = layer;
            }
            layers.push(lists);
            before = Some(work);
        }
        let (source_rows, prompt) = (plan.source_rows(), paged::prompt(&self.pool, operation));
        self.pool.commit(plan)?;
        if !made.is_empty() {
            let slabs = Arc::make_mut(&mut self.slabs);
            made.into_iter().for_each(|(slab, buffer)| slabs.put(slab, buffer));
        }
        let (cache, slabs) = (self.tag, self.slabs.clone());
        Ok(Step { cache, first, layers, slabs, source_rows, prompt })
    }

    /// Checks that so many incoming rows of a layer can be bound at all, of 16-bit elements.
    fn check_rows(&self, rows: u32) -> Result<()> {
        let allowed = binding_limit(&self.context.device().limits());
        for (argument, dim) in ["keys", "values"].into_iter().zip(self.pool.layout().head_dims()) {
            let needed = 2 * check_count(argument, &[rows as usize, dim])? as u64;
            if needed > allowed {
                let limit = "max_storage_buffer_binding_size";
                return Err(Error::DeviceLimit { argument, limit, needed, allowed });
            }
        }
        Ok(())
    }

    /// Checks that a recorder writes for the device of this cache.
    pub(super) fn check_device(&self, rec: &Recorder<'_>) -> Result<()> {
        let same = rec.context().device() == self.context.device();
        let fault = Error::Foreign { argument: "recorder", owner: "device" };
        if same { Ok(()) } else { Err(fault) }
    }

    /// Checks that a slice of the caller's lies in no slab of a layer.
    fn check_outside(
        &self,
        slabs: &Slabs,
        layer: usize,
        argument: &'static str,
        slice: &Slice<'_>,
    ) -> Result<()> {
        let mut held = PageClass::ALL.into_iter().flat_map(|class| slabs.of(class, layer));
        if held.any(|slab| slab.as_ref() == Some(slice.buffer)) {
            let (got, expected) = (slice.offset, "in a buffer that is no slab");
            return Err(Error::Offsets { argument, index: 0, got, expected });
        }
        Ok(())
    }

    /// Records one layer of a step. Keys are `[source_rows, head_dim_k]`, values
    /// `[source_rows, head_dim_v]`, in the order of [`crate::cache::pool::Write`]; of another type than
    /// the pages', they are rounded to nearest even, finite values beyond the range becoming the
    /// largest of the type. Keys come after their rotary embedding, by true positions, which stay
    /// what they were when an eviction drops others.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a step of another cache and a recorder of another device;
    /// [`Error::OutOfRange`] for the layer; [`Error::Offsets`] for tensors that lie in a slab of the
    /// layer; [`Error::Length`] for tensors that are too short, also
    /// where none came and some are needed; [`Error::Unfinished`] for the step of an eviction
    /// ([`PagedCache::keep`] records that); those of [`Recorder::dispatch`] for the tensors. Nothing
    /// was recorded then, and the layer can be recorded with better tensors.
    pub fn record(
        &self,
        rec: &mut Recorder<'_>,
        step: &Step,
        layer: usize,
        incoming: Option<IncomingRows<'_>>,
    ) -> Result<()> {
        self.record_layer(rec, step, layer, incoming, None)
    }

    /// Records a step without incoming rows in all its layers.
    ///
    /// # Errors
    /// As [`PagedCache::record`].
    pub fn record_all(&self, rec: &mut Recorder<'_>, step: &Step) -> Result<()> {
        step.layers().try_for_each(|layer| self.record(rec, step, layer, None))
    }

    /// Records one layer of an [`Operation::Finish`] with counts: `kept` are the `count` rows that
    /// stay, u32 positions head after head, ascending in each, sinks included.
    ///
    /// # Errors
    /// As [`PagedCache::record`].
    pub fn keep(
        &self,
        rec: &mut Recorder<'_>,
        step: &Step,
        layer: usize,
        kept: Slice<'_>,
        count: u32,
    ) -> Result<()> {
        self.record_layer(rec, step, layer, None, Some((kept, count)))
    }

    fn record_layer(
        &self,
        rec: &mut Recorder<'_>,
        step: &Step,
        layer: usize,
        incoming: Option<IncomingRows<'_>>,
        kept: Option<(Slice<'_>, u32)>,
    ) -> Result<()> {
        use PageClass::{Packed, Raw, Sink};
        self.check_device(rec)?;
        self.tag.check("step", step.cache)?;
        paged::check_layer(&self.pool, layer)?;
        let Some(lists) = step.lists(layer) else { return Ok(()) };
        let (layout, raw) = (self.pool.layout(), self.pool.config().raw);
        if step.source_rows > 0 {
            let rows = incoming.as_ref().ok_or_else(|| paged::no_rows(step.source_rows))?;
            rows.check(rec, layout, step.source_rows)?;
            for (argument, slice) in [("keys", &rows.keys), ("values", &rows.values)] {
                self.check_outside(&step.slabs, layer, argument, slice)?;
            }
        }
        if !lists.gathers.is_empty() {
            let (kept, count) =
                kept.ok_or(Error::Unfinished { argument: "the eviction", layer })?;
            words("kept", kept.size, count.into())?;
            rec.check(Binding::Read("kept"), &kept)?;
            self.check_outside(&step.slabs, layer, "kept", &kept)?;
        }
        let scratch = lists.scales.scratch(rec.context(), layout)?;
        let (own, all) = ((&*step.slabs, layer), lists.words());
        let used = scratch.used.as_ref().map(Gathered::scales);
        let slab = |class, number| step.slabs.bound(class, layer, number);
        for (class, runs) in [(Sink, &lists.sink_copies), (Raw, &lists.raw_copies)] {
            for run in runs {
                let (from, to) = (slab(class, run.from)?, slab(class, run.to)?);
                copy::record(rec, layout, &lists.part(run), &from, &to)?;
            }
        }
        if let Some(codecs) = &self.codecs {
            if !lists.restores.is_empty() {
                lists.scales.gather(rec, layout, all, &scratch, own)?;
            }
            for run in &lists.restores {
                let (from, to) = (slab(Packed, run.from)?, slab(Raw, run.to)?);
                restore::record(rec, layout, codecs, &lists.part(run), raw, &from, &to, used)?;
            }
        }
        if let Some(rows) = &incoming {
            for (class, runs) in [(Sink, &lists.sink_writes), (Raw, &lists.raw_writes)] {
                for run in runs {
                    let (list, to) = (lists.part(run), slab(class, run.to)?);
                    write::record(rec, layout, &list, &to, raw, step.source_rows, rows)?;
                }
            }
        }
        if let Some((positions, count)) = kept {
            let (table, table_pages) = lists.table;
            let kept = Kept { positions, count, tokens: step.prompt, table, table_pages };
            for run in &lists.gathers {
                for from in &lists.table_slabs {
                    let (from, to) = (slab(Raw, *from)?, slab(Raw, run.to)?);
                    keep::record(rec, layout, &lists.part(run), &kept, &from, &to)?;
                }
            }
        }
        if let Some(codecs) = &self.codecs {
            lists.scales.fix(rec, layout, raw, all, &scratch, own)?;
            if !lists.encodes.is_empty() {
                lists.scales.gather(rec, layout, all, &scratch, own)?;
            }
            for run in &lists.encodes {
                let (from, to) = (slab(Raw, run.from)?, slab(Packed, run.to)?);
                pack::record(rec, layout, codecs, &lists.part(run), raw, &from, &to, used)?;
            }
        }
        Ok(())
    }

    /// Records the decision which rows of the raw prompt of one layer stay (NestedKV, arXiv
    /// 2605.26678), by its keys as they are held. Nothing waits: adaptive counts and the positions
    /// come as futures.
    ///
    /// All layers of the prompt must be recorded before. With a uniform budget the counts are known at
    /// once, and [`PagedCache::finish`] may follow in the same recording; with an adaptive one submit
    /// first. [`PagedCache::told`] is needed only for trims into the prompt and for positions.
    ///
    /// It works on a copy of the layer's keys: with scores and selections a recording takes about six
    /// tenths of the bytes that the layer's prompt has as f16, and 100 KB a head for selections,
    /// until it has run. So submit every layer on its own where memory is short: that is less than a
    /// fiftieth of the f16 cache of 32 layers, for prompts of 4,096 tokens and more.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`]; [`Error::OutOfRange`] for the layer and for fewer sinks than the
    /// pool's; [`Error::Finished`]; [`Error::Empty`] for a sequence without rows; [`Error::Mismatch`]
    /// for budgets of another number of heads; [`Error::DeviceLimit`] for a prompt whose keys the
    /// device cannot bind; and as [`crate::nestedkv::gpu::keep`].
    pub fn evict(
        &self,
        rec: &mut Recorder<'_>,
        sequence: SequenceId,
        layer: usize,
        config: &EvictConfig,
    ) -> Result<Eviction> {
        self.check_device(rec)?;
        let tokens = paged::check_evict(&self.pool, sequence, layer, config)?;
        let (heads, raw) = (self.pool.config().heads, self.pool.config().raw);
        let dim = self.pool.layout().head_dims()[0];
        let rows = heads * tokens as usize;
        let keys = rec.context().create("keys", (rows * dim * raw.bytes()) as u64)?;
        let keys = Slice::all(&keys);
        let tensor = DeviceTensor::new("keys", keys, raw, heads, tokens as usize, dim)?;
        check_limits(rec, &tensor)?;
        let to = Target { keys: Some(keys), values: None, positions: None, rows, dtype: raw };
        self.fetch_to(rec, &mut self.batch(&[sequence])?, layer, tokens as usize, &to)?;
        let scores = score(rec, &tensor, &config.score)?;
        let kept = select(rec, Slice::all(&scores.score), heads, tokens as usize, config)?;
        let counts = match config.budget {
            Budget::Uniform(_) => Counts::Known(vec![(kept.total / heads as u64) as u32; heads]),
            Budget::Adaptive { .. } => Counts::Later(
                rec.read_back(Slice { size: 4 * heads as u64, ..Slice::all(&kept.budgets) })?,
            ),
        };
        let size = 4 * kept.total;
        let positions = rec.read_back(Slice { size, ..Slice::all(&kept.positions) })?;
        Ok(Eviction { sequence, layer, tokens, kept, counts, positions })
    }

    /// Plans, books and records what an eviction decided: drops what does not stay and packs what lies
    /// behind the frontier. `counts` are those of the eviction.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when the prompt has grown since or the counts are not the eviction's; those
    /// of [`PagedCache::step`].
    pub fn finish(
        &mut self,
        rec: &mut Recorder<'_>,
        eviction: &Eviction,
        counts: &[u32],
    ) -> Result<()> {
        let Eviction { sequence, layer, tokens, .. } = *eviction;
        let total = eviction.kept.total;
        self.check_device(rec)?;
        paged::check_counts(&self.pool, sequence, tokens, counts, total as usize)?;
        let kept = Slice::all(&eviction.kept.positions);
        words("kept", kept.size, total)?;
        rec.check(Binding::Read("kept"), &kept)?;
        self.check_outside(&self.slabs, layer, "kept", &kept)?;
        let layers = layer..layer + 1;
        let step =
            self.step(&Operation::Finish { sequence, layers, keep: Keep::Counts(counts) })?;
        self.keep(rec, &step, layer, kept, total as u32)
    }

    /// Tells which positions an eviction kept in one layer ([`Pool::set_positions`]).
    ///
    /// # Errors
    /// Those of [`Pool::set_positions`].
    pub fn told(&mut self, sequence: SequenceId, layer: usize, positions: &[u32]) -> Result<()> {
        self.pool.set_positions(sequence, layer, positions)
    }

    /// Puts sequences side by side; nothing is copied.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn batch(&self, members: &[SequenceId]) -> Result<Batch> {
        members.iter().try_for_each(|id| self.pool.seen(*id).map(drop))?;
        let (cache, members) = (self.tag, members.to_vec());
        Ok(Batch { cache, members, fetched: None, attended: None })
    }

    /// Records the attention of queries `[members, heads, tokens, head_dim_k]` over the rows that one
    /// layer of a batch holds now: sinks, packed pages and tail in one softmax. The answers of a
    /// member are the same bits whatever else is in the batch.
    ///
    /// By default attention is causal and the queries are the newest tokens, whose rows must be
    /// recorded before.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a batch of another cache and a recorder of another device;
    /// [`Error::UnknownSequence`]; [`Error::OutOfRange`] for the layer; and as
    /// [`attend_paged`](crate::attention::gpu::attend_paged).
    pub fn attend(
        &self,
        rec: &mut Recorder<'_>,
        batch: &mut Batch,
        layer: usize,
        queries: &DeviceQueries<'_>,
        config: &PagedAttend<'_>,
    ) -> Result<DeviceAttended> {
        self.check_device(rec)?;
        self.tag.check("batch", batch.cache)?;
        let tables = self.pool.tables(&batch.members, layer)?;
        let layout = self.pool.layout();
        // Layers that hold the same rows share the lists, and so do steps that needed no page.
        let context = rec.context();
        let (uploaded, scales) = match batch.attended.take() {
            Some((before, uploaded, scales)) if before == tables => (uploaded, scales),
            Some((before, uploaded, scales)) if paged::same_pages(&before, &tables) => {
                let Tables { next, sink_rows, tail_rows, .. } = &tables;
                (uploaded.recounted(context, next, sink_rows, tail_rows)?, scales)
            }
            _ => {
                let uploaded = DeviceTables::new(context, layout, &tables)?;
                let scales = match uploaded.scale_slab() {
                    Some(_) => None,
                    None => ScaleLists::new(context, layout, &tables)?,
                };
                (uploaded, scales)
            }
        };
        let key_scales = match &scales {
            Some(scales) => scales.gather(rec, layout, &self.slabs, layer)?,
            None => None,
        };
        let view = DevicePagedView {
            key_scales: key_scales.as_ref().map(Gathered::slice),
            layout,
            raw: self.pool.config().raw,
            codebook: self.codebook.as_ref(),
            keys: self.codecs.as_ref().map(|[keys, _]| keys),
            tables: &uploaded,
            slabs: PageClass::ALL.map(|class| self.slabs.of(class, layer)),
        };
        let attended = attend_paged(rec, &view, queries, config);
        batch.attended = Some((tables, uploaded, scales));
        attended
    }

    /// Records the rows of one layer of a batch into dense tensors: the rows of each head by ascending
    /// position, raw ones as they are, packed ones decoded; then zeros, whose positions are
    /// `u32::MAX`. Elements of another type than the pages' are rounded to nearest even, finite values
    /// beyond the range becoming the largest of the type.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`]; [`Error::OutOfRange`] for the layer, for fewer tokens than a head
    /// holds, and for 2^32 elements or more; [`Error::Length`] for buffers that are too short;
    /// [`Error::Offsets`] for slices that overlap or lie in a slab of the layer; [`Error::Foreign`] for
    /// a batch of another cache and a recorder of another device; those of
    /// [`Recorder::dispatch`] for the buffers. Nothing was recorded then.
    pub fn fetch(
        &self,
        rec: &mut Recorder<'_>,
        batch: &mut Batch,
        layer: usize,
        to: &Fetch<'_>,
    ) -> Result<()> {
        let rows = batch.members.len().saturating_mul(self.pool.config().heads);
        let target = Target {
            keys: Some(to.keys),
            values: Some(to.values),
            positions: to.positions,
            rows: rows.saturating_mul(to.tokens),
            dtype: to.dtype,
        };
        self.fetch_to(rec, batch, layer, to.tokens, &target)
    }

    fn fetch_to(
        &self,
        rec: &mut Recorder<'_>,
        batch: &mut Batch,
        layer: usize,
        tokens: usize,
        to: &Target<'_>,
    ) -> Result<()> {
        self.check_device(rec)?;
        self.tag.check("batch", batch.cache)?;
        let (layout, raw) = (self.pool.layout(), self.pool.config().raw);
        let tables = self.pool.tables(&batch.members, layer)?;
        let held = batch.fetched.take();
        let same = held.filter(|held| held.tokens == tokens && held.tables == tables);
        let lists = match same {
            Some(lists) => lists,
            None => {
                let plan = FetchPlan::new(layout, &tables, tokens)?;
                let mut words = Words::default();
                let mut runs = |class: PageClass| {
                    let list = &plan.pages[class.index()];
                    words.push(list, |entry| (layout.slab_of(class, entry.from), 0))
                };
                let pages =
                    [runs(PageClass::Sink)?, runs(PageClass::Packed)?, runs(PageClass::Raw)?];
                let rest = words.push(&plan.rest, |_| (0, 0))?;
                let scales = ScaleLists::new(rec.context(), layout, &tables)?;
                let words = words.upload(rec.context())?;
                FetchLists { tables, tokens, words, pages, rest, scales }
            }
        };
        to.check(rec, layout)?;
        for (argument, slice) in to.parts().into_iter().filter_map(|(name, s)| Some((name, s?))) {
            self.check_outside(&self.slabs, layer, argument, &slice)?;
        }
        let gathered = match lists.scales.as_ref().filter(|_| to.keys.is_some()) {
            Some(scales) => scales.gather(rec, layout, &self.slabs, layer)?,
            None => None,
        };
        let gathered = gathered.as_ref().map(Gathered::scales);
        let words = Slice::all(&lists.words);
        let part = |run: &Run| List { words, first: run.first, count: run.count };
        for class in PageClass::ALL {
            for run in &lists.pages[class.index()] {
                let (list, slab) = (part(run), self.slabs.bound(class, layer, run.from)?);
                fetch::record(rec, layout, &list, raw, Some(&slab), to)?;
                if class != PageClass::Packed {
                    continue;
                }
                let sides = [to.keys, to.values];
                for (side, codec) in self.codecs.iter().flatten().enumerate() {
                    if let Some(words) = sides[side] {
                        let dense = Dense { words, rows: to.rows, dtype: to.dtype };
                        let scales = gathered.filter(|_| side == 0);
                        restore::record_dense(
                            rec, layout, codec, side, &list, &slab, &dense, scales,
                        )?;
                    }
                }
            }
        }
        for run in &lists.rest {
            fetch::record(rec, layout, &part(run), raw, None, to)?;
        }
        batch.fetched = Some(lists);
        Ok(())
    }
}
