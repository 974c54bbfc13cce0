//! The tables of saved sequences as lists of words.

use super::{refuse, shown};
use crate::cache::pool::{Eviction, SavedHead, SavedSequence, Snapshot};
use crate::error::Result;

/// Stands for no page and no eviction.
const NONE: u32 = u32::MAX;

/// A list of words with a name and a shape.
pub(super) struct List {
    pub(super) name: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) words: Vec<u32>,
}

/// Names and shapes of all lists; `None` stands for a size that the list itself says.
pub(super) fn shapes(layers: usize, heads: usize) -> [(&'static str, Vec<Option<usize>>); 15] {
    let (l, h) = (Some(layers), Some(heads));
    [
        ("sequences.seen", vec![None]),
        ("sequences.origin", vec![None]),
        ("sequences.finished", vec![None, l]),
        ("sequences.evictions", vec![None, l]),
        ("heads.rows", vec![None, l, h]),
        ("heads.prompt", vec![None, l, h]),
        ("heads.sink", vec![None, l, h]),
        ("heads.packed", vec![None, l, h]),
        ("heads.tail", vec![None, l, h]),
        ("pages.packed", vec![None]),
        ("pages.tail", vec![None]),
        ("evictions.tokens", vec![None]),
        ("evictions.counts", vec![None, h]),
        ("evictions.told", vec![None]),
        ("evictions.positions", vec![None]),
    ]
}

/// The lists of a snapshot, in the order of [`shapes`].
pub(super) fn lists(snapshot: &Snapshot, layers: usize, heads: usize) -> Vec<List> {
    let Snapshot { sequences, evictions, .. } = snapshot;
    let all = || sequences.iter().flat_map(|sequence| &sequence.heads);
    let word = |count: usize| count as u32;
    let words: [Vec<u32>; 15] = [
        sequences.iter().map(|s| s.seen).collect(),
        sequences.iter().map(|s| s.origin).collect(),
        sequences.iter().flat_map(|s| s.finished.iter().map(|f| u32::from(*f))).collect(),
        sequences.iter().flat_map(|s| s.evictions.iter().map(|e| e.unwrap_or(NONE))).collect(),
        all().map(|head| head.rows).collect(),
        all().map(|head| head.prompt).collect(),
        all().map(|head| head.sink.unwrap_or(NONE)).collect(),
        all().map(|head| word(head.packed.len())).collect(),
        all().map(|head| word(head.tail.len())).collect(),
        all().flat_map(|head| head.packed.iter().copied()).collect(),
        all().flat_map(|head| head.tail.iter().copied()).collect(),
        evictions.iter().map(|e| e.tokens).collect(),
        evictions.iter().flat_map(|e| e.counts.iter().copied()).collect(),
        evictions.iter().map(|e| u32::from(e.positions.is_some())).collect(),
        evictions.iter().flat_map(|e| e.positions.iter().flatten().copied()).collect(),
    ];
    let list = |((name, shape), words): ((&'static str, Vec<Option<usize>>), Vec<u32>)| {
        let inner: usize = shape[1..].iter().flatten().product();
        let shape = shape.iter().map(|n| n.unwrap_or(words.len() / inner)).collect();
        List { name, shape, words }
    };
    shapes(layers, heads).into_iter().zip(words).map(list).collect()
}

/// The words of one list, taken from the front.
struct Words {
    name: &'static str,
    words: std::vec::IntoIter<u32>,
}

impl Words {
    fn take(&mut self, count: usize) -> Result<Vec<u32>> {
        if count > self.words.len() {
            let reason = format!("{} ends before the counts do", self.name);
            return Err(refuse(reason));
        }
        Ok(self.words.by_ref().take(count).collect())
    }

    fn next(&mut self) -> Result<u32> {
        self.take(1).map(|word| word[0])
    }

    fn flag(&mut self) -> Result<bool> {
        match self.next()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(refuse(format!("{} holds {other}, expected 0 or 1", self.name))),
        }
    }

    fn option(&mut self) -> Result<Option<u32>> {
        self.next().map(|word| (word != NONE).then_some(word))
    }
}

/// The snapshot of lists that came in the order of [`shapes`]. What it says is yet to be checked by
/// the pool that it is meant for.
pub(super) fn snapshot(
    lists: Vec<List>,
    pages: Vec<[u32; 3]>,
    layers: usize,
    heads: usize,
) -> Result<Snapshot> {
    let count = |name: &str| lists.iter().find(|list| list.name == name).map_or(0, |l| l.shape[0]);
    let (sequences, evictions) = (count("sequences.seen"), count("evictions.tokens"));
    let words = |list: List| Words { name: list.name, words: list.words.into_iter() };
    let mut all: Vec<Words> = lists.into_iter().map(words).collect();
    let [
        seen,
        origin,
        finished,
        evicted,
        rows,
        prompt,
        sink,
        packed,
        tail,
        packed_pages,
        tail_pages,
        tokens,
        counts,
        told,
        positions,
    ] = &mut all[..]
    else {
        return Err(refuse("tables are missing"));
    };
    let mut snapshot = Snapshot { pages, ..Snapshot::default() };
    for _ in 0..evictions {
        let (tokens, counts) = (tokens.next()?, counts.take(heads)?);
        let total = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count as usize));
        let positions = match told.flag()? {
            true => Some(positions.take(total.unwrap_or(usize::MAX))?),
            false => None,
        };
        snapshot.evictions.push(Eviction { tokens, counts, positions });
    }
    for _ in 0..sequences {
        let mut saved = SavedSequence {
            seen: seen.next()?,
            origin: origin.next()?,
            finished: (0..layers).map(|_| finished.flag()).collect::<Result<_>>()?,
            evictions: (0..layers).map(|_| evicted.option()).collect::<Result<_>>()?,
            heads: Vec::new(),
        };
        for _ in 0..layers * heads {
            saved.heads.push(SavedHead {
                rows: rows.next()?,
                prompt: prompt.next()?,
                sink: sink.option()?,
                packed: packed_pages.take(packed.next()? as usize)?,
                tail: tail_pages.take(tail.next()? as usize)?,
            });
        }
        snapshot.sequences.push(saved);
    }
    match all.iter().find(|words| words.words.len() > 0) {
        Some(words) => {
            let (count, name) = (words.words.len(), shown(words.name));
            Err(refuse(format!("{name} holds {count} words more than the counts say")))
        }
        None => Ok(snapshot),
    }
}
