//! The cache of a sequence, or of a batch of equally long ones, through prompt and decoding.

use half::{bf16, f16};

use super::evict::{Kept, keep};
use super::score::score_rows;
use crate::error::{Error, Result};
use crate::nestedkv::config::EvictConfig;
use crate::nestedkv::plan::{check_pair, check_state};
use crate::primitives::cpu::gather::gather;
use crate::primitives::parallel;
use crate::shape::{Dtype, Elements, Tensor, check_count};

/// Elements of one row, in the type they came in.
#[derive(Clone, Debug, PartialEq)]
enum Owned {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Owned {
    fn new(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(Vec::new()),
            Dtype::F16 => Self::F16(Vec::new()),
            Dtype::Bf16 => Self::Bf16(Vec::new()),
        }
    }

    fn view(&self) -> Elements<'_> {
        match self {
            Self::F32(x) => Elements::F32(x),
            Self::F16(x) => Elements::F16(x),
            Self::Bf16(x) => Elements::Bf16(x),
        }
    }

    /// Appends elements of the same type; others are left out, the caller has compared the types.
    fn extend(&mut self, from: Elements<'_>) {
        match (self, from) {
            (Self::F32(to), Elements::F32(x)) => to.extend_from_slice(x),
            (Self::F16(to), Elements::F16(x)) => to.extend_from_slice(x),
            (Self::Bf16(to), Elements::Bf16(x)) => to.extend_from_slice(x),
            _ => {}
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Self::F32(x) => x.truncate(len),
            Self::F16(x) => x.truncate(len),
            Self::Bf16(x) => x.truncate(len),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    keys: Owned,
    values: Owned,
    positions: Vec<u32>,
}

/// What one row of a [`NestedKvState`] holds.
#[derive(Clone, Copy, Debug)]
pub struct KvRows<'a> {
    /// `[positions.len(), key_dim]`: f16 once the prompt is finished, before that as it came.
    pub keys: Elements<'a>,
    /// `[positions.len(), value_dim]`.
    pub values: Elements<'a>,
    /// Position of each held token, ascending.
    pub positions: &'a [u32],
}

/// The NestedKV cache of `rows` heads: the prompt is gathered raw, in chunks of any size, evicted
/// once when it is declared finished, and decoded tokens are appended unscored, never evicted. Every
/// held token keeps its position.
#[derive(Clone, Debug, PartialEq)]
pub struct NestedKvState {
    config: EvictConfig,
    key_dim: usize,
    value_dim: usize,
    tokens: u32,
    finished: bool,
    rows: Vec<Row>,
}

impl NestedKvState {
    /// An empty cache of `rows` heads.
    ///
    /// # Errors
    /// As [`EvictConfig::validate`]; [`Error::Empty`] for no rows; [`Error::HeadDim`];
    /// [`Error::OutOfRange`] for more than [`MAX_ROWS`](crate::nestedkv::plan::MAX_ROWS) rows and for a budget that leaves no room
    /// beside the sinks.
    pub fn new(rows: usize, key_dim: usize, value_dim: usize, config: EvictConfig) -> Result<Self> {
        check_state(rows, key_dim, value_dim, &config)?;
        let row = Row {
            keys: Owned::new(Dtype::F16),
            values: Owned::new(Dtype::F16),
            positions: Vec::new(),
        };
        Ok(Self { config, key_dim, value_dim, tokens: 0, finished: false, rows: vec![row; rows] })
    }

    /// A finished cache from what another held: `tokens` seen, and for each row its positions with
    /// their keys and values, row after row as [`Kept`] orders them.
    ///
    /// # Errors
    /// As [`Self::new`]; [`Error::Length`] and [`Error::Offsets`] for parts that do not fit together,
    /// positions that do not ascend or reach `tokens`.
    pub fn from_parts(
        config: EvictConfig,
        key_dim: usize,
        value_dim: usize,
        tokens: u32,
        kept: &Kept,
        keys: &[f16],
        values: &[f16],
    ) -> Result<Self> {
        let rows = kept.offsets.len().saturating_sub(1);
        let mut state = Self::new(rows, key_dim, value_dim, config)?;
        crate::shape::check_offsets("offsets", &kept.offsets, rows, kept.positions.len())?;
        let lengths = [("keys", keys.len(), key_dim), ("values", values.len(), value_dim)];
        for (argument, got, dim) in lengths {
            let expected = kept.positions.len() * dim;
            if got != expected {
                return Err(Error::Length { argument, got, expected });
            }
        }
        for (index, row) in state.rows.iter_mut().enumerate() {
            let positions = kept.row(index);
            let ascending = positions.windows(2).all(|w| w[0] < w[1]);
            if !ascending || positions.last().is_some_and(|&last| last >= tokens) {
                return Err(Error::Offsets {
                    argument: "positions",
                    index: kept.offsets[index] as usize,
                    got: u64::from(*positions.last().unwrap_or(&0)),
                    expected: "ascending positions below the tokens seen",
                });
            }
            let range = kept.offsets[index] as usize..kept.offsets[index + 1] as usize;
            let part = |dim: usize| range.start * dim..range.end * dim;
            row.keys.extend(Elements::F16(&keys[part(key_dim)]));
            row.values.extend(Elements::F16(&values[part(value_dim)]));
            row.positions.extend_from_slice(positions);
        }
        state.tokens = tokens;
        state.finished = true;
        Ok(state)
    }

