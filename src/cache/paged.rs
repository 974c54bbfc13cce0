//! What the paged caches of both paths share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{Pod, Zeroable};

use super::pool::{Load, Operation, Pool, SequenceId, SlabId, Snapshot, Step, Tables};
use crate::error::{Error, Result};
use crate::layout::pool::{PageClass, PageId, PoolLayout};
use crate::nestedkv::plan::KeepPlan;
use crate::nestedkv::{Budget, EvictConfig};
use crate::nsnquant::{Codebook, Codec};
use crate::shape::check_count;

/// Tells caches apart, so that steps and batches of one are refused by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u64);

impl Tag {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn check(self, argument: &'static str, other: Self) -> Result<()> {
        let fault = Error::Foreign { argument, owner: "cache" };
        if self == other { Ok(()) } else { Err(fault) }
    }
}

/// The first rows of a page, and where they go in a dense tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FetchRows {
    /// The page; [`PageId::NONE`] for rows without content.
    pub from: PageId,
    /// First row of the tensor.
    pub to: u32,
    /// Rows to copy.
    pub rows: u32,
    /// Number of the key scale that the page is packed under, if there are any.
    pub scale: u32,
}

/// A sink page whose key scale is wanted, and where it goes in a list of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ScaleRow {
    /// The sink page that holds the scale.
    pub page: PageId,
    /// Its row in the list `[rows, head_dim]`.
    pub row: u32,
}

/// The key scales that the packed pages of rows are under, sorted by slab.
pub(super) fn scale_rows(layout: &PoolLayout, tables: &Tables) -> Vec<ScaleRow> {
    if !layout.key_scale() {
        return Vec::new();
    }
    let packed = tables.packed_offsets.windows(2).map(|pair| pair[1] > pair[0]);
    let rows = packed.zip(&tables.sinks).zip(0..).filter(|((packed, _), _)| *packed);
    let mut rows: Vec<ScaleRow> =
        rows.map(|((_, page), row)| ScaleRow { page: *page, row }).collect();
    rows.sort_by_key(|entry| layout.slab_of(PageClass::Sink, entry.page));
    rows
}

/// Most rows without content that one entry of a list names.
pub const FILL_ROWS: u32 = 256;

/// Where the rows of a batch go in dense tensors `[rows, tokens]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FetchPlan {
    /// Pages by class, sorted by slab.
    pub(super) pages: [Vec<FetchRows>; 3],
    /// Rows without content.
    pub(super) rest: Vec<FetchRows>,
}

impl FetchPlan {
    /// Lays the rows of `tables` out in rows of `tokens` tokens.
    pub(super) fn new(layout: &PoolLayout, tables: &Tables, tokens: usize) -> Result<Self> {
        let longest = (0..tables.rows()).map(|row| tables.len(row)).max().unwrap_or(0);
        if tokens < longest as usize {
            let (got, min) = (tokens as u64, u64::from(longest));
            let max = u64::from(u32::MAX);
            return Err(Error::OutOfRange { argument: "tokens", got, min, max });
        }
        for dim in layout.head_dims() {
            check_count("fetched elements", &[tables.rows(), tokens, dim])?;
        }
        let mut plan = Self::default();
        let chunk = tables.chunk;
        for row in 0..tables.rows() {
            let mut to = (row * tokens) as u32;
            let end = to + tokens as u32;
            let mut put = |class: PageClass, from, rows| {
                if rows > 0 {
                    plan.pages[class.index()].push(FetchRows { from, to, rows, scale: row as u32 });
                    to += rows;
                }
            };
            put(PageClass::Sink, tables.sinks[row], tables.sink_rows[row]);
            let list = |offsets: &[u32]| offsets[row] as usize..offsets[row + 1] as usize;
            for &page in &tables.packed[list(&tables.packed_offsets)] {
                put(PageClass::Packed, page, chunk);
            }
            let mut left = tables.tail_rows[row];
            for &page in &tables.tail[list(&tables.tail_offsets)] {
                put(PageClass::Raw, page, left.min(chunk));
                left -= left.min(chunk);
            }
            while to < end {
                let rows = (end - to).min(FILL_ROWS);
                plan.rest.push(FetchRows { from: PageId::NONE, to, rows, scale: 0 });
                to += rows;
            }
        }
        for class in PageClass::ALL {
            plan.pages[class.index()].sort_by_key(|entry| layout.slab_of(class, entry.from));
        }
        Ok(plan)
    }
}

