//! Writes incoming rows into pages: the twin of `wgsl/cache/write.wgsl`, equal bit for bit.

use super::pages::{Slabs, page_mut, part};
use super::rows::convert;
use crate::cache::pool::Write;
use crate::layout::pool::{PageClass, PoolLayout};
use crate::shape::{Dtype, Elements};

/// Incoming rows of one layer.
#[derive(Clone, Copy, Debug)]
pub struct IncomingRows<'a> {
    /// Keys `[source_rows, head_dim_k]`.
    pub keys: Elements<'a>,
    /// Values `[source_rows, head_dim_v]`.
    pub values: Elements<'a>,
}

/// Carries out a list of writes into raw pages of `raw` elements. Equal types keep their bits; finite
/// values beyond the range become the largest of the type. Entries whose pages lie in no slab are
/// ignored, as are rows beyond the tensors.
pub fn write(
    layout: &PoolLayout,
    class: PageClass,
    list: &[Write],
    raw: Dtype,
    incoming: &IncomingRows<'_>,
    slabs: &mut Slabs,
) {
    let sides = [incoming.keys, incoming.values];
    let dims = layout.head_dims();
    let held = (sides[0].len() / dims[0]).min(sides[1].len() / dims[1]);
    for entry in list {
        let Some(to) = page_mut(layout, class, slabs, entry.page) else { continue };
        let slot = (entry.slot as usize).min(layout.rows(class));
        let source = (entry.source as usize).min(held);
        let rows = (entry.rows as usize).min(layout.rows(class) - slot).min(held - source);
        for (side, data) in sides.into_iter().enumerate() {
            let (dim, words) = (dims[side], layout.row_words(side));
            let first = part(layout, class, side) + slot * words;
            let data = data.slice(source * dim..(source + rows) * dim);
            convert(data, raw, &mut to[first..first + rows * words]);
        }
        let first = part(layout, class, 2) + slot;
        for (to, position) in to[first..first + rows].iter_mut().zip(entry.position..) {
            *to = position;
        }
    }
}
