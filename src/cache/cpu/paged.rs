//! The paged cache in host memory.

use std::sync::Arc;

use half::f16;

use super::copy::copy;
use super::fetch::{Target, fetch};
use super::keep::keep;
use super::pack::pack;
use super::pages::Slabs;
use super::restore::{restore, restore_dense};
use super::rows::elements;
use super::scales::{fix, scales};
use super::write::{IncomingRows, write};
use crate::attention::cpu::{Attended, PagedView, attend_paged};
use crate::attention::{PagedAttend, Queries};
use crate::cache::paged::{self, FetchPlan, ScaleRow, Tag, scale_rows};
use crate::cache::pool::{
    Keep, LayerStep, Operation, Pool, PoolConfig, SequenceId, SlabId, Tables,
};
use crate::error::{Error, Result};
use crate::layout::pool::{PageClass, PoolLayout};
use crate::nestedkv::EvictConfig;
use crate::nestedkv::cpu::{Kept, keep as select, score_batched};
use crate::nsnquant::{Codebook, Codec};
use crate::shape::{Dtype, Elements, Tensor};

/// What a step has to do, layer after layer.
#[derive(Clone, Debug)]
pub struct Step {
    cache: Tag,
    first: usize,
    layers: Vec<Arc<LayerStep>>,
    source_rows: u32,
    prompt: u32,
}

impl Step {
    /// The work in one layer; `None` for a layer that the operation leaves alone.
    pub fn layer(&self, layer: usize) -> Option<&LayerStep> {
        self.layers.get(layer.checked_sub(self.first)?).map(|step| &**step)
    }

    /// Rows of the incoming keys and values of each layer; 0 where none come in.
    pub fn source_rows(&self) -> u32 {
        self.source_rows
    }
}

/// Members of a batch, whose lengths may differ; a sequence may come more than once.
#[derive(Clone, Debug)]
pub struct Batch {
    cache: Tag,
    pub(in crate::cache) members: Vec<SequenceId>,
}

impl Batch {
    /// The sequences of the batch, in its order.
    pub fn members(&self) -> &[SequenceId] {
        &self.members
    }
}

/// Keys, values and positions of a batch, `[members, heads, tokens, head_dim]`: the rows of each head
/// by ascending position, then zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedRows {
    /// Tokens of each row.
    pub tokens: usize,
    /// Element type of keys and values.
    pub dtype: Dtype,
    /// `[members, heads, tokens]`; `u32::MAX` where there is no row.
    pub positions: Vec<u32>,
    keys: Vec<u32>,
    values: Vec<u32>,
}

impl FetchedRows {
    /// Keys as they decode, `[members, heads, tokens, head_dim_k]`.
    pub fn keys(&self) -> Elements<'_> {
        elements(&self.keys, self.dtype)
    }

    /// Values as they decode, `[members, heads, tokens, head_dim_v]`.
    pub fn values(&self) -> Elements<'_> {
        elements(&self.values, self.dtype)
    }
}

/// Which rows of a prompt stay in one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The sequence whose prompt it is.
    pub sequence: SequenceId,
    /// Number of the layer, from 0.
    pub layer: usize,
    /// Tokens of the prompt.
    pub tokens: u32,
    /// The rows of each head that stay.
    pub kept: Kept,
}

impl Eviction {
    /// Rows that stay of each head.
    pub fn counts(&self) -> Vec<u32> {
        self.kept.budgets()
    }
}

/// A paged cache of many sequences and layers in host memory, which says what is right.
///
/// An operation is a [`PagedCache::step`], which plans it and books it, followed by
/// [`PagedCache::apply`] for every layer, before the next step. The tables show the state after the
/// step at once.
#[derive(Debug)]
pub struct PagedCache {
    tag: Tag,
    pub(super) pool: Pool,
    codecs: Option<[Codec; 2]>,
    /// By layer and class.
    pub(super) slabs: Vec<[Vec<Option<Vec<u32>>>; 3]>,
}

impl PagedCache {
    /// An empty cache.
    ///
    /// # Errors
    /// Those of [`PoolConfig::layout`].
    pub fn new(config: PoolConfig, codebook: Arc<Codebook>) -> Result<Self> {
        let pool = Pool::new(config)?;
        let codecs = paged::codecs(&pool, &codebook)?;
        let slabs = vec![Default::default(); pool.config().layers];
        Ok(Self { tag: Tag::new(), pool, codecs, slabs })
    }