/// The codecs of keys and values, if rows are packed.
pub(super) fn codecs(pool: &Pool, codebook: &Arc<Codebook>) -> Result<Option<[Codec; 2]>> {
    let Some([keys, values]) = pool.layout().packed() else { return Ok(None) };
    let codec = |layout| Codec::new(layout, codebook.clone());
    let keys = codec(*keys)?.with_rope(pool.config().rope.clone())?;
    Ok(Some([keys, codec(*values)?]))
}

/// Plans an operation; where slabs must make room for others, all empty ones go first, as they are
/// named to `drop`.
pub(super) fn plan(
    pool: &mut Pool,
    operation: &Operation<'_>,
    drop: impl FnOnce(Vec<SlabId>),
) -> Result<Step> {
    let step = pool.plan(operation)?;
    if step.dropped().is_empty() {
        return Ok(step);
    }
    drop(pool.shrink());
    pool.plan(operation)
}

pub(super) fn check_layer(pool: &Pool, layer: usize) -> Result<()> {
    let (got, max) = (layer as u64, pool.config().layers as u64 - 1);
    let fault = Error::OutOfRange { argument: "layer", got, min: 0, max };
    if got <= max { Ok(()) } else { Err(fault) }
}

/// The step needs rows, and none came.
pub(super) fn no_rows(source_rows: u32) -> Error {
    Error::Length { argument: "incoming rows", got: 0, expected: source_rows as usize }
}

/// Checks that a layer's prompt can be scored, and returns its tokens.
pub(super) fn check_evict(
    pool: &Pool,
    sequence: SequenceId,
    layer: usize,
    config: &EvictConfig,
) -> Result<u32> {
    let rows = pool.config().heads;
    if pool.is_finished(sequence, layer)? {
        return Err(Error::Finished { argument: "the prompt" });
    }
    let tokens = pool.seen(sequence)?;
    if tokens == 0 {
        return Err(Error::Empty { argument: "tokens" });
    }
    config.validate(rows)?;
    if let Budget::Adaptive { heads, .. } = config.budget
        && heads != rows
    {
        let reference = "the cache's heads";
        return Err(Error::Mismatch { argument: "heads", got: heads, expected: rows, reference });
    }
    let min = (pool.layout().sinks() as u64).min(tokens.into());
    if u64::from(config.sinks) < min {
        let (got, max) = (config.sinks.into(), u64::from(u32::MAX));
        return Err(Error::OutOfRange { argument: "the eviction's sinks", got, min, max });
    }
    KeepPlan::new(config, tokens as usize).total(rows)?;
    Ok(tokens)
}

/// Checks what an eviction of a prompt of `tokens` tokens says that it keeps.
pub(super) fn check_counts(
    pool: &Pool,
    sequence: SequenceId,
    tokens: u32,
    counts: &[u32],
    total: usize,
) -> Result<()> {
    let seen = pool.seen(sequence)?;
    if seen != tokens {
        let (got, expected) = (tokens as usize, seen as usize);
        let reference = "the tokens of the sequence";
        return Err(Error::Mismatch { argument: "evicted tokens", got, expected, reference });
    }
    let got = counts.iter().map(|count| *count as usize).sum();
    if got != total {
        let reference = "the rows that the eviction keeps";
        return Err(Error::Mismatch { argument: "counts", got, expected: total, reference });
    }
    Ok(())
}

