//! Where the frontier stands and what moves it: pure arithmetic, shared by both paths.
//!
//! The tokens of a row lie as `sinks` raw, then whole chunks packed, then a raw tail. The rules
//! (NSNQuant, arXiv 2505.18231, section 3.3, with two counts of ours):
//! * after an append, the packed tokens are `chunk * floor(max(0, len - sinks - recent) / chunk)`,
//!   or what they were before if that is more;
//! * a trim within the raw rows leaves the frontier where it is;
//! * a trim that reaches into a chunk snaps it to `chunk * floor(max(0, len - sinks) / chunk)`, and
//!   the rows of the broken chunk that remain come back raw, as they decode.
//!
//! So what is packed depends only on the tokens, never on how they were batched.

use core::ops::Range;

use crate::error::{Error, Result};
use crate::layout::{MAX_CHUNK, MIN_CHUNK};
use crate::shape::{Dtype, check_count};

/// Most tokens of `sinks` or of `recent`.
pub const MAX_RAW: usize = 1 << 24;

/// Length and frontier of the rows of one layer of one sequence batch; all rows move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frontier {
    chunk: usize,
    sinks: usize,
    recent: usize,
    len: usize,
    chunks: usize,
}

/// Chunks that an append completes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The new chunks, by number from the start of the row; empty when none is complete.
    pub chunks: Range<usize>,
}

/// What a trim takes away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// Chunks that go, by number.
    pub dropped: Range<usize>,
    /// Tokens at the start of chunk `dropped.start` that remain and come back raw; 0 when no chunk
    /// goes.
    pub tokens: usize,
    /// Raw rows that stay raw, counted from the first sink.
    pub kept: usize,
}

impl Frontier {
    /// An empty row.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a chunk that no page takes, and for `sinks` or `recent` beyond
    /// [`MAX_RAW`].
    pub fn new(chunk: usize, sinks: usize, recent: usize) -> Result<Self> {
        let within = |argument, got: usize, min: usize, max: usize| {
            let fault =
                Error::OutOfRange { argument, got: got as u64, min: min as u64, max: max as u64 };
            if (min..=max).contains(&got) { Ok(()) } else { Err(fault) }
        };
        within("chunk", chunk, MIN_CHUNK, MAX_CHUNK)?;
        within("sinks", sinks, 0, MAX_RAW)?;
        within("recent", recent, 0, MAX_RAW)?;
        Ok(Self { chunk, sinks, recent, len: 0, chunks: 0 })
    }

    /// Tokens of each row.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens of a chunk.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Chunks behind the frontier.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Tokens behind the frontier: whole chunks.
    pub fn packed(&self) -> usize {
        self.chunks * self.chunk
    }

    /// Tokens that are held raw: sinks and tail.
    pub fn raw(&self) -> usize {
        self.len - self.packed()
    }

    /// Sinks that are there.
    pub fn sinks(&self) -> usize {
        self.len.min(self.sinks)
    }

    /// Position of the first token of chunk `chunk`.
    pub fn chunk_start(&self, chunk: usize) -> usize {
        self.sinks + chunk * self.chunk
    }

    /// Position of the first token of the tail.
    pub fn tail_start(&self) -> usize {
        self.sinks() + self.packed()
    }

    /// Positions of the raw rows, in the order in which they are held.
    pub fn raw_positions(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.sinks()).chain(self.tail_start()..self.len)
    }

    /// Positions of the tokens of chunks of `rows` rows, chunk after chunk and in a chunk row after
    /// row.
    pub(super) fn chunk_positions(&self, chunks: Range<usize>, rows: usize) -> Vec<u32> {
        let of = |chunk: usize| {
            let first = self.chunk_start(chunk) as u32;
            (0..rows).flat_map(move |_| first..first + self.chunk() as u32)
        };
        chunks.flat_map(of).collect()
    }

    /// Adds `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when positions would no longer fit 32 bits; nothing has changed then.
    pub fn append(&mut self, tokens: usize) -> Result<Flush> {
        let max = u32::MAX as usize - self.len;
        if tokens > max {
            return Err(Error::OutOfRange {
                argument: "tokens",
                got: tokens as u64,
                min: 0,
                max: max as u64,
            });
        }
        let before = self.chunks;
        self.len += tokens;
        self.chunks = before.max(self.len.saturating_sub(self.sinks + self.recent) / self.chunk);
        Ok(Flush { chunks: before..self.chunks })
    }

    /// Drops the last `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::TrimTooLong`] when there are fewer; nothing has changed then.
    pub fn trim(&mut self, tokens: usize) -> Result<Restore> {
        let Some(len) = self.len.checked_sub(tokens) else {
            return Err(Error::TrimTooLong { got: tokens, held: self.len });
        };
        let before = self.chunks;
        if len >= self.sinks + self.packed() || before == 0 {
            self.len = len;
            return Ok(Restore { dropped: before..before, tokens: 0, kept: self.raw() });
        }
        let behind = len.saturating_sub(self.sinks);
        self.len = len;
        self.chunks = behind / self.chunk;
        Ok(Restore {
            dropped: self.chunks..before,
            tokens: behind % self.chunk,
            kept: self.sinks(),
        })
    }
}

