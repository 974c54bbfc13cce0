//! What the paged cache records and allocates: dispatches that do not grow with the batch, lists that
//! layers share, memory that is what is reported, and devices without any left.

use wgkv::cache::gpu::{IncomingRows, PagedCache};
use wgkv::cache::pool::{Operation, Part, PoolConfig, SequenceId};
use wgkv::gpu::{Context, ContextDescriptor, Slice};
use wgkv::nsnquant::Codebook;
use wgkv::shape::Dtype;
use wgkv::{Error, wgpu};

use crate::support;
use crate::twin::{Twin, config};

/// A cache on the device with `members` sequences.
fn cache(config: PoolConfig, members: usize) -> (PagedCache, Vec<SequenceId>) {
    let mut cache = PagedCache::new(support::context(), config, Codebook::builtin()).unwrap();
    let sequences = (0..members).map(|_| cache.begin()).collect();
    (cache, sequences)
}

/// Appends `tokens` tokens to every sequence; returns dispatches of all layers and lists uploaded.
fn append(cache: &mut PagedCache, sequences: &[SequenceId], tokens: u32) -> (u64, usize) {
    let parts: Vec<Part> =
        sequences.iter().map(|sequence| Part { sequence: *sequence, tokens }).collect();
    let step = cache.step(&Operation::Append { parts: &parts, flush: true }).unwrap();
    let rows = u64::from(step.source_rows());
    let context = support::context();
    let [keys, values] =
        cache.pool().layout().head_dims().map(|dim| context.create("rows", rows * dim as u64 * 2));
    let (keys, values) = (keys.unwrap(), values.unwrap());
    let incoming =
        IncomingRows { keys: Slice::all(&keys), values: Slice::all(&values), dtype: Dtype::F16 };
    let dispatches = support::run(|rec| {
        for layer in step.layers() {
            cache.record(rec, &step, layer, Some(incoming))?;
        }
        Ok(rec.dispatches())
    });
    (dispatches.unwrap(), step.uploads())
}

#[test]
fn dispatches_do_not_grow_with_the_batch() {
    // One slab of each class and layer.
    let config = PoolConfig { layers: 3, slab_bytes: 1 << 21, ..config() };
    let steps: [Vec<(u64, usize)>; 2] = [1, 16].map(|members| {
        let (mut cache, sequences) = cache(config.clone(), members);
        // A prompt, a step that packs nothing, one that packs a chunk of every head.
        [27, 1, 1, 16].map(|tokens| append(&mut cache, &sequences, tokens)).to_vec()
    });
    assert_eq!(steps[0], steps[1]);
    let layers = 3;
    // Sinks and tail at first; then the tail; then the tail and both sides of the packed pages.
    let expected = [2, 3, 1, 3].map(|dispatches| (dispatches * layers, 1));
    assert_eq!(steps[0], [(2 * layers, 1), expected[1], expected[2], expected[3]]);
}

#[test]
fn layers_share_lists_unless_they_differ() {
    let (mut cache, sequences) = cache(PoolConfig { layers: 5, ..config() }, 3);
    assert_eq!(append(&mut cache, &sequences, 40).1, 1);
    let trim = [Part { sequence: sequences[1], tokens: 30 }];
    let step = cache.step(&Operation::Trim { parts: &trim }).unwrap();
    support::run(|rec| cache.record_all(rec, &step)).unwrap();
    assert_eq!(step.uploads(), 1);
    // A trim within the tail moves no rows.
    let trim = [Part { sequence: sequences[0], tokens: 1 }];
    let step = cache.step(&Operation::Trim { parts: &trim }).unwrap();
    assert_eq!(step.uploads(), 0);
    support::run(|rec| {
        cache.record_all(rec, &step)?;
        assert_eq!(rec.dispatches(), 0);
        Ok(())
    })
    .unwrap();
}

/// Slabs on the device and their bytes, by what the allocator of wgpu says.
fn slabs(device: &wgpu::Device) -> Option<(usize, u64)> {
    let report = device.generate_allocator_report()?;
    let slabs = report.allocations.iter().filter(|a| a.name == "slab").map(|a| a.size);
    Some((slabs.clone().count(), slabs.sum()))
}

