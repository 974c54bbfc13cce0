//! The two paths of the paged cache behind one face.

use wgkv::Result;
use wgkv::attention::Queries;
use wgkv::attention::gpu::DeviceQueries;
use wgkv::cache::cpu as host;
use wgkv::cache::cpu::IncomingRows as HostIncoming;
use wgkv::cache::gpu as device;
use wgkv::cache::gpu::IncomingRows as DeviceIncoming;
use wgkv::cache::pool::{Operation, Pool, PoolConfig, SequenceId};
use wgkv::gpu::{Context, Recorder, Slice};
use wgkv::layout::pool::{PageClass, PageId};
use wgkv::nestedkv::EvictConfig;
use wgkv::nsnquant::Codebook;
use wgkv::shape::Dtype;

use crate::attend::Ask;
use crate::model::Data;

/// Keys and values of one layer as they come in.
#[derive(Clone, Debug)]
pub struct Incoming {
    pub keys: Data,
    pub values: Data,
}

/// Rows of a batch, `[members, heads, tokens, d]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetched {
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
    pub positions: Vec<u32>,
}

pub trait Twin {
    fn pool(&self) -> &Pool;
    /// Bytes of what is really allocated for slabs.
    fn allocated(&self) -> u64;
    fn begin(&mut self) -> SequenceId;
    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId>;
    fn free(&mut self, sequence: SequenceId) -> Result<()>;
    fn shrink(&mut self) -> Result<()>;
    /// A step with all its layers.
    fn step(&mut self, operation: &Operation<'_>, incoming: &[Incoming]) -> Result<()>;
    /// Decides what stays in one layer: counts and positions.
    fn evict(
        &mut self,
        sequence: SequenceId,
        layer: usize,
        config: &EvictConfig,
    ) -> Result<(Vec<u32>, Vec<u32>)>;
    /// Carries the last eviction out.
    fn finish_evicted(&mut self) -> Result<()>;
    fn told(&mut self, sequence: SequenceId, layer: usize, positions: &[u32]) -> Result<()>;
    fn fetch(
        &mut self,
        members: &[SequenceId],
        layer: usize,
        tokens: usize,
        dtype: Dtype,
    ) -> Result<Fetched>;
    /// Outputs and logs for queries `[members, heads, tokens, d]`.
    fn attend(
        &mut self,
        members: &[SequenceId],
        layer: usize,
        ask: &Ask,
        queries: &Data,
    ) -> Result<(Vec<f32>, Vec<f32>)>;
    /// Sequences as a file.
    fn save(&mut self, sequences: &[SequenceId]) -> Result<Vec<u8>>;
    /// The sequences of a file.
    fn load(&mut self, file: &[u8]) -> Result<Vec<SequenceId>>;
    /// Words of pages of a layer.
    fn pages(&mut self, layer: usize, pages: &[(PageClass, PageId)]) -> Vec<Vec<u32>>;
}

pub struct Host {
    pub cache: host::PagedCache,
    eviction: Option<host::Eviction>,
}

impl Host {
    pub fn new(config: &PoolConfig) -> Self {
        let cache = host::PagedCache::new(config.clone(), Codebook::builtin()).unwrap();
        Self { cache, eviction: None }
    }
}

impl Twin for Host {
    fn pool(&self) -> &Pool {
        self.cache.pool()
    }

    fn allocated(&self) -> u64 {
        self.cache.held_bytes()
    }

    fn begin(&mut self) -> SequenceId {
        self.cache.begin()
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        self.cache.fork(sequence)
    }

    fn free(&mut self, sequence: SequenceId) -> Result<()> {
        self.cache.free(sequence)
    }

    fn shrink(&mut self) -> Result<()> {
        self.cache.shrink();
        Ok(())
    }

    fn step(&mut self, operation: &Operation<'_>, incoming: &[Incoming]) -> Result<()> {
        let step = self.cache.step(operation)?;
        if step.source_rows() == 0 {
            return self.cache.apply_all(&step);
        }
        incoming.iter().enumerate().try_for_each(|(layer, rows)| {
            let (keys, values) = (rows.keys.elements(), rows.values.elements());
            self.cache.apply(&step, layer, Some(HostIncoming { keys, values }))
        })
    }

    fn evict(
        &mut self,
        sequence: SequenceId,
        layer: usize,
        config: &EvictConfig,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        let eviction = self.cache.evict(sequence, layer, config)?;
        let result = (eviction.counts(), eviction.kept.positions.clone());
        self.eviction = Some(eviction);
        Ok(result)
    }

    fn finish_evicted(&mut self) -> Result<()> {
        self.cache.finish(&self.eviction.take().unwrap())
    }

    fn told(&mut self, sequence: SequenceId, layer: usize, positions: &[u32]) -> Result<()> {
        self.cache.told(sequence, layer, positions)
    }

