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
use crate::layout::{MAX_CHUNK, MIN_CHUNK, PageLayout};
use crate::shape::Dtype;

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

/// What a cache holds, in tokens and bytes. The names are those of the peer's properties
/// (VeloxQuant-MLX, `NSNQuantKVCache`), so that scripts can read either.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// Tokens of each row.
    pub len: usize,
    /// Tokens of each row behind the frontier.
    pub quantized_tokens: usize,
    /// Bytes of the packed keys: codes, scales and means of all rows.
    pub compressed_key_bytes: u64,
    /// Bytes of the packed values.
    pub compressed_value_bytes: u64,
    /// Bytes of the raw rows, keys and values: sinks and tail.
    pub residual_fp16_bytes: u64,
    /// Bytes that the keys would take as f16.
    pub fp16_key_bytes: u64,
    /// Bytes that the values would take as f16.
    pub fp16_value_bytes: u64,
    /// Bits per element of what is packed, scales and means included; 16 when nothing is.
    pub assigned_avg_bits: f64,
    /// Bytes allocated for rows and pages by this cache and all its forks, shared ones once.
    pub device_bytes: u64,
}

impl Counters {
    /// The counters of a cache of `rows` rows; `raw_bytes` are those of one raw element.
    pub fn new(
        frontier: &Frontier,
        rows: usize,
        keys: &PageLayout,
        values: &PageLayout,
        raw_bytes: usize,
        device_bytes: u64,
    ) -> Self {
        let pages = (rows * frontier.chunks()) as u64;
        let width = (keys.head_dim() + values.head_dim()) as u64;
        let elements = |tokens: usize, channels: usize| (rows * tokens * channels) as u64;
        let compressed = |layout: &PageLayout| pages * layout.data_bytes() as u64;
        let (key_bytes, value_bytes) = (compressed(keys), compressed(values));
        let packed = (rows * frontier.packed()) as u64 * width;
        Self {
            len: frontier.len(),
            quantized_tokens: frontier.packed(),
            compressed_key_bytes: key_bytes,
            compressed_value_bytes: value_bytes,
            residual_fp16_bytes: (rows * frontier.raw() * raw_bytes) as u64 * width,
            fp16_key_bytes: 2 * elements(frontier.len(), keys.head_dim()),
            fp16_value_bytes: 2 * elements(frontier.len(), values.head_dim()),
            assigned_avg_bits: if packed == 0 {
                16.0
            } else {
                (8 * (key_bytes + value_bytes)) as f64 / packed as f64
            },
            device_bytes,
        }
    }
}

/// A copy of token rows from one dense tensor `[rows, from_tokens, head_dim]` into another
/// `[rows, to_tokens, head_dim]`: the same span of every row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Rows of both tensors.
    pub rows: usize,
    /// Channels of a token, an even number.
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
    /// [`Error::OutOfRange`].
    pub fn check(&self) -> Result<()> {
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
            check_count(argument, &[self.rows, tokens, self.head_dim])?;
        }
        Ok(())
    }

    /// Words of a token row of the result.
    pub fn to_words(&self) -> usize {
        self.head_dim * self.to_dtype.bytes() / 4
    }
}

/// Checks that a product of sizes fits 32 bits, by which shaders count.
///
/// # Errors
/// [`Error::OutOfRange`].
pub fn check_count(argument: &'static str, factors: &[usize]) -> Result<usize> {
    let product = factors.iter().try_fold(1u64, |product, &f| product.checked_mul(f as u64));
    let max = u64::from(u32::MAX);
    match product {
        Some(count) if count <= max => Ok(count as usize),
        _ => Err(Error::OutOfRange { argument, got: product.unwrap_or(u64::MAX), min: 0, max }),
    }
}
