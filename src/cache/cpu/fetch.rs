//! Copies rows of pages into dense tensors: the twin of `wgsl/cache/fetch.wgsl`, equal bit for bit.

use super::pages::{Slabs, page, part, raw_rows};
use super::rows::convert;
use crate::cache::paged::FetchRows;
use crate::layout::pool::{PageClass, PoolLayout};
use crate::shape::Dtype;

/// Dense tensors that rows are fetched to, in words; an empty one is left out.
#[derive(Debug)]
pub struct Target<'a> {
    /// Keys `[rows, head_dim_k]`.
    pub keys: &'a mut [u32],
    /// Values `[rows, head_dim_v]`.
    pub values: &'a mut [u32],
    /// Positions `[rows]`.
    pub positions: &'a mut [u32],
    /// Element type of keys and values.
    pub dtype: Dtype,
}

/// Copies a list of rows from pages whose raw rows have `raw` elements; of packed pages only the
/// positions are copied. Without slabs the rows get zeros and the positions `u32::MAX`. Entries whose
/// pages lie in no slab are ignored, as are rows beyond the tensors.
pub fn fetch(
    layout: &PoolLayout,
    class: PageClass,
    list: &[FetchRows],
    raw: Dtype,
    slabs: Option<&Slabs>,
    to: &mut Target<'_>,
) {
    let dtype = to.dtype;
    let most = if slabs.is_some() { layout.rows(class) } else { usize::MAX };
    for entry in list {
        let from = match slabs {
            Some(slabs) => match page(layout, class, slabs, entry.from) {
                Some(page) => Some(page),
                None => continue,
            },
            None => None,
        };
        let within = |held: usize| {
            let first = (entry.to as usize).min(held);
            (first, (entry.rows as usize).min(most).min(held - first))
        };
        if class != PageClass::Packed || from.is_none() {
            for (side, out) in [&mut *to.keys, &mut *to.values].into_iter().enumerate() {
                let words = layout.head_dims()[side] * dtype.bytes() / 4;
                let (first, rows) = within(out.len() / words);
                let out = &mut out[first * words..(first + rows) * words];
                match from {
                    Some(page) => {
                        convert(raw_rows(layout, class, page, side, rows, raw), dtype, out)
                    }
                    None => out.fill(0),
                }
            }
        }
        let (first, rows) = within(to.positions.len());
        let out = &mut to.positions[first..first + rows];
        match from {
            Some(page) => {
                let start = part(layout, class, 2);
                out.copy_from_slice(&page[start..start + rows]);
            }
            None => out.fill(u32::MAX),
        }
    }
}
