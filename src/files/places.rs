//! Positions in the pages of a file against those that its tables say: attention masks by the
//! former, trims by the latter.

use std::collections::HashMap;

use super::refuse;
use crate::cache::pool::{Eviction, SavedHead, Snapshot};
use crate::error::Result;
use crate::layout::pool::{PageClass, PoolLayout};

/// What decides which positions a page holds: forks that agree in it need no second look.
type Seen = HashMap<(usize, u32), (Option<u32>, usize, u32, u32, u32, u32)>;

/// The pages of a layer, by class.
struct Pages<'a> {
    layout: &'a PoolLayout,
    bytes: [&'a [u8]; 3],
}

impl Pages<'_> {
    fn position(&self, class: PageClass, page: u32, row: u32) -> u32 {
        let words = page as usize * self.layout.words(class);
        let start = 4 * (words + self.layout.positions_offset(class) + row as usize);
        let bytes = &self.bytes[class.index()][start..start + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

/// Which positions the rows of a head must have.
struct Expected<'a> {
    head: &'a SavedHead,
    origin: u32,
    sinks: u32,
    /// Positions kept of the prompt; none when all of it was kept.
    kept: Option<&'a [u32]>,
    /// Whether rows were kept of which the positions are not known.
    untold: bool,
}

impl Expected<'_> {
    /// The position of a row; `None` when only its order is known.
    fn of(&self, row: u32) -> Option<u32> {
        if row >= self.head.prompt {
            Some(self.origin + (row - self.head.prompt))
        } else if let Some(kept) = self.kept {
            Some(kept[row as usize])
        } else {
            (!self.untold || row < self.sinks).then_some(row)
        }
    }
}

/// Positions kept by one head of an evicted layer.
fn kept(eviction: &Eviction, head: usize) -> Option<&[u32]> {
    let first: usize = eviction.counts[..head].iter().map(|count| *count as usize).sum();
    let count = eviction.counts[head] as usize;
    eviction.positions.as_ref().map(|list| &list[first..first + count])
}

/// Checks the pages of one layer; the snapshot has been checked.
pub(super) fn check_positions(
    snapshot: &Snapshot,
    layer: usize,
    heads: usize,
    layout: &PoolLayout,
    bytes: [&[u8]; 3],
) -> Result<()> {
    let pages = Pages { layout, bytes };
    let mut seen = Seen::new();
    for saved in &snapshot.sequences {
        let place = saved.evictions[layer];
        let eviction = place.map(|place| &snapshot.evictions[place as usize]);
        let of_layer = &saved.heads[layer * heads..(layer + 1) * heads];
        for (head, state) in of_layer.iter().enumerate() {
            let partial = eviction.filter(|eviction| eviction.counts[head] != eviction.tokens);
            let kept = partial.and_then(|eviction| kept(eviction, head));
            let expected = Expected {
                head: state,
                origin: saved.origin,
                sinks: layout.sinks() as u32,
                kept,
                untold: partial.is_some() && kept.is_none(),
            };
            let sink = state.sink.iter().map(|page| (PageClass::Sink, *page));
            let packed = state.packed.iter().map(|page| (PageClass::Packed, *page));
            let tail = state.tail.iter().map(|page| (PageClass::Raw, *page));
            let mut first = 0;
            let mut before = None;
            for (class, page) in sink.chain(packed).chain(tail) {
                let rows = (state.rows - first).min(layout.rows(class) as u32);
                if rows == 0 {
                    // A sink page without sinks, for its key scale.
                    continue;
                }
                let last = pages.position(class, page, rows - 1);
                let key = (class.index(), page);
                let what = (place, head, saved.origin, state.prompt, first, rows);
                if expected.untold || seen.insert(key, what) != Some(what) {
                    let rows = first..first + rows;
                    check_page(&pages, layer, class, page, rows, before, &expected)?;
                }
                before = Some(last);
                first += rows;
            }
        }
    }
    Ok(())
}

fn check_page(
    pages: &Pages<'_>,
    layer: usize,
    class: PageClass,
    page: u32,
    rows: core::ops::Range<u32>,
    mut before: Option<u32>,
    expected: &Expected<'_>,
) -> Result<()> {
    for row in rows.clone() {
        let got = pages.position(class, page, row - rows.start);
        let want = match expected.of(row) {
            Some(want) if want == got => None,
            Some(want) => Some(want.to_string()),
            None if before.is_some_and(|before| got <= before) => {
                Some("more than the row before".into())
            }
            None if got >= expected.origin => Some("a position of the prompt".into()),
            None => None,
        };
        if let Some(want) = want {
            let place = super::saved::page_tensor(layer, class);
            let row = row - rows.start;
            return Err(refuse(format!(
                "{place}: row {row} of page {page} has position {got}, expected {want}"
            )));
        }
        before = Some(got);
    }
    Ok(())
}
