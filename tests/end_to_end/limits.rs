//! Tensors as large as a binding, and one token larger.

use half::f16;
use wgkv::Error;
use wgkv::gpu::{Context, ContextDescriptor, DeviceTensor, Slice, required_limits};
use wgkv::nestedkv::{Budget, EvictConfig, cpu, gpu};
use wgkv::shape::Dtype;
use wgkv::wgpu;

use crate::support;

const DIM: usize = 128;
/// Bytes of a binding on the device of this test: 2 heads of 2,048 tokens in f16.
const BINDING: u64 = 1 << 20;

/// wgpu 10305, 2361, 6221: bindings past the limit read as 0 and give a plausible wrong answer. The
/// only odd key is the very last.
#[test]
fn what_exceeds_a_binding_is_refused_and_what_fills_it_is_right() {
    let limits =
        wgpu::Limits { max_storage_buffer_binding_size: BINDING, ..wgpu::Limits::default() };
    let (device, queue) = support::device(&limits);
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).expect("a context");
    for tokens in [2047usize, 2048, 2049] {
        let mut keys = vec![f16::ZERO; 2 * tokens * DIM];
        keys.chunks_exact_mut(DIM).for_each(|key| key[0] = f16::ONE);
        let last = keys.len() - DIM;
        keys[last] = f16::NEG_ONE;
        let buffer = context.upload("keys", bytemuck::cast_slice(&keys));
        if tokens == 2049 {
            let limit = "max_storage_buffer_binding_size";
            assert!(matches!(
                buffer,
                Err(Error::DeviceLimit { argument: "keys", limit: l, allowed: BINDING, .. })
                    if l == limit
            ));
            continue;
        }
        let buffer = buffer.expect("a buffer");
        let tensor = DeviceTensor::new("keys", Slice::all(&buffer), Dtype::F16, 2, tokens, DIM)
            .expect("a tensor");
        let config = EvictConfig { sinks: 0, ..EvictConfig::new(Budget::Uniform(8)) };
        let (scores, positions) = support::run_on(&context, |rec| {
            let evicted = gpu::compress_prefill(rec, &tensor, &tensor, &config)?;
            let scores = rec.read_back(Slice::all(&evicted.scores.score))?;
            Ok((scores, rec.read_back(Slice::all(&evicted.kept.positions))?))
        })
        .expect("evicted");
        let scores: Vec<f32> = bytemuck::pod_collect_to_vec(&support::wait(scores));
        let mut positions: Vec<u32> = bytemuck::pod_collect_to_vec(&support::wait(positions));
        positions.truncate(16);
        assert_eq!(positions[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(positions[15] as usize, tokens - 1);
        let same = cpu::keep(&scores, 2, tokens, &config).expect("a selection");
        assert_eq!(same.positions, positions);
    }
}

#[test]
fn no_binding_is_asked_for_beyond_what_every_backend_addresses() {
    let available = wgpu::Limits {
        max_storage_buffer_binding_size: 1 << 34,
        max_buffer_size: 1 << 36,
        ..wgpu::Limits::default()
    };
    let limits = required_limits(&available);
    assert!(limits.max_storage_buffer_binding_size < 1 << 31);
    assert_eq!(limits.max_buffer_size, 1 << 36);
}
