//! The cache of a sequence, or of a batch of equally long ones, through prompt and decoding, held on
//! the device.

use super::append::{self, Rows};
use super::evict::{DeviceEvicted, compress_prefill};
use crate::error::{Error, Result};
use crate::gpu::{Context, DeviceTensor, Recorder, Slice};
use crate::nestedkv::config::EvictConfig;
use crate::nestedkv::plan::{check_pair, check_state};
use crate::primitives::gpu::gather::{self, Gathered};
use crate::primitives::gpu::size;
use crate::shape::{Dtype, check_count};

/// What a [`NestedKvState`] holds: rows one after the other, row r being the token rows
/// `offsets[r]..offsets[r + 1]`.
#[derive(Clone, Debug)]
pub struct DeviceKv {
    /// `[held, key_dim]` of type `key_dtype`.
    pub keys: wgpu::Buffer,
    /// `[held, value_dim]` of type `value_dtype`.
    pub values: wgpu::Buffer,
    /// `[held]` u32: position of each token, ascending in each row.
    pub positions: wgpu::Buffer,
    /// Where each row begins and where the last ends, u32 `[rows + 1]`.
    pub offsets: wgpu::Buffer,
    /// f16 once the prompt is finished, before that as the prompt came.
    pub key_dtype: Dtype,
    /// As `key_dtype`, of the values.
    pub value_dtype: Dtype,
    /// Token rows of all rows together.
    pub held: u64,
}

/// Words to read back after tokens were appended: whether their values fitted f16 (see
/// [`gather::first_beyond`]).
#[derive(Clone, Debug)]
pub struct DeviceAppended {
    /// The new keys as f16, with the word.
    pub keys: Gathered,
    /// The new values as f16, with the word.
    pub values: Gathered,
    /// What finishing the prompt did, where the append did that first.
    pub evicted: Option<DeviceEvicted>,
}

/// The NestedKV cache of `rows` heads on a device: the twin of
/// [`crate::nestedkv::cpu::NestedKvState`]. Every call records into the caller's encoder and makes
/// new buffers, so what an earlier recording reads never changes under it; counts known to the host
/// move at once, so recordings are to be submitted in the order of the calls. A call that returns an
/// error has changed nothing here.
#[derive(Clone, Debug)]
pub struct NestedKvState {
    config: EvictConfig,
    rows: usize,
    key_dim: usize,
    value_dim: usize,
    tokens: u32,
    finished: bool,
    kv: DeviceKv,
}

impl NestedKvState {
    /// An empty cache of `rows` heads.
    ///
    /// # Errors
    /// As [`check_state`]; [`Error::DeviceLimit`].
    pub fn new(
        context: &Context,
        rows: usize,
        key_dim: usize,
        value_dim: usize,
        config: EvictConfig,
    ) -> Result<Self> {
        check_state(rows, key_dim, value_dim, &config)?;
        let offsets = context.upload("offsets", &vec![0; (rows + 1) * 4])?;
        let empty = context.create("no rows yet", 4)?;
        let kv = DeviceKv {
            keys: empty.clone(),
            values: empty.clone(),
            positions: empty,
            offsets,
            key_dtype: Dtype::F16,
            value_dtype: Dtype::F16,
            held: 0,
        };
        Ok(Self { config, rows, key_dim, value_dim, tokens: 0, finished: false, kv })
    }

    /// Records the append of a part of the prompt, raw. The result does not depend on how the prompt
    /// is cut.
    ///
    /// # Errors
    /// [`Error::Finished`] after [`Self::finish_prefill`]; [`Error::Mismatch`] for another shape;
    /// [`Error::Dtype`] for elements of another type than the part before; [`Error::OutOfRange`]
    /// beyond what 32 bits count; [`Error::DeviceLimit`].
    pub fn append_prefill(
        &mut self,
        rec: &mut Recorder<'_>,
        keys: &DeviceTensor<'_>,
        values: &DeviceTensor<'_>,
    ) -> Result<()> {
        if self.finished {
            return Err(Error::Finished { argument: "prompt" });
        }
        self.check(keys, values)?;
        if self.tokens > 0 {
            let pairs = [
                ("keys", keys.dtype(), self.kv.key_dtype),
                ("values", values.dtype(), self.kv.value_dtype),
            ];
            for (argument, got, expected) in pairs {
                if got != expected {
                    let (got, expected) = (got.name(), expected.name());
                    return Err(Error::Dtype { argument, got, expected });
                }
            }
        }
        let types = (keys.dtype(), values.dtype());
        let kv = self.joined(rec, &self.kv, keys.slice(), values.slice(), keys.tokens(), types)?;
        self.kv = kv;
        self.tokens += keys.tokens() as u32;
        Ok(())
    }

    /// Declares the prompt finished and records its scoring and its one eviction; what stays is held
    /// as f16. Read back the words `beyond` of the result to learn of values that did not fit. Does
    /// nothing for a prompt of no tokens or one already finished.
    ///
    /// # Errors
    /// As [`compress_prefill`].
    pub fn finish_prefill(&mut self, rec: &mut Recorder<'_>) -> Result<Option<DeviceEvicted>> {
        let Some((evicted, kv)) = self.evicted(rec)? else { return Ok(None) };
        self.kv = kv;
        self.finished = true;
        Ok(Some(evicted))
    }