/// Tokens of the prompt that an operation finishes; 0 for other operations.
pub(super) fn prompt(pool: &Pool, operation: &Operation<'_>) -> u32 {
    match operation {
        Operation::Finish { sequence, .. } => pool.seen(*sequence).unwrap_or(0),
        _ => 0,
    }
}

/// Whether two tables differ in counts of rows and next positions alone.
pub(super) fn same_pages(a: &Tables, b: &Tables) -> bool {
    a.sinks == b.sinks
        && a.packed_offsets == b.packed_offsets
        && a.packed == b.packed
        && a.tail_offsets == b.tail_offsets
        && a.tail == b.tail
}

/// Sequences out of a paged cache, as one of either path takes them in again: their tables, and for
/// each layer and class ([`PageClass::index`]) the bytes of the pages, `[pages, words]`, in the order
/// in which the tables number them.
///
/// What a page holds beside the rows of these sequences is of no meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// The tables of the sequences.
    pub snapshot: Snapshot,
    /// Bytes of the pages, `[layers]` by class ([`PageClass::index`]), `[pages, words]` each.
    pub pages: Vec<[Vec<u8>; 3]>,
}

/// Plans an import; where slabs must make room for others, all empty ones go first, as they are named
/// to `drop`.
pub(super) fn plan_import(
    pool: &mut Pool,
    snapshot: &Snapshot,
    pages: &[[&[u8]; 3]],
    drop: impl FnOnce(Vec<SlabId>),
) -> Result<Load> {
    let load = pool.plan_load(snapshot)?;
    let length = |argument, got: usize, expected: usize| {
        if got == expected { Ok(()) } else { Err(Error::Length { argument, got, expected }) }
    };
    length("layers of pages", pages.len(), pool.config().layers)?;
    for (layer, pages) in pages.iter().enumerate() {
        for class in PageClass::ALL {
            let expected = load.pages(class, layer).len() * pool.layout().bytes(class) as usize;
            length("bytes of pages", pages[class.index()].len(), expected)?;
        }
    }
    if load.dropped().is_empty() {
        return Ok(load);
    }
    drop(pool.shrink());
    pool.plan_load(snapshot)
}

/// Pages that lie side by side in a slab, and come one after the other in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbours {
    pub(super) slab: u32,
    /// First byte in the slab.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) size: u64,
}

/// A list of pages in runs of neighbours.
pub(super) fn neighbours(
    layout: &PoolLayout,
    class: PageClass,
    pages: &[PageId],
) -> Vec<Neighbours> {
    let size = layout.bytes(class);
    let mut runs: Vec<Neighbours> = Vec::new();
    for page in pages {
        let slab = layout.slab_of(class, *page);
        let offset = u64::from(layout.index_of(class, *page)) * size;
        match runs.last_mut() {
            Some(run) if run.slab == slab && run.offset + run.size == offset => run.size += size,
            _ => runs.push(Neighbours { slab, offset, size }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_side_by_side_come_as_one() {
        let layout = PoolLayout::new(8, 8, None, 2, 0, 1 << 10).unwrap();
        let bytes = layout.bytes(PageClass::Raw);
        let page = |slab, index| layout.page(PageClass::Raw, slab, index);
        let last = layout.pages_per_slab(PageClass::Raw) - 1;
        let list = [page(0, 2), page(0, 3), page(0, 5), page(0, 4), page(0, last), page(1, 0)];
        let run = |slab, index: u32, pages| {
            let (offset, size) = (u64::from(index) * bytes, pages * bytes);
            Neighbours { slab, offset, size }
        };
        let expected = [run(0, 2, 2), run(0, 5, 1), run(0, 4, 1), run(0, last, 1), run(1, 0, 1)];
        assert_eq!(neighbours(&layout, PageClass::Raw, &list), expected);
    }
}