    /// Appends a part of the prompt, raw. The result does not depend on how the prompt is cut.
    ///
    /// # Errors
    /// [`Error::Finished`] after [`Self::finish_prefill`]; [`Error::Mismatch`] for another shape or
    /// for elements of another type than the part before; [`Error::OutOfRange`] beyond `u32::MAX`
    /// tokens.
    pub fn append_prefill(&mut self, keys: &Tensor<'_>, values: &Tensor<'_>) -> Result<()> {
        if self.finished {
            return Err(Error::Finished { argument: "prompt" });
        }
        self.check(keys, values)?;
        if self.tokens > 0 {
            let pairs = [
                ("type of the keys", keys.data().dtype(), self.rows[0].keys.view().dtype()),
                ("type of the values", values.data().dtype(), self.rows[0].values.view().dtype()),
            ];
            for (argument, got, expected) in pairs {
                if got != expected {
                    return Err(Error::Mismatch {
                        argument,
                        got: got.code() as usize,
                        expected: expected.code() as usize,
                        reference: "the prompt so far",
                    });
                }
            }
        } else {
            for row in &mut self.rows {
                row.keys = Owned::new(keys.data().dtype());
                row.values = Owned::new(values.data().dtype());
            }
        }
        self.append(keys.data(), values.data(), keys.tokens());
        Ok(())
    }

    /// Declares the prompt finished: scores all of it, evicts once (arXiv 2605.26678, appendix A), and
    /// holds what stays as f16.
    /// Does nothing for a prompt of no tokens or one already finished.
    ///
    /// # Errors
    /// [`Error::BeyondF16`] when a token that stays does not fit f16. The cache is then unchanged.
    pub fn finish_prefill(&mut self) -> Result<()> {
        if self.finished || self.tokens == 0 {
            return Ok(());
        }
        let tokens = self.tokens as usize;
        let keys: Vec<_> = self.rows.iter().map(|row| row.keys.view()).collect();
        let scores = score_rows(&keys, tokens, self.key_dim, &self.config.score)?;
        let kept = keep(&scores.score, self.rows.len(), tokens, &self.config)?;
        let (key_dim, value_dim) = (self.key_dim, self.value_dim);
        let tasks: Vec<_> = self.rows.iter().enumerate().collect();
        let rows = parallel::map(tasks, |(index, row)| -> Result<Row> {
            let positions = kept.row(index);
            let offsets = [0, positions.len() as u32];
            let keys = Tensor::new("keys", row.keys.view(), 1, tokens, key_dim)?;
            let values = Tensor::new("values", row.values.view(), 1, tokens, value_dim)?;
            Ok(Row {
                keys: Owned::F16(gather("keys", &keys, &offsets, positions)?),
                values: Owned::F16(gather("values", &values, &offsets, positions)?),
                positions: positions.to_vec(),
            })
        });
        self.rows = rows.into_iter().collect::<Result<_>>()?;
        self.finished = true;
        Ok(())
    }