    /// Records the append of decoded tokens, unscored, as f16. On an unfinished prompt this finishes
    /// it first.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for another shape; [`Error::OutOfRange`] beyond what 32 bits count;
    /// [`Error::DeviceLimit`].
    pub fn append_decode(
        &mut self,
        rec: &mut Recorder<'_>,
        keys: &DeviceTensor<'_>,
        values: &DeviceTensor<'_>,
    ) -> Result<DeviceAppended> {
        self.check(keys, values)?;
        let (evicted, kv) = match self.evicted(rec)? {
            Some((evicted, kv)) => (Some(evicted), kv),
            None => (None, self.kv.clone()),
        };
        let count = check_count("token rows", &[self.rows, keys.tokens()])?;
        let every: Vec<u32> = (0..count as u32).collect();
        let every = rec.context().upload("every token row", bytemuck::cast_slice(&every))?;
        let new_keys = gather::record(rec, keys, Slice::all(&every), count as u64)?;
        let new_values = gather::record(rec, values, Slice::all(&every), count as u64)?;
        let (key_rows, value_rows) = (Slice::all(&new_keys.rows), Slice::all(&new_values.rows));
        let types = (Dtype::F16, Dtype::F16);
        self.kv = self.joined(rec, &kv, key_rows, value_rows, keys.tokens(), types)?;
        self.finished = true;
        self.tokens += keys.tokens() as u32;
        Ok(DeviceAppended { keys: new_keys, values: new_values, evicted })
    }

    /// Keys and values that the rows hold, on the device.
    pub fn get_kv(&self) -> &DeviceKv {
        &self.kv
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether the prompt has been evicted.
    pub fn compressed(&self) -> bool {
        self.finished
    }

    /// Tokens seen by each row, evicted ones too.
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
        self.kv.held * (self.key_dim + self.value_dim) as u64 * 2
    }

    /// Bytes that keys and values of all tokens seen would take as f16.
    pub fn full_fp16_bytes(&self) -> u64 {
        u64::from(self.tokens) * self.rows as u64 * (self.key_dim + self.value_dim) as u64 * 2
    }

    /// The eviction of an unfinished prompt and what is held after it.
    fn evicted(&self, rec: &mut Recorder<'_>) -> Result<Option<(DeviceEvicted, DeviceKv)>> {
        if self.finished || self.tokens == 0 {
            return Ok(None);
        }
        let tokens = self.tokens as usize;
        let tensor = |argument, buffer, dtype, dim| {
            DeviceTensor::new(argument, Slice::all(buffer), dtype, self.rows, tokens, dim)
        };
        let keys = tensor("keys", &self.kv.keys, self.kv.key_dtype, self.key_dim)?;
        let values = tensor("values", &self.kv.values, self.kv.value_dtype, self.value_dim)?;
        let evicted = compress_prefill(rec, &keys, &values, &self.config)?;
        let kv = DeviceKv {
            keys: evicted.keys.rows.clone(),
            values: evicted.values.rows.clone(),
            positions: evicted.kept.positions.clone(),
            offsets: evicted.kept.offsets.clone(),
            key_dtype: Dtype::F16,
            value_dtype: Dtype::F16,
            held: evicted.kept.total,
        };
        Ok(Some((evicted, kv)))
    }

    /// What `kv` holds followed by `tokens` new tokens of each row.
    fn joined(
        &self,
        rec: &mut Recorder<'_>,
        kv: &DeviceKv,
        keys: Slice<'_>,
        values: Slice<'_>,
        tokens: usize,
        (key_dtype, value_dtype): (Dtype, Dtype),
    ) -> Result<DeviceKv> {
        let first = self.tokens;
        let last = first + size("tokens", tokens)?;
        let positions: Vec<u32> = (0..self.rows).flat_map(|_| first..last).collect();
        let positions = rec.context().upload("positions", bytemuck::cast_slice(&positions))?;
        let held_items = size("token rows", kv.held as usize)? as usize;
        let rows = Rows {
            held: Slice::all(&kv.positions),
            held_items,
            offsets: Slice::all(&kv.offsets),
            added: Slice::all(&positions),
            rows: self.rows,
            tokens,
            width: 1,
        };
        let joined = append::record(rec, &rows)?;
        let mut side = |held, added, dim: usize, dtype: Dtype| {
            let width = dim * dtype.bytes() / 4;
            append::record(rec, &Rows { held, added, width, ..rows })
        };
        let keys = side(Slice::all(&kv.keys), keys, self.key_dim, key_dtype)?;
        let values = side(Slice::all(&kv.values), values, self.value_dim, value_dtype)?;
        Ok(DeviceKv {
            keys: keys.items,
            values: values.items,
            positions: joined.items,
            offsets: joined.starts,
            key_dtype,
            value_dtype,
            held: kv.held + (self.rows * tokens) as u64,
        })
    }

    fn check(&self, keys: &DeviceTensor<'_>, values: &DeviceTensor<'_>) -> Result<()> {
        check_pair(keys.rows(), keys.tokens(), values.rows(), values.tokens())?;
        let pairs = [
            ("rows of the keys", keys.rows(), self.rows),
            ("head dimension of the keys", keys.head_dim(), self.key_dim),
            ("head dimension of the values", values.head_dim(), self.value_dim),
        ];
        for (argument, got, expected) in pairs {
            if got != expected {
                return Err(Error::Mismatch { argument, got, expected, reference: "the cache" });
            }
        }
        let tokens = u64::from(self.tokens) + keys.tokens() as u64;
        let max = u64::from(u32::MAX) / self.rows as u64;
        if tokens > max {
            return Err(Error::OutOfRange { argument: "tokens", got: tokens, min: 0, max });
        }
        Ok(())
    }
}
