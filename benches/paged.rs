//! Decode steps of a batch in the paged cache, 8 KV heads of 128 channels at 2 bits, 32 query heads: steps that pack
//! nothing against steps in which every sequence packs a chunk. Prints medians and their ratio; the
//! sizes are smaller on a software adapter.

use std::time::{Duration, Instant};

use wgkv::attention::PagedAttend;
use wgkv::attention::gpu::DeviceQueries;
use wgkv::cache::gpu::{IncomingRows, PagedCache};
use wgkv::cache::pool::{Keep, Operation, Part, PoolConfig, SequenceId};
use wgkv::gpu::{Context, ContextDescriptor, Recorder, Slice};
use wgkv::layout::Bits;
use wgkv::nsnquant::Codebook;
use wgkv::shape::Dtype;
use wgkv::wgpu;

const HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const QUERY_HEADS: usize = 32;
const CHUNK: usize = 64;

struct Sizes {
    layers: usize,
    batch: usize,
    prompt: u32,
    chunks: usize,
}

/// A device of the default adapter and the sizes that it can do in a short time.
fn context() -> Option<(Context, Sizes)> {
    let instance = wgpu::Instance::new(
        wgpu::InstanceDescriptor {
            backends: wgpu::Backends::PRIMARY,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        }
        .with_env(),
    );
    let options = wgpu::RequestAdapterOptions {
        power_preference: wgpu::PowerPreference::HighPerformance,
        ..Default::default()
    };
    let adapter = pollster::block_on(instance.request_adapter(&options)).ok()?;
    let descriptor = wgpu::DeviceDescriptor {
        required_limits: wgkv::gpu::required_limits(&adapter.limits()),
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).ok()?;
    let info = adapter.get_info();
    println!("GPU: {}", info.name);
    let software = info.device_type == wgpu::DeviceType::Cpu;
    let sizes = if software {
        Sizes { layers: 1, batch: 2, prompt: 1024, chunks: 2 }
    } else {
        Sizes { layers: 16, batch: 16, prompt: 8192, chunks: 6 }
    };
    Some((Context::new(&device, &queue, &ContextDescriptor::default()).ok()?, sizes))
}

/// Records, submits and waits; returns what that took.
fn timed(
    context: &Context,
    record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<()>,
) -> Duration {
    let start = Instant::now();
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    record(&mut recorder).expect("a recording");
    recorder.finish().expect("a recording");
    context.queue().submit([encoder.finish()]);
    context.device().poll(wgpu::PollType::wait_indefinitely()).expect("the device polls");
    start.elapsed()
}

fn rows(context: &Context, rows: usize) -> wgpu::Buffer {
    let mut state = 1u64;
    let words = (0..rows * HEAD_DIM / 2).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Halves from 1 to 2 of either sign.
        ((state >> 32) as u32 & 0x83ff_83ff) | 0x3c00_3c00
    });
    let words: Vec<u32> = words.collect();
    context.upload("rows", bytemuck::cast_slice(&words)).expect("a buffer")
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn main() {
    let Some((context, sizes)) = context() else { return };
    let config = PoolConfig {
        key_scale: false,
        profile: wgkv::layout::Profile::Compat,
        rope: None,
        signs: None,
        layers: sizes.layers,
        heads: HEADS,
        head_dim_k: HEAD_DIM,
        head_dim_v: HEAD_DIM,
        bits: Some((Bits::Two, Bits::Two)),
        chunk: CHUNK,
        sinks: 4,
        recent: 16,
        raw: Dtype::F16,
        byte_budget: 1 << 36,
        slab_bytes: 1 << 27,
    };
    let mut cache = PagedCache::new(&context, config, Codebook::builtin()).expect("a cache");
    let sequences: Vec<SequenceId> = (0..sizes.batch).map(|_| cache.begin()).collect();
    let prompt = rows(&context, HEADS * sizes.prompt as usize);
    let mut prefill = Duration::ZERO;
    for &sequence in &sequences {
        let parts = [Part { sequence, tokens: sizes.prompt }];
        let step = cache.step(&Operation::Prefill { parts: &parts }).expect("a step");
        let data = Slice::all(&prompt);
        let incoming = IncomingRows { keys: data, values: data, dtype: Dtype::F16 };
        prefill += timed(&context, |rec| {
            step.layers().try_for_each(|layer| cache.record(rec, &step, layer, Some(incoming)))
        });
        let layers = 0..sizes.layers;
        let finish = Operation::Finish { sequence, layers, keep: Keep::All };
        let step = cache.step(&finish).expect("a step");
        prefill += timed(&context, |rec| cache.record_all(rec, &step));
    }
    let tokens = sizes.batch as u32 * sizes.prompt;
    println!("{tokens} tokens of prompts written and packed: {prefill:?}");

    let token = rows(&context, HEADS * sizes.batch);
    let data = Slice::all(&token);
    let incoming = IncomingRows { keys: data, values: data, dtype: Dtype::F16 };
    let parts: Vec<Part> =
        sequences.iter().map(|sequence| Part { sequence: *sequence, tokens: 1 }).collect();
    let asked = rows(&context, QUERY_HEADS * sizes.batch);
    let queries = DeviceQueries {
        data: Slice::all(&asked),
        dtype: Dtype::F16,
        batch: sizes.batch,
        heads: QUERY_HEADS,
        tokens: 1,
        head_dim: HEAD_DIM,
    };
    let mut batch = cache.batch(&sequences).expect("a batch");
    let (mut plain, mut packing) = (Vec::new(), Vec::new());
    for _ in 0..sizes.chunks * CHUNK {
        let before = cache.pool().frontier(sequences[0], 0, 0).expect("a head");
        let start = Instant::now();
        let step = cache.step(&Operation::Append { parts: &parts, flush: true }).expect("a step");
        let planned = start.elapsed();
        let done = timed(&context, |rec| {
            step.layers().try_for_each(|layer| {
                cache.record(rec, &step, layer, Some(incoming))?;
                cache.attend(rec, &mut batch, layer, &queries, &PagedAttend::default()).map(drop)
            })
        });
        let after = cache.pool().frontier(sequences[0], 0, 0).expect("a head");
        if after > before { &mut packing } else { &mut plain }.push(planned + done);
    }
    let (plain, packing) = (median(&mut plain), median(&mut packing));
    println!("a step of {} sequences in {} layers: {plain:?}", sizes.batch, sizes.layers);
    println!("a step that packs a chunk of each: {packing:?}");
    println!("ratio: {:.2}", packing.as_secs_f64() / plain.as_secs_f64());
}