#[test]
fn what_is_reported_is_what_is_allocated() {
    let (device, queue) = support::device(&wgpu::Limits::default());
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
    let mut cache = PagedCache::new(&context, config(), Codebook::builtin()).unwrap();
    let check = |cache: &PagedCache| {
        device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        assert_eq!(cache.device_bytes(), cache.pool().allocated_bytes());
        if let Some((count, bytes)) = slabs(&device) {
            let held: u64 = cache.pool().figures().slabs.iter().sum();
            assert_eq!(count as u64, held);
            // The allocator rounds up to its alignment.
            let more = bytes - cache.device_bytes();
            assert!(more < 64 * held.max(1), "{more} bytes more than reported");
        }
    };
    check(&cache);
    let sequences: Vec<_> = (0..4).map(|_| cache.begin()).collect();
    for tokens in [1, 70, 300, 9] {
        let parts: Vec<Part> =
            sequences.iter().map(|sequence| Part { sequence: *sequence, tokens }).collect();
        cache.step(&Operation::Append { parts: &parts, flush: true }).unwrap();
        check(&cache);
    }
    assert!(cache.device_bytes() > 0);
    for sequence in sequences {
        cache.free(sequence).unwrap();
    }
    cache.shrink();
    check(&cache);
    assert_eq!(cache.device_bytes(), 0);
}

#[test]
fn slabs_beyond_the_binding_limit_are_refused() {
    let (device, queue) = support::device(&wgpu::Limits::default());
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
    let config = PoolConfig { slab_bytes: 1 << 28, byte_budget: 1 << 40, ..config() };
    let fault = PagedCache::new(&context, config, Codebook::builtin());
    assert!(matches!(fault, Err(Error::DeviceLimit { argument: "slab_bytes", .. })));
}

const SCARCE: &str = "WGKV_TEST_SCARCE_MEMORY";

/// Runs the next test in a process of its own that may not have much memory.
#[cfg(target_os = "linux")]
#[test]
fn a_device_without_memory_is_an_error_and_changes_nothing() {
    // Drivers of real GPUs do not even start with little address space.
    if support::context().device().adapter_info().device_type != wgpu::DeviceType::Cpu {
        return;
    }
    let test = "paged_record::slabs_until_there_is_no_memory";
    let this = std::env::current_exe().unwrap();
    let command = format!("ulimit -v 12000000; exec '{}' --exact {test}", this.display());
    let output =
        std::process::Command::new("sh").args(["-c", &command]).env(SCARCE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

#[test]
fn slabs_until_there_is_no_memory() {
    if std::env::var_os(SCARCE).is_none() {
        return;
    }
    let config = PoolConfig { layers: 1, slab_bytes: 1 << 26, byte_budget: u64::MAX, ..config() };
    let mut twin = Twin::new(config);
    let place = twin.begin(1);
    twin.add(&[(place, 40)], false, true).unwrap();
    twin.check(place);
    let gpu = &mut twin.gpu;
    let mut held = Vec::new();
    let fault = loop {
        let sequence = gpu.begin();
        let (figures, bytes) = (gpu.pool().figures(), gpu.device_bytes());
        let parts = [Part { sequence, tokens: 400_000 }];
        match gpu.step(&Operation::Append { parts: &parts, flush: false }) {
            Ok(step) => held.push((sequence, step)),
            Err(error) => {
                assert_eq!(gpu.pool().figures(), figures);
                assert_eq!(gpu.device_bytes(), bytes);
                gpu.free(sequence).unwrap();
                break error;
            }
        }
        assert!(held.len() < 1000, "there is no end to the memory");
    };
    assert!(matches!(fault, Error::OutOfDeviceMemory { .. }), "{fault}");
    // What is there goes on, and what was given back can be had again.
    for (sequence, _) in held {
        gpu.free(sequence).unwrap();
    }
    gpu.shrink();
    twin.cpu.shrink();
    twin.add(&[(place, 30)], false, true).unwrap();
    twin.check(place);
    twin.end();
}