/// A copy of token rows from one dense tensor `[rows, from_tokens, head_dim]` into another
/// `[rows, to_tokens, head_dim]`: the same span of every row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Rows of both tensors.
    pub rows: usize,
    /// Channels of a token; an even number, unless both types have 32 bits.
    pub head_dim: usize,
    /// Tokens copied from each row.
    pub tokens: usize,
    /// Tokens of each row of the source.
    pub from_tokens: usize,
    /// First token copied.
    pub from_first: usize,
    /// Element type of the source.
    pub from_dtype: Dtype,
    /// Tokens of each row of the result.
    pub to_tokens: usize,
    /// Where the first token goes.
    pub to_first: usize,
    /// Element type of the result.
    pub to_dtype: Dtype,
}

impl Move {
    /// Checks that the spans lie within the tensors and that shaders can count the words of both.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Parameter`] for an odd head dimension of a type of 16 bits.
    pub fn check(&self) -> Result<()> {
        // Shaders write whole words.
        let wide = self.from_dtype.bytes() == 4 && self.to_dtype.bytes() == 4;
        if !wide && !self.head_dim.is_multiple_of(2) {
            let (got, expected) = (self.head_dim as f64, "an even number");
            return Err(Error::Parameter { argument: "head_dim", got, expected });
        }
        let within = |argument, first: usize, tokens: usize| {
            let end = first.saturating_add(self.tokens);
            if end <= tokens {
                Ok(())
            } else {
                Err(Error::OutOfRange { argument, got: end as u64, min: 0, max: tokens as u64 })
            }
        };
        within("from_first + tokens", self.from_first, self.from_tokens)?;
        within("to_first + tokens", self.to_first, self.to_tokens)?;
        for (argument, tokens) in
            [("source elements", self.from_tokens), ("result elements", self.to_tokens)]
        {
            // A 0 among them does not excuse the others.
            check_count(argument, &[self.rows, tokens, self.head_dim].map(|n| n.max(1)))?;
        }
        Ok(())
    }

    /// Words of a token row of the result.
    pub fn to_words(&self) -> usize {
        self.head_dim * self.to_dtype.bytes() / 4
    }
}

/// A [`Move`] in tokens alone: what keys and values, of whatever width, have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) tokens: usize,
    pub(super) from_tokens: usize,
    pub(super) from_first: usize,
    pub(super) to_tokens: usize,
    pub(super) to_first: usize,
}

impl Span {
    /// The copy of this span in tensors of a shape.
    pub(super) fn of(
        self,
        rows: usize,
        head_dim: usize,
        from_dtype: Dtype,
        to_dtype: Dtype,
    ) -> Move {
        Move {
            rows,
            head_dim,
            tokens: self.tokens,
            from_tokens: self.from_tokens,
            from_first: self.from_first,
            from_dtype,
            to_tokens: self.to_tokens,
            to_first: self.to_first,
            to_dtype,
        }
    }
}

/// An append: the raw rows held and the new ones are joined, complete chunks are encoded from the
/// joined rows, what remains settles as the new raw rows.
#[derive(Clone, Debug)]
pub(super) struct Append {
    /// The frontier afterwards.
    pub(super) next: Frontier,
    /// Tokens of each joined row.
    pub(super) joined: usize,
    /// Raw rows to joined rows.
    pub(super) old: Span,
    /// New rows to joined rows.
    pub(super) new: Span,
    /// Joined rows to raw rows: the sinks.
    pub(super) sinks: Span,
    /// Joined rows to raw rows: the tail.
    pub(super) tail: Span,
    /// Chunks to encode.
    pub(super) flushed: usize,
    rows: usize,
    chunk: usize,
}

impl Append {
    pub(super) fn new(before: &Frontier, rows: usize, tokens: usize) -> Result<Self> {
        let mut next = *before;
        let flush = next.append(tokens)?;
        check_count("token rows", &[rows, next.len()])?;
        let flushed = flush.chunks.len();
        let held = before.raw();
        let joined = held + tokens;
        let span = |from_tokens, from_first, to_tokens, to_first, tokens| Span {
            tokens,
            from_tokens,
            from_first,
            to_tokens,
            to_first,
        };
        let (sinks, raw) = (next.sinks(), next.raw());
        Ok(Self {
            next,
            joined,
            old: span(held, 0, joined, 0, held),
            new: span(tokens, 0, joined, held, tokens),
            sinks: span(joined, 0, raw, 0, sinks),
            tail: span(joined, sinks + flushed * next.chunk(), raw, sinks, raw - sinks),
            flushed,
            rows,
            chunk: next.chunk(),
        })
    }