    fn fetch(
        &mut self,
        members: &[SequenceId],
        layer: usize,
        tokens: usize,
        dtype: Dtype,
    ) -> Result<Fetched> {
        let batch = self.cache.batch(members)?;
        let rows = self.cache.fetch(&batch, layer, tokens, dtype)?;
        let floats = |x: wgkv::shape::Elements<'_>| (0..x.len()).map(|i| x.get(i)).collect();
        let (keys, values) = (floats(rows.keys()), floats(rows.values()));
        Ok(Fetched { keys, values, positions: rows.positions })
    }

    fn attend(
        &mut self,
        members: &[SequenceId],
        layer: usize,
        ask: &Ask,
        queries: &Data,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let batch = self.cache.batch(members)?;
        let (data, tokens) = (queries.elements(), ask.tokens);
        let heads = self.cache.pool().config().heads * ask.group;
        let head_dim = self.cache.pool().layout().head_dims()[0];
        let queries = Queries { data, batch: members.len(), heads, tokens, head_dim };
        let attended = ask
            .with(members.len(), |settings| self.cache.attend(&batch, layer, &queries, settings))?;
        Ok((attended.out, attended.lse))
    }

    fn save(&mut self, sequences: &[SequenceId]) -> Result<Vec<u8>> {
        self.cache.save(sequences).map(|saved| saved.to_bytes())
    }

    fn load(&mut self, file: &[u8]) -> Result<Vec<SequenceId>> {
        self.cache.load(file)
    }