    /// Appends decoded tokens, unscored, as f16. On an unfinished prompt this finishes it first.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for another shape; [`Error::BeyondF16`]; [`Error::OutOfRange`] beyond
    /// `u32::MAX` tokens, or as many token rows at once. The tokens are then not appended.
    pub fn append_decode(&mut self, keys: &Tensor<'_>, values: &Tensor<'_>) -> Result<()> {
        self.check(keys, values)?;
        check_count("token rows", &[keys.rows(), keys.tokens()])?;
        let halves = |argument, data: &Tensor<'_>| {
            let tokens = data.tokens() as u32;
            let offsets: Vec<u32> = (0..=data.rows() as u32).map(|row| row * tokens).collect();
            let positions: Vec<u32> = (0..data.rows()).flat_map(|_| 0..tokens).collect();
            gather(argument, data, &offsets, &positions)
        };
        let new_keys = halves("keys", keys)?;
        let new_values = halves("values", values)?;
        self.finish_prefill()?;
        self.finished = true;
        self.append(Elements::F16(&new_keys), Elements::F16(&new_values), keys.tokens());
        Ok(())
    }

    /// Drops the last `count` positions: each row loses the tokens that it holds there. A cache
    /// trimmed to nothing takes a new prompt.
    ///
    /// # Errors
    /// [`Error::TrimTooLong`] for more than were seen; nothing is dropped then.
    pub fn trim(&mut self, count: usize) -> Result<()> {
        let held = self.tokens as usize;
        if count > held {
            return Err(Error::TrimTooLong { got: count, held });
        }
        self.tokens -= count as u32;
        self.finished &= self.tokens > 0;
        for row in &mut self.rows {
            let left = row.positions.partition_point(|&p| p < self.tokens);
            row.positions.truncate(left);
            row.keys.truncate(left * self.key_dim);
            row.values.truncate(left * self.value_dim);
        }
        Ok(())
    }

    /// What row `row` holds.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a row that is not there.
    pub fn get_kv(&self, row: usize) -> Result<KvRows<'_>> {
        let found = self.rows.get(row).ok_or(Error::OutOfRange {
            argument: "row",
            got: row as u64,
            min: 0,
            max: self.rows.len() as u64 - 1,
        })?;
        Ok(KvRows {
            keys: found.keys.view(),
            values: found.values.view(),
            positions: &found.positions,
        })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Whether the prompt has been evicted.
    pub fn compressed(&self) -> bool {
        self.finished
    }

    /// Tokens seen, trimmed ones not counted.
    pub fn tokens_seen(&self) -> u32 {
        self.tokens
    }

    /// Position that the next token will have.
    pub fn next_position(&self) -> u32 {
        self.tokens
    }

    /// Configuration of the cache.
    pub fn config(&self) -> &EvictConfig {
        &self.config
    }

    /// Bytes of the held keys and values as f16; positions not counted.
    pub fn fp16_bytes(&self) -> u64 {
        let held: u64 = self.rows.iter().map(|row| row.positions.len() as u64).sum();
        held * (self.key_dim + self.value_dim) as u64 * 2
    }

    /// Bytes that keys and values of all tokens seen would take as f16.
    pub fn full_fp16_bytes(&self) -> u64 {
        u64::from(self.tokens) * self.rows.len() as u64 * (self.key_dim + self.value_dim) as u64 * 2
    }

    fn check(&self, keys: &Tensor<'_>, values: &Tensor<'_>) -> Result<()> {
        check_pair(keys.rows(), keys.tokens(), values.rows(), values.tokens())?;
        let pairs = [
            ("rows of the keys", keys.rows(), self.rows.len()),
            ("head dimension of the keys", keys.head_dim(), self.key_dim),
            ("head dimension of the values", values.head_dim(), self.value_dim),
        ];
        for (argument, got, expected) in pairs {
            if got != expected {
                return Err(Error::Mismatch { argument, got, expected, reference: "the cache" });
            }
        }
        let tokens = self.tokens as u64 + keys.tokens() as u64;
        if tokens > u64::from(u32::MAX) {
            let max = u64::from(u32::MAX);
            return Err(Error::OutOfRange { argument: "tokens", got: tokens, min: 0, max });
        }
        Ok(())
    }

    fn append(&mut self, keys: Elements<'_>, values: Elements<'_>, tokens: usize) {
        let part = |row: usize, dim: usize| row * tokens * dim..(row + 1) * tokens * dim;
        let first = self.tokens;
        self.tokens += tokens as u32;
        for (index, row) in self.rows.iter_mut().enumerate() {
            row.keys.extend(keys.slice(part(index, self.key_dim)));
            row.values.extend(values.slice(part(index, self.value_dim)));
            row.positions.extend(first..self.tokens);
        }
    }
}

/// Bytes that keys and values of `tokens_seen` tokens of one head would take as f16.
pub fn full_fp16_bytes(tokens_seen: u64, head_dim: usize) -> u64 {
    tokens_seen.saturating_mul(head_dim as u64).saturating_mul(4)
}