    /// The joined rows of each row's first chunk to encode.
    pub(super) fn first_chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (first, joined, chunk) = (self.next.sinks(), self.joined, self.chunk);
        (0..self.rows).map(move |row| row * joined + first..row * joined + first + chunk)
    }

    /// Positions of the joined rows, given the frontier before.
    pub(super) fn positions(&self, before: &Frontier) -> Vec<u32> {
        let fresh = before.len()..before.len() + self.joined - before.raw();
        let row: Vec<u32> = before.raw_positions().chain(fresh).map(|at| at as u32).collect();
        row.repeat(self.rows)
    }

    /// First joined row of each page to encode, chunk after chunk and in a chunk row after row.
    pub(super) fn starts(&self) -> Vec<u32> {
        let first = self.next.sinks();
        (0..self.flushed)
            .flat_map(|c| (0..self.rows).map(move |row| (c, row)))
            .map(|(c, row)| (row * self.joined + first + c * self.chunk) as u32)
            .collect()
    }
}

/// A trim: raw rows that stay, then rows that come back from a broken chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trim {
    /// The frontier afterwards.
    pub(super) next: Frontier,
    /// Raw rows to raw rows.
    pub(super) kept: Span,
    /// Decoded rows of chunk `next.chunks()` to raw rows.
    pub(super) restored: Span,
}

impl Trim {
    pub(super) fn new(before: &Frontier, tokens: usize) -> Result<Self> {
        let mut next = *before;
        let restore = next.trim(tokens)?;
        let kept = Span {
            tokens: restore.kept,
            from_tokens: before.raw(),
            from_first: 0,
            to_tokens: next.raw(),
            to_first: 0,
        };
        let restored = Span {
            tokens: restore.tokens,
            from_tokens: next.chunk(),
            from_first: 0,
            to_tokens: next.raw(),
            to_first: restore.kept,
        };
        Ok(Self { next, kept, restored })
    }
}

/// A fetch: sinks and tail are copied, chunks are decoded to their places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    /// Raw rows to fetched rows.
    pub(super) raw: [Span; 2],
    frontier: Frontier,
}

impl Fetch {
    pub(super) fn new(frontier: &Frontier) -> Self {
        let (sinks, raw) = (frontier.sinks(), frontier.raw());
        let span = |first, to_first, tokens| Span {
            tokens,
            from_tokens: raw,
            from_first: first,
            to_tokens: frontier.len(),
            to_first,
        };
        Self {
            raw: [span(0, 0, sinks), span(sinks, frontier.tail_start(), raw - sinks)],
            frontier: *frontier,
        }
    }

    /// Decoded rows of one chunk to fetched rows.
    pub(super) fn chunk(&self, chunk: usize) -> Span {
        Span {
            tokens: self.frontier.chunk(),
            from_tokens: self.frontier.chunk(),
            from_first: 0,
            to_tokens: self.frontier.len(),
            to_first: self.frontier.chunk_start(chunk),
        }
    }

    /// First fetched row of each page, chunk after chunk and in a chunk row after row.
    pub(super) fn starts(&self, rows: usize) -> Vec<u32> {
        (0..self.frontier.chunks())
            .flat_map(|c| (0..rows).map(move |row| (c, row)))
            .map(|(c, row)| (row * self.frontier.len() + self.frontier.chunk_start(c)) as u32)
            .collect()
    }
}

/// The row of each page, chunk after chunk and in a chunk row after row: the number of its key scale.
pub(super) fn rows_of_pages(chunks: usize, rows: usize) -> Vec<u32> {
    (0..chunks).flat_map(|_| 0..rows as u32).collect()
}

/// Where attention finds the tokens of each row once raw rows and pages lie row after row.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    /// First raw token of each row, and the number of all.
    pub(super) raw_offsets: Vec<u32>,
    /// Positions of the raw tokens.
    pub(super) raw_positions: Vec<u32>,
    /// First page of each row, and the number of all.
    pub(super) page_offsets: Vec<u32>,
    /// Positions of the packed tokens, page after page.
    pub(super) page_positions: Vec<u32>,
}

impl Tables {
    pub(super) fn new(frontier: &Frontier, rows: usize) -> Self {
        let offsets = |each: usize| (0..=rows).map(|row| (row * each) as u32).collect();
        let raw: Vec<u32> = frontier.raw_positions().map(|p| p as u32).collect();
        let start = frontier.chunk_start(0);
        let packed = start as u32..(start + frontier.packed()) as u32;
        Self {
            raw_offsets: offsets(frontier.raw()),
            raw_positions: raw.repeat(rows),
            page_offsets: offsets(frontier.chunks()),
            page_positions: (0..rows).flat_map(|_| packed.clone()).collect(),
        }
    }
}