    fn pages(&mut self, layer: usize, pages: &[(PageClass, PageId)]) -> Vec<Vec<u32>> {
        let layout = self.cache.pool().layout();
        let words = |(class, page): &(PageClass, PageId)| {
            let slab = layout.slab_of(*class, *page) as usize;
            let slab = self.cache.slabs(*class, layer)[slab].as_ref().unwrap();
            slab[layout.word_of(*class, *page)..][..layout.words(*class)].to_vec()
        };
        pages.iter().map(words).collect()
    }
}

/// Records, submits and does not wait.
pub fn submit<T>(
    context: &Context,
    record: impl FnOnce(&mut Recorder<'_>) -> Result<T>,
) -> Result<T> {
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    let value = record(&mut recorder)?;
    recorder.finish()?;
    context.queue().submit([encoder.finish()]);
    Ok(value)
}

/// Waits for what was read back.
fn words<T: bytemuck::Pod>(context: &Context, readback: &mut wgkv::gpu::Readback) -> Vec<T> {
    let _ = context.device().poll(wgkv::wgpu::PollType::wait_indefinitely());
    bytemuck::pod_collect_to_vec(&pollster::block_on(readback).unwrap())
}

pub struct Device {
    pub context: Context,
    pub cache: device::PagedCache,
    eviction: Option<(device::Eviction, Vec<u32>)>,
}

impl Device {
    pub fn new(context: &Context, config: &PoolConfig) -> Self {
        let cache = device::PagedCache::new(context, config.clone(), Codebook::builtin()).unwrap();
        Self { context: context.clone(), cache, eviction: None }
    }

    fn upload(&self, data: &Data) -> wgkv::wgpu::Buffer {
        self.context.upload("rows", data.elements().bytes()).unwrap()
    }
}

impl Twin for Device {
    fn pool(&self) -> &Pool {
        self.cache.pool()
    }

    fn allocated(&self) -> u64 {
        self.cache.device_bytes()
    }

    fn begin(&mut self) -> SequenceId {
        self.cache.begin()
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        self.cache.fork(sequence)
    }

    fn free(&mut self, sequence: SequenceId) -> Result<()> {
        self.cache.free(sequence)
    }

    fn shrink(&mut self) -> Result<()> {
        self.cache.shrink();
        Ok(())
    }

    fn step(&mut self, operation: &Operation<'_>, incoming: &[Incoming]) -> Result<()> {
        let step = self.cache.step(operation)?;
        if step.source_rows() == 0 {
            return submit(&self.context, |rec| self.cache.record_all(rec, &step));
        }
        let buffers: Vec<_> = incoming
            .iter()
            .map(|rows| [self.upload(&rows.keys), self.upload(&rows.values)])
            .collect();
        submit(&self.context, |rec| {
            buffers.iter().enumerate().try_for_each(|(layer, [keys, values])| {
                let dtype = incoming[layer].keys.elements().dtype();
                let (keys, values) = (Slice::all(keys), Slice::all(values));
                self.cache.record(rec, &step, layer, Some(DeviceIncoming { keys, values, dtype }))
            })
        })
    }

    fn evict(
        &mut self,
        sequence: SequenceId,
        layer: usize,
        config: &EvictConfig,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        let mut eviction =
            submit(&self.context, |rec| self.cache.evict(rec, sequence, layer, config))?;
        let positions = words(&self.context, &mut eviction.positions);
        let counts = pollster::block_on(eviction.counts.get())?;
        self.eviction = Some((eviction, counts.clone()));
        Ok((counts, positions))
    }

    fn finish_evicted(&mut self) -> Result<()> {
        let (eviction, counts) = self.eviction.take().unwrap();
        let context = self.context.clone();
        submit(&context, |rec| self.cache.finish(rec, &eviction, &counts))
    }

    fn told(&mut self, sequence: SequenceId, layer: usize, positions: &[u32]) -> Result<()> {
        self.cache.told(sequence, layer, positions)
    }

    fn fetch(
        &mut self,
        members: &[SequenceId],
        layer: usize,
        tokens: usize,
        dtype: Dtype,
    ) -> Result<Fetched> {
        let mut batch = self.cache.batch(members)?;
        let rows = members.len() * self.cache.pool().config().heads * tokens;
        let dims = self.cache.pool().layout().head_dims();
        let create = |bytes: usize| self.context.create("fetched", bytes as u64);
        let [keys, values] = dims.map(|dim| create(rows * dim * dtype.bytes()).unwrap());
        let positions = create(4 * rows)?;
        let (mut keys, mut values, mut positions) = submit(&self.context, |rec| {
            let to = device::Fetch {
                keys: Slice::all(&keys),
                values: Slice::all(&values),
                positions: Some(Slice::all(&positions)),
                tokens,
                dtype,
            };
            self.cache.fetch(rec, &mut batch, layer, &to)?;
            Ok((
                rec.read_back(Slice::all(&keys))?,
                rec.read_back(Slice::all(&values))?,
                rec.read_back(Slice::all(&positions))?,
            ))
        })?;
        let floats = |bytes: Vec<u8>, dim: usize| {
            let mut floats = match dtype {
                Dtype::F32 => bytemuck::pod_collect_to_vec(&bytes),
                _ => {
                    Data::of_bits(dtype, &bytemuck::pod_collect_to_vec::<u8, u16>(&bytes)).floats()
                }
            };
            floats.truncate(rows * dim);
            floats
        };
        let keys = floats(words(&self.context, &mut keys), dims[0]);
        let values = floats(words(&self.context, &mut values), dims[1]);
        let mut positions: Vec<u32> = words(&self.context, &mut positions);
        positions.truncate(rows);
        Ok(Fetched { keys, values, positions })
    }

    fn attend(
        &mut self,
        members: &[SequenceId],
        layer: usize,
        ask: &Ask,
        queries: &Data,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let mut batch = self.cache.batch(members)?;
        let buffer = self.upload(queries);
        let (data, dtype) = (Slice::all(&buffer), queries.elements().dtype());
        let heads = self.cache.pool().config().heads * ask.group;
        let [head_dim, dim] = self.cache.pool().layout().head_dims();
        let (tokens, members) = (ask.tokens, members.len());
        let queries = DeviceQueries { data, dtype, batch: members, heads, tokens, head_dim };
        let (mut out, mut lse) = ask.with(members, |settings| {
            submit(&self.context, |rec| {
                let attended = self.cache.attend(rec, &mut batch, layer, &queries, settings)?;
                let out = rec.read_back(Slice::all(&attended.out))?;
                Ok((out, rec.read_back(Slice::all(&attended.lse))?))
            })
        })?;
        let (mut out, mut lse) = (words(&self.context, &mut out), words(&self.context, &mut lse));
        out.truncate(members * heads * tokens * dim);
        lse.truncate(members * heads * tokens);
        Ok((out, lse))
    }

    fn save(&mut self, sequences: &[SequenceId]) -> Result<Vec<u8>> {
        let saving = submit(&self.context, |rec| self.cache.save(rec, sequences))?;
        self.context.device().poll(wgkv::wgpu::PollType::wait_indefinitely()).unwrap();
        pollster::block_on(saving).map(|saved| saved.to_bytes())
    }

    fn load(&mut self, file: &[u8]) -> Result<Vec<SequenceId>> {
        let context = self.context.clone();
        submit(&context, |rec| self.cache.load(rec, file))
    }

    fn pages(&mut self, layer: usize, pages: &[(PageClass, PageId)]) -> Vec<Vec<u32>> {
        let layout = self.cache.pool().layout();
        let mut slabs = std::collections::HashMap::new();
        for (class, page) in pages {
            let slab = layout.slab_of(*class, *page);
            slabs.entry((*class, slab)).or_insert_with(|| {
                let buffer = self.cache.slabs(*class, layer)[slab as usize].as_ref().unwrap();
                submit(&self.context, |rec| rec.read_back(Slice::all(buffer))).unwrap()
            });
        }
        let slabs: std::collections::HashMap<(PageClass, u32), Vec<u32>> = slabs
            .into_iter()
            .map(|(slab, mut readback)| (slab, words(&self.context, &mut readback)))
            .collect();
        let words = |(class, page): &(PageClass, PageId)| {
            let slab = &slabs[&(*class, layout.slab_of(*class, *page))];
            slab[layout.word_of(*class, *page)..][..layout.words(*class)].to_vec()
        };
        pages.iter().map(words).collect()
    }
}
