//! Attention on the pages of a pool that were filled as an engine fills them: a prompt of each
//! sequence, finished, or a token of all sequences at a time; then one query token of all.

use half::f16;
use wgkv::attention::gpu::{DeviceAttended, DeviceQueries};
use wgkv::cache::pool::{Keep, Operation, Part, PoolConfig, SequenceId};
use wgkv::cache::{cpu, gpu};
use wgkv::gpu::{Recorder, Slice};
use wgkv::nsnquant::Codebook;
use wgkv::shape::{Dtype, Elements};

use super::case::{Case, Shape};
use super::data::Data;
use crate::engine::Gpu;
use crate::file::Fail;

/// Slabs that the f16 rows of a case would take.
const SLABS: u64 = 8;

fn config(case: &Case) -> Result<PoolConfig, Fail> {
    let Shape { heads, dim, .. } = case.shape;
    let rules = case.pages_of.ok_or_else(|| Fail::input("no bits"))?.rules;
    let mut config = PoolConfig::new(&rules, 1, heads, [dim; 2], 1 << 48)?;
    let f16_bytes = 4 * case.shape.elements() as u64;
    config.slab_bytes = config.slab_bytes.min((f16_bytes / SLABS).max(1 << 22));
    Ok(config)
}

/// What each sequence is given and keeps.
struct Prompt {
    shape: Shape,
    /// Number of the sequence.
    sequence: usize,
    tokens: u32,
    /// Rows of each head that stay, and their positions; none where all stay.
    kept: Option<(Vec<u32>, Vec<u32>)>,
}

impl Prompt {
    /// Its keys or values: tokens come again where a head is longer than the data.
    fn rows(&self, from: &[f16]) -> Vec<f16> {
        let Shape { heads, dim, tokens, .. } = self.shape;
        let longest = self.tokens as usize;
        let rows = from[self.sequence * heads * tokens * dim..].chunks(tokens * dim).take(heads);
        let mut to = Vec::with_capacity(heads * longest * dim);
        for (row, end) in rows.zip((1..).map(|rows| rows * longest * dim)) {
            while to.len() < end {
                to.extend_from_slice(&row[..row.len().min(end - to.len())]);
            }
        }
        to
    }
}

/// The prompts of the sequences, as long as their longest heads.
fn prompts(case: &Case) -> impl Iterator<Item = Prompt> + use<> {
    let Shape { batch, heads, .. } = case.shape;
    let (shape, lengths) = (case.shape, case.lengths());
    let ragged = case.ragged == Some(true);
    (0..batch).map(move |sequence| {
        let counts = &lengths[sequence * heads..(sequence + 1) * heads];
        let longest = counts.iter().copied().max().unwrap_or(0);
        let kept = ragged.then(|| {
            let positions = counts.iter().flat_map(|count| 0..*count as u32).collect();
            (counts.iter().map(|count| *count as u32).collect(), positions)
        });
        Prompt { shape, sequence, tokens: longest as u32, kept }
    })
}

/// Steps that a recording holds.
const STEPS: usize = 64;

/// Keys and values of every sequence's tokens in turn, `[tokens, batch, heads, dim]`, each token's rows
/// from a multiple of so many elements on.
struct Steps {
    keys: Vec<f16>,
    values: Vec<f16>,
    stride: usize,
    rows: usize,
}

impl Steps {
    fn new(data: &Data) -> Self {
        let Shape { dim, tokens, .. } = data.shape;
        let rows = data.shape.rows() * dim;
        // Slices begin at what any device binds.
        let stride = rows.next_multiple_of(128);
        let [keys, values] = [&data.keys, &data.values].map(|from| {
            let mut to = vec![f16::ZERO; tokens * stride];
            for (row, from) in from.chunks(tokens * dim).enumerate() {
                for (to, from) in to.chunks_mut(stride).zip(from.chunks(dim)) {
                    to[row * dim..(row + 1) * dim].copy_from_slice(from);
                }
            }
            to
        });
        Self { keys, values, stride, rows }
    }

    /// The elements of a token.
    fn of(&self, token: usize) -> std::ops::Range<usize> {
        token * self.stride..token * self.stride + self.rows
    }
}

fn one_each(members: &[SequenceId]) -> Vec<Part> {
    members.iter().map(|&sequence| Part { sequence, tokens: 1 }).collect()
}

/// Pages on a device, with all sequences in one batch.
pub struct DevicePages {
    cache: gpu::PagedCache,
    batch: gpu::Batch,
}

