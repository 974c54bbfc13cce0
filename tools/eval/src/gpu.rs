//! The paged cache on a device.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use wgkv::attention::PagedAttend;
use wgkv::attention::gpu::DeviceQueries;
use wgkv::cache::gpu::{Batch, IncomingRows, PagedCache, Step};
use wgkv::cache::pool::{Operation, Pool, PoolConfig, SequenceId};
use wgkv::gpu::{Context, ContextDescriptor, Readback, Recorder, Slice};
use wgkv::nsnquant::Codebook;
use wgkv::shape::Dtype;
use wgkv::wgpu;

/// A device.
#[derive(Debug)]
pub struct Gpu {
    context: Context,
    name: String,
    fault: Arc<Mutex<Option<String>>>,
}

impl Gpu {
    /// Opens the first adapter whose name holds `name`, hardware before software.
    pub fn open(name: &str) -> Result<Self> {
        let instance = wgpu::Instance::new(
            wgpu::InstanceDescriptor {
                backends: wgpu::Backends::PRIMARY,
                ..wgpu::InstanceDescriptor::new_without_display_handle()
            }
            .with_env(),
        );
        let mut adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
        adapters.sort_by_key(|adapter| adapter.get_info().device_type == wgpu::DeviceType::Cpu);
        let of_name = |adapter: &&wgpu::Adapter| {
            adapter.get_info().name.to_lowercase().contains(&name.to_lowercase())
        };
        let adapter = adapters.iter().find(of_name);
        let adapter = adapter.with_context(|| format!("no GPU adapter named {name:?}"))?;
        let descriptor = wgpu::DeviceDescriptor {
            required_features: wgkv::gpu::required_features(),
            required_limits: wgkv::gpu::required_limits(&adapter.limits()),
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))?;
        let fault = Arc::new(Mutex::new(None));
        let first = fault.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| error.to_string());
        }));
        let context = Context::new(&device, &queue, &ContextDescriptor::default())?;
        Ok(Self { context, name: adapter.get_info().name, fault })
    }

    /// The adapter's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn run<T>(&self, record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<T>) -> Result<T> {
        let device = self.context.device();
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut recorder = Recorder::new(&self.context, &mut encoder);
        let value = record(&mut recorder)?;
        recorder.finish()?;
        self.context.queue().submit([encoder.finish()]);
        device.poll(wgpu::PollType::wait_indefinitely())?;
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        ensure!(fault.is_none(), "the GPU refused the work: {}", fault.unwrap_or_default());
        Ok(value)
    }
}

/// A paged cache on a device, which waits for every piece of work.
pub struct GpuCache {
    gpu: Arc<Gpu>,
    cache: PagedCache,
    /// What was uploaded for the layer before.
    batch: Option<Batch>,
}

impl GpuCache {
    /// An empty cache.
    pub fn new(gpu: Arc<Gpu>, config: PoolConfig, codebook: Arc<Codebook>) -> Result<Self> {
        let cache = PagedCache::new(&gpu.context, config, codebook)?;
        Ok(Self { gpu, cache, batch: None })
    }

    /// Begins a sequence.
    pub fn begin(&mut self) -> SequenceId {
        self.cache.begin()
    }

    /// The account.
    pub fn pool(&self) -> &Pool {
        self.cache.pool()
    }

    /// Plans an operation.
    pub fn step(&mut self, operation: &Operation<'_>) -> Result<Step> {
        Ok(self.cache.step(operation)?)
    }

    /// Writes the rows of one layer.
    pub fn write(&mut self, step: &Step, layer: usize, keys: &[f32], values: &[f32]) -> Result<()> {
        let context = &self.gpu.context;
        let keys = context.upload("keys", bytemuck::cast_slice(keys))?;
        let values = context.upload("values", bytemuck::cast_slice(values))?;
        let (keys, values, dtype) = (Slice::all(&keys), Slice::all(&values), Dtype::F32);
        self.gpu.run(|rec| {
            self.cache.record(rec, step, layer, Some(IncomingRows { keys, values, dtype }))
        })
    }

    /// Carries an eviction of one layer out.
    pub fn keep(&mut self, step: &Step, layer: usize, positions: &[u32]) -> Result<()> {
        let words = self.gpu.context.upload("positions", bytemuck::cast_slice(positions))?;
        let count = u32::try_from(positions.len())?;
        self.gpu.run(|rec| self.cache.keep(rec, step, layer, Slice::all(&words), count))
    }

    /// Carries a step without rows out.
    pub fn carry_out(&mut self, step: &Step) -> Result<()> {
        self.gpu.run(|rec| self.cache.record_all(rec, step))
    }

    /// Attention of the newest tokens in one layer.
    pub fn attend(
        &mut self,
        sequence: SequenceId,
        layer: usize,
        queries: &[f32],
        heads: usize,
        head_dim: usize,
        config: &PagedAttend<'_>,
    ) -> Result<Vec<f32>> {
        let context = &self.gpu.context;
        let tokens = queries.len() / heads / head_dim;
        let queries = context.upload("queries", bytemuck::cast_slice(queries))?;
        let data = Slice::all(&queries);
        let queries = DeviceQueries { data, dtype: Dtype::F32, batch: 1, heads, tokens, head_dim };
        let mut batch = match self.batch.take() {
            Some(batch) if batch.members() == [sequence] => batch,
            _ => self.cache.batch(&[sequence])?,
        };
        let out: Readback = self.gpu.run(|rec| {
            let attended = self.cache.attend(rec, &mut batch, layer, &queries, config)?;
            rec.read_back(Slice::all(&attended.out))
        })?;
        self.batch = Some(batch);
        Ok(bytemuck::pod_collect_to_vec(&pollster::block_on(out)?))
    }
}
