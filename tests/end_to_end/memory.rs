//! What steps take on the device beside the cache, by the bytes of the buffers that they make. Nothing
//! runs: the device accepts work and does none of it.

use wgkv::attention::PagedAttend;
use wgkv::attention::gpu::DeviceQueries;
use wgkv::cache::gpu::{IncomingRows, PagedCache};
use wgkv::cache::pool::{Keep, Operation, Part, PoolConfig};
use wgkv::gpu::{Context, ContextDescriptor, Recorder, Slice};
use wgkv::layout::Preset;
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::nsnquant::Codebook;
use wgkv::shape::Dtype;
use wgkv::wgpu;

const HEADS: usize = 8;
const DIM: usize = 128;
const GROUP: usize = 4;
const TOKENS: u32 = 16_384;

pub fn idle() -> (wgpu::Device, wgpu::Queue) {
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

/// Layers of a usual model. Eviction works on a copy of a layer's keys, so it takes more than half of what
/// the layer takes as f16; a submission that evicts one layer of its sequences holds that of one layer.
const LAYERS: u64 = 32;
/// Prompts of a batch, down to the length from which the bins of the selections weigh little.
const PROMPTS: [u32; 3] = [TOKENS, 9000, 4096];

#[test]
fn evicting_layer_by_layer_takes_a_fiftieth_of_the_f16_cache_and_decoding_after_it_too() {
    let (device, queue) = idle();
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).expect("a context");
    let row = (HEADS * DIM * 2) as u64;
    let [prompt, token, asked] =
        [u64::from(TOKENS), PROMPTS.len() as u64, (GROUP * PROMPTS.len()) as u64]
            .map(|rows| context.create("rows", row * rows).expect("a buffer"));
    for (count, adaptive) in [(1, false), (3, true)] {
        // Two layers stand for all.
        let config = PoolConfig::new(&Preset::default(), 2, HEADS, [DIM; 2], 1 << 31);
        let config = config.expect("a pool");
        let mut cache = PagedCache::new(&context, config, Codebook::builtin()).expect("a cache");
        let own = |cache: &PagedCache| context.made_bytes() - cache.device_bytes();
        let data = Slice::all(&prompt);
        let rows = IncomingRows { keys: data, values: data, dtype: Dtype::F16 };
        let sequences: Vec<_> = PROMPTS[..count].iter().map(|n| (cache.begin(), *n)).collect();
        for &(sequence, tokens) in &sequences {
            let parts = [Part { sequence, tokens }];
            let step = cache.step(&Operation::Prefill { parts: &parts }).expect("a step");
            for layer in 0..2 {
                made(&cache, &context, |rec| cache.record(rec, &step, layer, Some(rows)));
            }
        }
        let total: u64 = PROMPTS[..count].iter().map(|tokens| 2 * row * u64::from(*tokens)).sum();
        for layer in 0..2 {
            let before = own(&cache);
            let mut encoder = device.create_command_encoder(&Default::default());
            let mut rec = Recorder::new(&context, &mut encoder);
            for &(sequence, tokens) in &sequences {
                let quarter = tokens / 4;
                let budget = match adaptive {
                    true => Budget::Adaptive { per_head: quarter, heads: HEADS },
                    false => Budget::Uniform(quarter),
                };
                let config = EvictConfig::new(budget);
                let evicted = cache.evict(&mut rec, sequence, layer, &config).expect("evicted");
                // Where counts are the kernels', any stand for them: long and short heads by turns.
                let uneven = |head| if head % 2 == 0 { quarter + 500 } else { quarter - 500 };
                let even = |_| quarter;
                let counts: Vec<u32> = match adaptive {
                    true => (0..HEADS).map(uneven).collect(),
                    false => (0..HEADS).map(even).collect(),
                };
                cache.finish(&mut rec, &evicted, &counts).expect("finished");
            }
            rec.finish().expect("a recording");
            let taken = own(&cache) - before;
            assert!(
                (total / 2..=LAYERS * total / 50).contains(&taken),
                "{taken} of {LAYERS} times {total} for {count} sequences"
            );
        }
        let members: Vec<_> = sequences.iter().map(|(sequence, _)| *sequence).collect();
        let parts: Vec<Part> =
            members.iter().map(|sequence| Part { sequence: *sequence, tokens: 1 }).collect();
        let queries = DeviceQueries {
            data: Slice { size: row * (GROUP * count) as u64, ..Slice::all(&asked) },
            dtype: Dtype::F16,
            batch: count,
            heads: HEADS * GROUP,
            tokens: 1,
            head_dim: DIM,
        };
        let data = Slice { size: row * count as u64, ..Slice::all(&token) };
        let rows = IncomingRows { keys: data, values: data, dtype: Dtype::F16 };
        let mut batch = cache.batch(&members).expect("a batch");
        for _ in 0..Preset::default().chunk + 2 {
            let before = own(&cache);
            let step = cache.step(&Operation::Append { parts: &parts, flush: true });
            let step = step.expect("a step");
            // Every layer makes its own; the largest counts.
            let planned = own(&cache) - before;
            let taken = made(&cache, &context, |rec| {
                cache.record(rec, &step, 0, Some(rows))?;
                cache.attend(rec, &mut batch, 0, &queries, &PagedAttend::default()).map(drop)
            });
            made(&cache, &context, |rec| cache.record(rec, &step, 1, Some(rows)));
            let most = total / 50;
            assert!((1..=most).contains(&(planned + taken)), "{planned}, {taken} of {total}");
        }
    }
}
