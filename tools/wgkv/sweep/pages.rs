//! Attention on the pages of a pool that were filled as an engine fills them: a prompt of each
//! sequence, finished, and one query token of all.

use half::f16;
use wgkv::attention::gpu::{DeviceAttended, DeviceQueries};
use wgkv::cache::pool::{Keep, Operation, Part, PoolConfig};
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
    keys: Vec<f16>,
    values: Vec<f16>,
    tokens: u32,
    /// Rows of each head that stay, and their positions; none where all stay.
    kept: Option<(Vec<u32>, Vec<u32>)>,
}

/// The prompts of the sequences, as long as their longest heads: tokens come again where a head is
/// longer than the data.
fn prompts<'a>(data: &'a Data, case: &Case) -> impl Iterator<Item = Prompt> + use<'a> {
    let Shape { batch, heads, dim, tokens } = case.shape;
    let lengths = case.lengths();
    let ragged = case.ragged == Some(true);
    (0..batch).map(move |sequence| {
        let counts = &lengths[sequence * heads..(sequence + 1) * heads];
        let longest = counts.iter().copied().max().unwrap_or(0);
        let cycled = |from: &[f16]| {
            let rows = from[sequence * heads * tokens * dim..].chunks(tokens * dim).take(heads);
            rows.flat_map(|row| row.iter().cycle().take(longest * dim)).copied().collect()
        };
        let kept = ragged.then(|| {
            let positions = counts.iter().flat_map(|count| 0..*count as u32).collect();
            (counts.iter().map(|count| *count as u32).collect(), positions)
        });
        let (keys, values) = (cycled(&data.keys), cycled(&data.values));
        Prompt { keys, values, tokens: longest as u32, kept }
    })
}

/// Pages on a device, with all sequences in one batch.
pub struct DevicePages {
    cache: gpu::PagedCache,
    batch: gpu::Batch,
}

impl DevicePages {
    pub fn new(gpu: &Gpu, data: &Data, case: &Case) -> Result<Self, Fail> {
        let mut cache = gpu::PagedCache::new(&gpu.context, config(case)?, Codebook::builtin())?;
        let mut members = Vec::new();
        for prompt in prompts(data, case) {
            let sequence = cache.begin();
            members.push(sequence);
            let parts = [Part { sequence, tokens: prompt.tokens }];
            let step = cache.step(&Operation::Prefill { parts: &parts })?;
            let upload =
                |data: &[f16]| gpu.context.upload("sweep prompt", bytemuck::cast_slice(data));
            let (keys, values) = (upload(&prompt.keys)?, upload(&prompt.values)?);
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
        let mut members = Vec::new();
        for prompt in prompts(data, case) {
            let sequence = cache.begin();
            members.push(sequence);
            let parts = [Part { sequence, tokens: prompt.tokens }];
            let step = cache.step(&Operation::Prefill { parts: &parts })?;
            let [keys, values] = [&prompt.keys, &prompt.values].map(|data| Elements::F16(data));
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

    pub fn attend(&self, queries: &wgkv::attention::Queries<'_>) -> Result<Vec<f32>, Fail> {
        Ok(self.cache.attend(&self.batch, 0, queries, &Default::default())?.out)
    }
}
