//! What the paged caches of both paths share.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::pool::{Operation, Pool, SlabId, Step, Tables};
use crate::error::{Error, Result};
use crate::layout::pool::{PageClass, PageId, PoolLayout};
use crate::nsnquant::{Codebook, Codec};
use crate::shape::check_count;

/// The first rows of a page, and where they go in a dense tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FetchRows {
    /// The page; [`PageId::NONE`] for rows without content.
    pub from: PageId,
    /// First row of the tensor.
    pub to: u32,
    /// Rows.
    pub rows: u32,
}

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
                    plan.pages[class.index()].push(FetchRows { from, to, rows });
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
                let rows = (end - to).min(super::gpu::fetch::FILL_ROWS);
                plan.rest.push(FetchRows { from: PageId::NONE, to, rows });
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
pub(super) fn codecs(layout: &PoolLayout, codebook: &Arc<Codebook>) -> Result<Option<[Codec; 2]>> {
    let Some([keys, values]) = layout.packed() else { return Ok(None) };
    let codec = |layout| Codec::new(layout, codebook.clone());
    Ok(Some([codec(*keys)?, codec(*values)?]))
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
