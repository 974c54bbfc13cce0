//! Decode steps of a batch in the paged cache, 8 KV heads of 128 channels, 32 query heads: whole steps
//! against their attention alone, and steps in which every sequence packs a chunk against those that
//! pack nothing. Prints medians and their ratios, by the GPU's clock and by the host's apart; the sizes
//! are smaller on a software adapter. Takes the preset's bits as an argument (2.75), or `compat`.

use std::time::{Duration, Instant};

use wgkv::attention::PagedAttend;
use wgkv::attention::gpu::DeviceQueries;
use wgkv::cache::gpu::{IncomingRows, PagedCache};
use wgkv::cache::pool::{Keep, Operation, Part, PoolConfig, SequenceId};
use wgkv::gpu::{Context, ContextDescriptor, Recorder, Slice};
use wgkv::layout::{Bits, Preset, Profile};
use wgkv::nsnquant::Codebook;
use wgkv::shape::Dtype;
use wgkv::wgpu;

const HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const QUERY_HEADS: usize = 32;
const CHUNK: usize = 64;
const BUDGET: u64 = 1 << 36;

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
        required_features: wgkv::gpu::optional_features(adapter.features()),
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
        Sizes { layers: 32, batch: 8, prompt: 32_768, chunks: 6 }
    };
    Some((Context::new(&device, &queue, &ContextDescriptor::default()).ok()?, sizes))
}

/// What a recording took: until it was submitted, until it was done, and by the GPU's clock, where the
/// device has one.
struct Taken {
    recorded: Duration,
    done: Duration,
    gpu: Option<Duration>,
}

/// Records, submits and waits.
fn timed(context: &Context, record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<()>) -> Taken {
    let start = Instant::now();
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    recorder.mark("all");
    record(&mut recorder).expect("a recording");
    let timing = recorder.finish().expect("a recording");
    context.queue().submit([encoder.finish()]);
    let recorded = start.elapsed();
    context.device().poll(wgpu::PollType::wait_indefinitely()).expect("the device polls");
    let done = start.elapsed();
    let spans = timing.map(|timing| pollster::block_on(timing.spans()).expect("spans"));
    let times: Option<Vec<f64>> = spans.iter().flatten().map(|span| span.nanoseconds).collect();
    let gpu = times.filter(|times| !times.is_empty());
    let gpu = gpu.map(|times| Duration::from_nanos(times.iter().sum::<f64>() as u64));
    Taken { recorded, done, gpu }
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

/// Milliseconds.
fn median(times: impl Iterator<Item = Duration>) -> f64 {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// A step, and the attention of its layers on its own.
struct Round {
    planned: Duration,
    step: Taken,
    attention: Taken,
}

fn report(name: &str, rounds: &[Round]) -> [f64; 2] {
    let gpu = |taken: &Taken| taken.gpu.unwrap_or(taken.done);
    let planned = median(rounds.iter().map(|round| round.planned));
    let recorded = median(rounds.iter().map(|round| round.step.recorded));
    let done = median(rounds.iter().map(|round| round.planned + round.step.done));
    let step = median(rounds.iter().map(|round| gpu(&round.step)));
    let attention = median(rounds.iter().map(|round| gpu(&round.attention)));
    println!(
        "{name} ({}): GPU {step:.3} ms, its attention {attention:.3} ms, ratio {:.3}; host: planned in \
         {planned:.3} ms, recorded in {recorded:.3} ms; from the plan to the end {done:.3} ms",
        rounds.len(),
        step / attention
    );
    [step, done]
}

fn config(sizes: &Sizes, choice: Option<&str>) -> PoolConfig {
    let bits = choice.filter(|choice| *choice != "compat");
    let bits = bits.map(|bits| bits.parse().expect("bits of a preset, or compat"));
    let mut preset = bits.map_or(Ok(Preset::default()), Preset::for_bits).expect("a preset");
    if choice == Some("compat") {
        (preset.profile, preset.key_scale) = (Profile::Compat, false);
        (preset.k_bits, preset.v_bits) = (Bits::Two, Bits::Two);
    }
    PoolConfig::new(&preset, sizes.layers, HEADS, [HEAD_DIM; 2], BUDGET).expect("a pool")
}

fn main() {
    let Some((context, sizes)) = context() else { return };
    // Cargo passes `--bench`.
    let choice = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let config = config(&sizes, choice.as_deref());
    println!("{}: {:?} bits", config.profile.name(), config.bits);
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
        })
        .done;
        let layers = 0..sizes.layers;
        let finish = Operation::Finish { sequence, layers, keep: Keep::All };
        let step = cache.step(&finish).expect("a step");
        prefill += timed(&context, |rec| cache.record_all(rec, &step)).done;
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
    for number in 0..sizes.chunks * CHUNK {
        let before = cache.pool().frontier(sequences[0], 0, 0).expect("a head");
        let start = Instant::now();
        let step = cache.step(&Operation::Append { parts: &parts, flush: true }).expect("a step");
        let planned = start.elapsed();
        let taken = timed(&context, |rec| {
            step.layers().try_for_each(|layer| {
                cache.record(rec, &step, layer, Some(incoming))?;
                cache.attend(rec, &mut batch, layer, &queries, &PagedAttend::default()).map(drop)
            })
        });
        let attention = timed(&context, |rec| {
            step.layers().try_for_each(|layer| {
                cache.attend(rec, &mut batch, layer, &queries, &PagedAttend::default()).map(drop)
            })
        });
        let after = cache.pool().frontier(sequences[0], 0, 0).expect("a head");
        let rounds = if after > before { &mut packing } else { &mut plain };
        // The first steps make the kernels.
        if number >= 3 {
            rounds.push(Round { planned, step: taken, attention });
        }
    }
    println!("{} sequences of {} tokens, {} layers", sizes.batch, sizes.prompt, sizes.layers);
    let plain = report("a step", &plain);
    let packing = report("a step that packs a chunk of each sequence", &packing);
    println!(
        "packing against not: GPU {:.2}, from the plan to the end {:.2}",
        packing[0] / plain[0],
        packing[1] / plain[1]
    );
}