    /// The account: lengths, positions, needs, figures.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The codecs of keys and values, if rows are packed.
    pub fn codecs(&self) -> Option<&[Codec; 2]> {
        self.codecs.as_ref()
    }

    /// The slabs of one class and layer by number; none for a layer that there is not.
    pub fn slabs(&self, class: PageClass, layer: usize) -> &[Option<Vec<u32>>] {
        self.slabs.get(layer).map_or(&[], |slabs| &slabs[class.index()])
    }

    /// Bytes of the slabs that are really there.
    pub fn held_bytes(&self) -> u64 {
        let slabs = self.slabs.iter().flatten().flatten().flatten();
        slabs.map(|words| 4 * words.len() as u64).sum()
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

    /// Gives the memory of slabs without pages back.
    pub fn shrink(&mut self) {
        let dropped = self.pool.shrink();
        drop_slabs(&mut self.slabs, dropped);
    }

    /// Plans an operation, makes the slabs that it needs and books it. Where slabs must make room for
    /// others, all empty ones are given back.
    ///
    /// # Errors
    /// Those of [`Pool::plan`]; [`Error::OutOfHostMemory`]. No sequence has changed then.
    pub fn step(&mut self, operation: &Operation<'_>) -> Result<Step> {
        let slabs = &mut self.slabs;
        let plan = paged::plan(&mut self.pool, operation, |gone| drop_slabs(slabs, gone))?;
        let prompt = paged::prompt(&self.pool, operation);
        let source_rows = plan.source_rows();
        let (cache, layers) = (self.tag, Vec::new());
        let mut step = Step { cache, first: 0, layers, source_rows, prompt };
        for (layer, work) in plan.layers() {
            if step.layers.is_empty() {
                step.first = layer;
            }
            let same = step.layers.last().filter(|last| ***last == *work).cloned();
            step.layers.push(same.unwrap_or_else(|| Arc::new(work.clone())));
        }
        let made = self.make(plan.opened())?;
        self.pool.commit(plan)?;
        self.open(made);
        Ok(step)
    }

    /// Memory of slabs to be made.
    pub(super) fn make(&self, opened: &[SlabId]) -> Result<Vec<(SlabId, Vec<u32>)>> {
        let make = |slab: &SlabId| Ok((*slab, zeroed(self.pool.layout().slab_bytes(slab.class))?));
        opened.iter().map(make).collect()
    }

    pub(super) fn open(&mut self, made: Vec<(SlabId, Vec<u32>)>) {
        for (slab, words) in made {
            let slabs = &mut self.slabs[slab.layer as usize][slab.class.index()];
            if slabs.len() <= slab.slab as usize {
                slabs.resize(slab.slab as usize + 1, None);
            }
            slabs[slab.slab as usize] = Some(words);
        }
    }

    /// Carries one layer of a step out. Keys are `[source_rows, head_dim_k]`, values
    /// `[source_rows, head_dim_v]`, in the order of [`crate::cache::pool::Write`]; of another type than
    /// the pages', they are rounded to nearest even, finite values beyond the range becoming the
    /// largest of the type.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a step of another cache; [`Error::OutOfRange`] for the layer;
    /// [`Error::Length`] for tensors of another size, also where
    /// none came and some are needed; [`Error::Unfinished`] for the step of an eviction
    /// ([`PagedCache::keep`] carries that out). Nothing has changed then.
    pub fn apply(
        &mut self,
        step: &Step,
        layer: usize,
        incoming: Option<IncomingRows<'_>>,
    ) -> Result<()> {
        self.carry_out(step, layer, incoming, None)
    }

    /// Carries a step without incoming rows out in all its layers.
    ///
    /// # Errors
    /// As [`PagedCache::apply`].
    pub fn apply_all(&mut self, step: &Step) -> Result<()> {
        (step.first..step.first + step.layers.len())
            .try_for_each(|layer| self.apply(step, layer, None))
    }

    /// Carries one layer of an [`Operation::Finish`] with counts out: `positions` are the rows that
    /// stay, head after head, ascending in each, sinks included.
    ///
    /// # Errors
    /// As [`PagedCache::apply`].
    pub fn keep(&mut self, step: &Step, layer: usize, positions: &[u32]) -> Result<()> {
        self.carry_out(step, layer, None, Some(positions))
    }

    fn carry_out(
        &mut self,
        step: &Step,
        layer: usize,
        incoming: Option<IncomingRows<'_>>,
        kept: Option<&[u32]>,
    ) -> Result<()> {
        self.tag.check("step", step.cache)?;
        paged::check_layer(&self.pool, layer)?;
        let Some(work) = step.layer(layer) else { return Ok(()) };
        let (layout, raw) = (self.pool.layout(), self.pool.config().raw);
        let incoming = match incoming {
            _ if step.source_rows == 0 => None,
            None => return Err(paged::no_rows(step.source_rows)),
            Some(rows) => {
                let sides = [("keys", rows.keys), ("values", rows.values)];
                for ((argument, data), dim) in sides.into_iter().zip(layout.head_dims()) {
                    let (got, expected) = (data.len(), step.source_rows as usize * dim);
                    if got != expected {
                        return Err(Error::Length { argument, got, expected });
                    }
                }
                Some(rows)
            }
        };
        if kept.is_none() && !work.gathers.is_empty() {
            return Err(Error::Unfinished { argument: "the eviction", layer });
        }
        let [sinks, packed, tail] = &mut self.slabs[layer];
        copy(layout, PageClass::Sink, &work.sink_copies, sinks);
        copy(layout, PageClass::Raw, &work.raw_copies, tail);
        if let Some(codecs) = &self.codecs {
            let scales = used(layout, work, sinks);
            restore(layout, codecs, &work.restores, raw, packed, tail, scales.as_deref());
        }
        if let Some(rows) = &incoming {
            write(layout, PageClass::Sink, &work.sink_writes, raw, rows, sinks);
            write(layout, PageClass::Raw, &work.raw_writes, raw, rows, tail);
        }
        if let Some(positions) = kept {
            keep(layout, &work.gathers, positions, step.prompt, &work.gather_pages, tail);
        }
        fix(layout, &work.fixes, &work.fix_pages, raw, tail, sinks)?;
        let scales = used(layout, work, sinks);
        match &self.codecs {
            Some(codecs) => {
                pack(layout, codecs, &work.encodes, raw, tail, packed, scales.as_deref())
            }
            None => Ok(()),
        }
    }

    /// Decides which rows of the raw prompt of one layer stay (NestedKV, arXiv 2605.26678), by its keys
    /// as they are held.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`]; [`Error::OutOfRange`] for the layer and for fewer sinks than the
    /// pool's; [`Error::Finished`]; [`Error::Empty`] for a sequence without rows; [`Error::Mismatch`]
    /// for budgets of another number of heads; and as [`crate::nestedkv::cpu::keep`].
    pub fn evict(
        &self,
        sequence: SequenceId,
        layer: usize,
        config: &EvictConfig,
    ) -> Result<Eviction> {
        let tokens = paged::check_evict(&self.pool, sequence, layer, config)?;
        let heads = self.pool.config().heads;
        let raw = self.pool.config().raw;
        let rows = self.fetch(&self.batch(&[sequence])?, layer, tokens as usize, raw)?;
        let dim = self.pool.layout().head_dims()[0];
        let keys = Tensor::new("keys", rows.keys(), heads, tokens as usize, dim)?;
        let scores = score_batched(&keys, &config.score)?;
        let kept = select(&scores.score, heads, tokens as usize, config)?;
        Ok(Eviction { sequence, layer, tokens, kept })
    }

    /// Carries an eviction out: drops what does not stay and packs what lies behind the frontier.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when the prompt has grown since; those of [`PagedCache::step`].
    pub fn finish(&mut self, eviction: &Eviction) -> Result<()> {
        let Eviction { sequence, layer, tokens, .. } = *eviction;
        let counts = eviction.counts();
        paged::check_counts(&self.pool, sequence, tokens, &counts, eviction.kept.positions.len())?;
        let layers = layer..layer + 1;
        let step =
            self.step(&Operation::Finish { sequence, layers, keep: Keep::Counts(&counts) })?;
        self.keep(&step, layer, &eviction.kept.positions)
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
        Ok(Batch { cache: self.tag, members: members.to_vec() })
    }

    /// Attention of queries `[members, heads, tokens, head_dim_k]` over the rows that one layer of a
    /// batch holds: sinks, packed pages and tail in one softmax. The answers of a member are the same
    /// bits whatever else is in the batch.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a batch of another cache; [`Error::UnknownSequence`];
    /// [`Error::OutOfRange`] for the layer; and as [`attend_paged`](crate::attention::cpu::attend_paged).
    pub fn attend(
        &self,
        batch: &Batch,
        layer: usize,
        queries: &Queries<'_>,
        config: &PagedAttend<'_>,
    ) -> Result<Attended> {
        self.tag.check("batch", batch.cache)?;
        let tables = self.pool.tables(&batch.members, layer)?;
        let scales = self.key_scales(layer, &tables);
        let view = PagedView {
            key_scales: scales.as_deref(),
            layout: self.pool.layout(),
            raw: self.pool.config().raw,
            codecs: self.codecs.as_ref().map(<[Codec; 2]>::each_ref),
            tables: &tables,
            slabs: PageClass::ALL.map(|class| self.slabs(class, layer)),
        };
        attend_paged(&view, queries, config)
    }

    /// The key scales of the rows of some tables, `[rows, head_dim_k]`, where there are any; 1 for
    /// rows without packed pages.
    fn key_scales(&self, layer: usize, tables: &Tables) -> Option<Vec<f16>> {
        let layout = self.pool.layout();
        let list = scale_rows(layout, tables);
        let slabs = self.slabs(PageClass::Sink, layer);
        layout.key_scale().then(|| scales(layout, &list, slabs, tables.rows()))
    }

    /// Rows of one layer of a batch in rows of `tokens` tokens: raw rows as they are, packed rows
    /// decoded; to another type than the pages' by rounding to nearest even, finite values beyond the
    /// range becoming the largest of the type.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a batch of another cache; [`Error::UnknownSequence`];
    /// [`Error::OutOfRange`] for the layer, for fewer tokens than a head
    /// holds, and for 2^32 elements or more.
    pub fn fetch(
        &self,
        batch: &Batch,
        layer: usize,
        tokens: usize,
        dtype: Dtype,
    ) -> Result<FetchedRows> {
        self.tag.check("batch", batch.cache)?;
        let layout = self.pool.layout();
        let tables = self.pool.tables(&batch.members, layer)?;
        let plan = FetchPlan::new(layout, &tables, tokens)?;
        let rows = tables.rows() * tokens;
        let words = layout.head_dims().map(|dim| rows * dim * dtype.bytes() / 4);
        let [mut keys, mut values] = words.map(|words| vec![0; words]);
        let mut positions = vec![u32::MAX; rows];
        let raw = self.pool.config().raw;
        let scales = self.key_scales(layer, &tables);
        for class in PageClass::ALL {
            let list = &plan.pages[class.index()];
            let slabs: &Slabs = &self.slabs[layer][class.index()];
            let mut to =
                Target { keys: &mut keys, values: &mut values, positions: &mut positions, dtype };
            fetch(layout, class, list, raw, Some(slabs), &mut to);
            if let (PageClass::Packed, Some([key, value])) = (class, &self.codecs) {
                restore_dense(layout, key, 0, list, slabs, dtype, &mut keys, scales.as_deref());
                restore_dense(layout, value, 1, list, slabs, dtype, &mut values, None);
            }
        }
        Ok(FetchedRows { tokens, dtype, positions, keys, values })
    }
}

/// The key scales that the restores and encodes of a layer use.
fn used(layout: &PoolLayout, work: &LayerStep, sinks: &Slabs) -> Option<Vec<f16>> {
    let rows = work.scale_pages.iter().zip(0..).map(|(page, row)| ScaleRow { page: *page, row });
    let rows: Vec<ScaleRow> = rows.collect();
    layout.key_scale().then(|| scales(layout, &rows, sinks, rows.len()))
}

pub(super) fn drop_slabs(slabs: &mut [[Vec<Option<Vec<u32>>>; 3]], dropped: Vec<SlabId>) {
    for slab in dropped {
        slabs[slab.layer as usize][slab.class.index()][slab.slab as usize] = None;
    }
}

/// Words of a slab.
fn zeroed(needed: u64) -> Result<Vec<u32>> {
    let words = usize::try_from(needed / 4).map_err(|_| ());
    words
        .and_then(bytemuck::allocation::try_zeroed_vec)
        .map_err(|()| Error::OutOfHostMemory { argument: "slab", needed })
}

#[cfg(test)]
mod tests {
    use super::zeroed;

    #[test]
    fn a_slab_beyond_the_memory_is_refused_with_its_size() {
        assert_eq!(zeroed(64).map(|words| words.len()).ok(), Some(16));
        let fault = zeroed(1 << 60).map(|_| ()).expect_err("an address space is smaller");
        assert_eq!(fault.to_string(), "there is no memory for slab, 1152921504606846976 bytes");
    }
}
