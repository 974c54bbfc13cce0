//! What steps take on the device beside the cache, by the bytes of the buffers that they make. Nothing
//! runs: the device accepts work and does none of it.

use wgkv::attention::PagedAttend;
use wgkv::attention::gpu::DeviceQueries;
use wgkv::cache::gpu::{IncomingRows, PagedCache};
use wgkv::cache::pool::{Keep, Operation, Part, PoolConfig};
use wgkv::gpu::{Context, ContextDescriptor, Recorder, Slice};
use wgkv::layout::Preset;
use wgkv::nsnquant::Codebook;
use wgkv::shape::Dtype;
use wgkv::wgpu;

const HEADS: usize = 8;
const DIM: usize = 128;
const GROUP: usize = 4;
const TOKENS: u32 = 16_384;

fn idle() -> (wgpu::Device, wgpu::Queue) {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::NOOP;
    descriptor.backend_options.noop.enable = true;
    let instance = wgpu::Instance::new(descriptor);
    let adapter = pollster::block_on(instance.request_adapter(&Default::default()))
        .expect("the adapter that does nothing");
    let limits = wgpu::Limits {
        max_buffer_size: 1 << 30,
        max_storage_buffer_binding_size: 1 << 30,
        ..Default::default()
    };
    let descriptor = wgpu::DeviceDescriptor { required_limits: limits, ..Default::default() };
    pollster::block_on(adapter.request_device(&descriptor)).expect("its device")
}

/// Bytes that a recording makes beside slabs.
fn made(
    cache: &PagedCache,
    context: &Context,
    record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<()>,
) -> u64 {
    let before = context.made_bytes() - cache.device_bytes();
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    record(&mut recorder).expect("a recording");
    recorder.finish().expect("a recording");
    context.made_bytes() - cache.device_bytes() - before
}

#[test]
fn steps_take_at_most_a_fiftieth_of_the_f16_cache_beside_the_pages() {
    let (device, queue) = idle();
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).expect("a context");
    let config = PoolConfig::new(&Preset::default(), 1, HEADS, [DIM; 2], 1 << 30).expect("a pool");
    let mut cache = PagedCache::new(&context, config, Codebook::builtin()).expect("a cache");
    let row = (HEADS * DIM * 2) as u64;
    let prompt = context.create("prompt", row * u64::from(TOKENS)).expect("a buffer");
    let token = context.create("token", row).expect("a buffer");
    let asked = context.create("queries", row * GROUP as u64).expect("a buffer");
    let rows =
        |data| IncomingRows { keys: Slice::all(data), values: Slice::all(data), dtype: Dtype::F16 };
    let sequence = cache.begin();
    let mut batch = cache.batch(&[sequence]).expect("a batch");
    let f16_bytes = 2 * row * u64::from(TOKENS);
    let room = f16_bytes / 50;

    let parts = [Part { sequence, tokens: TOKENS }];
    let step = cache.step(&Operation::Prefill { parts: &parts }).expect("a step");
    let written = made(&cache, &context, |rec| cache.record(rec, &step, 0, Some(rows(&prompt))));
    let finish = Operation::Finish { sequence, layers: 0..1, keep: Keep::All };
    let step = cache.step(&finish).expect("a step");
    let packed = made(&cache, &context, |rec| cache.record_all(rec, &step));
    assert!(written <= room && packed <= room, "{written}, {packed} of {f16_bytes}");

    let queries = DeviceQueries {
        data: Slice::all(&asked),
        dtype: Dtype::F16,
        batch: 1,
        heads: HEADS * GROUP,
        tokens: 1,
        head_dim: DIM,
    };
    let parts = [Part { sequence, tokens: 1 }];
    // The lists of a step are uploaded when it is planned.
    let mut most = [0, 0];
    for _ in 0..2 * Preset::default().chunk {
        let before = cache.pool().frontier(sequence, 0, 0).expect("a head");
        let own = context.made_bytes() - cache.device_bytes();
        let step = cache.step(&Operation::Append { parts: &parts, flush: true }).expect("a step");
        let planned = context.made_bytes() - cache.device_bytes() - own;
        let taken = made(&cache, &context, |rec| {
            cache.record(rec, &step, 0, Some(rows(&token)))?;
            cache.attend(rec, &mut batch, 0, &queries, &PagedAttend::default()).map(drop)
        });
        let flushed = cache.pool().frontier(sequence, 0, 0).expect("a head") > before;
        let most = &mut most[usize::from(flushed)];
        *most = (planned + taken).max(*most);
    }
    assert!(most.iter().all(|bytes| (1..=room).contains(bytes)), "{most:?} of {f16_bytes}");
}