impl DevicePages {
    pub fn new(gpu: &Gpu, data: &Data, case: &Case) -> Result<Self, Fail> {
        let mut cache = gpu::PagedCache::new(&gpu.context, config(case)?, Codebook::builtin())?;
        if case.stepped == Some(true) {
            return Self::stepped(gpu, data, cache);
        }
        let mut members = Vec::new();
        for prompt in prompts(case) {
            let sequence = cache.begin();
            members.push(sequence);
            let parts = [Part { sequence, tokens: prompt.tokens }];
            let step = cache.step(&Operation::Prefill { parts: &parts })?;
            let upload = |data: &[f16]| {
                gpu.context.upload("sweep prompt", bytemuck::cast_slice(&prompt.rows(data)))
            };
            let (keys, values) = (upload(&data.keys)?, upload(&data.values)?);
            let (keys, values) = (Slice::all(&keys), Slice::all(&values));
            let rows = gpu::IncomingRows { keys, values, dtype: Dtype::F16 };
            gpu.run(|rec| cache.record(rec, &step, 0, Some(rows)).map(|()| vec![]))?;
            let (counts, positions) = prompt.kept.unzip();
            let keep = counts.as_deref().map_or(Keep::All, Keep::Counts);
            let step = cache.step(&Operation::Finish { sequence, layers: 0..1, keep })?;
            match positions {
                Some(positions) => {
                    let count = positions.len() as u32;
                    let words = bytemuck::cast_slice(&positions);
                    let kept = gpu.context.upload("sweep positions", words)?;
                    let kept = Slice::all(&kept);
                    gpu.run(|rec| cache.keep(rec, &step, 0, kept, count).map(|()| vec![]))?;
                }
                None => {
                    gpu.run(|rec| cache.record_all(rec, &step).map(|()| vec![]))?;
                }
            }
        }
        cache.shrink();
        let batch = cache.batch(&members)?;
        Ok(Self { cache, batch })
    }

    /// With all tokens added one at a time.
    fn stepped(gpu: &Gpu, data: &Data, mut cache: gpu::PagedCache) -> Result<Self, Fail> {
        let members: Vec<SequenceId> = (0..data.shape.batch).map(|_| cache.begin()).collect();
        let parts = one_each(&members);
        let steps = Steps::new(data);
        let upload = |data: &[f16]| gpu.context.upload("sweep tokens", bytemuck::cast_slice(data));
        let (keys, values) = (upload(&steps.keys)?, upload(&steps.values)?);
        for first in (0..data.shape.tokens).step_by(STEPS) {
            gpu.run(|rec| {
                for token in first..data.shape.tokens.min(first + STEPS) {
                    let step = cache.step(&Operation::Append { parts: &parts, flush: true })?;
                    let at = steps.of(token);
                    let (offset, size) = (2 * at.start as u64, 2 * at.len() as u64);
                    let [keys, values] =
                        [&keys, &values].map(|buffer| Slice { buffer, offset, size });
                    let rows = gpu::IncomingRows { keys, values, dtype: Dtype::F16 };
                    cache.record(rec, &step, 0, Some(rows))?;
                }
                Ok(vec![])
            })?;
        }
        cache.shrink();
        let batch = cache.batch(&members)?;
        Ok(Self { cache, batch })
    }

    pub fn attend(
        &mut self,
        rec: &mut Recorder<'_>,
        queries: &DeviceQueries<'_>,
    ) -> wgkv::Result<DeviceAttended> {
        self.cache.attend(rec, &mut self.batch, 0, queries, &Default::default())
    }
}

/// Pages in host memory, with all sequences in one batch.
pub struct HostPages {
    cache: cpu::PagedCache,
    batch: cpu::Batch,
}

impl HostPages {
    pub fn new(data: &Data, case: &Case) -> Result<Self, Fail> {
        let mut cache = cpu::PagedCache::new(config(case)?, Codebook::builtin())?;
        if case.stepped == Some(true) {
            return Self::stepped(data, cache);
        }
        let mut members = Vec::new();
        for prompt in prompts(case) {
            let sequence = cache.begin();
            members.push(sequence);
            let parts = [Part { sequence, tokens: prompt.tokens }];
            let step = cache.step(&Operation::Prefill { parts: &parts })?;
            let rows = [&data.keys, &data.values].map(|data| prompt.rows(data));
            let [keys, values] = [&rows[0], &rows[1]].map(|data| Elements::F16(data));
            cache.apply(&step, 0, Some(cpu::IncomingRows { keys, values }))?;
            let (counts, positions) = prompt.kept.unzip();
            let keep = counts.as_deref().map_or(Keep::All, Keep::Counts);
            let step = cache.step(&Operation::Finish { sequence, layers: 0..1, keep })?;
            match positions {
                Some(positions) => cache.keep(&step, 0, &positions)?,
                None => cache.apply_all(&step)?,
            }
        }
        cache.shrink();
        let batch = cache.batch(&members)?;
        Ok(Self { cache, batch })
    }

    fn stepped(data: &Data, mut cache: cpu::PagedCache) -> Result<Self, Fail> {
        let members: Vec<SequenceId> = (0..data.shape.batch).map(|_| cache.begin()).collect();
        let parts = one_each(&members);
        let steps = Steps::new(data);
        for token in 0..data.shape.tokens {
            let step = cache.step(&Operation::Append { parts: &parts, flush: true })?;
            let [keys, values] =
                [&steps.keys, &steps.values].map(|data| Elements::F16(&data[steps.of(token)]));
            cache.apply(&step, 0, Some(cpu::IncomingRows { keys, values }))?;
        }
        let batch = cache.batch(&members)?;
        Ok(Self { cache, batch })
    }

    pub fn attend(&self, queries: &wgkv::attention::Queries<'_>) -> Result<Vec<f32>, Fail> {
        Ok(self.cache.attend(&self.batch, 0, queries, &Default::default())?.out)
    }
}
