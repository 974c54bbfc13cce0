//! burn and wgkv on one wgpu device: burn's tensors go into a packed cache and attention's output comes
//! back as a burn tensor, all in buffers of that device; nothing passes through the host.
//!
//! `cargo run --manifest-path tools/interop/burn/Cargo.toml`

use std::error::Error;

use burn_backend::TensorData;
use burn_backend::ops::FloatTensorOps;
use burn_wgpu::{
    AutoCompiler, CubeBackend, CubeTensor, RuntimeOptions, WgpuResource, WgpuSetup, init_device,
};
use cubecl::Device;
use cubecl::wgpu::WgpuServer;
use wgkv::attention::gpu::{DeviceQueries, attend};
use wgkv::attention::{AttendConfig, Queries, cpu};
use wgkv::cache::{CacheConfig, cpu::LayerCache as HostCache, gpu::LayerCache};
use wgkv::gpu::{Context, ContextDescriptor, DeviceTensor, Recorder, Slice, required_limits};
use wgkv::layout::Preset;
use wgkv::shape::{Dtype, Elements, Tensor};
use wgkv::wgpu;

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const TOKENS: usize = 200;
const DIM: usize = 64;

type Answer<T> = Result<T, Box<dyn Error>>;

/// Where a burn tensor lies. What burn has queued for it is submitted first.
fn place(tensor: &CubeTensor) -> Answer<WgpuResource> {
    let found = tensor.client.get_resource::<WgpuServer<AutoCompiler>>(tensor.handle.clone());
    let found = found.map_err(|e| format!("{e:?}"))?;
    tensor.client.flush().map_err(|e| format!("{e:?}"))?;
    Ok(found.resource().clone())
}

/// A buffer of burn's as the library takes it.
fn slice(place: &WgpuResource) -> Slice<'_> {
    Slice { buffer: &place.buffer, offset: place.offset, size: place.size }
}

/// A tensor of noise times another: what a layer of a model would compute.
fn rows(device: &Device, count: usize, seed: u32) -> CubeTensor {
    let noise = |count: usize, seed: u32| -> Vec<f32> {
        let mixed = |i: u32| (i ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        let wave = |i: u32| (mixed(i) ^ (mixed(i) >> 13)).wrapping_mul(0xc2b2_ae35) >> 8;
        (0..count as u32).map(|i| wave(i) as f32 / (1 << 23) as f32 - 1.0).collect()
    };
    let tensor = |rows: usize, seed| {
        CubeBackend::float_from_data(TensorData::new(noise(rows * DIM, seed), [rows, DIM]), device)
    };
    CubeBackend::float_matmul(tensor(count, seed), tensor(DIM, seed + 1))
}

fn host(tensor: CubeTensor) -> Answer<Vec<f32>> {
    let data = pollster::block_on(CubeBackend::float_into_data(tensor));
    let data = data.map_err(|e| format!("{e:?}"))?;
    Ok(data.try_to_vec().map_err(|e| format!("{e:?}"))?)
}

fn main() -> Answer<()> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = pollster::block_on(instance.request_adapter(&Default::default()))?;
    let descriptor = wgpu::DeviceDescriptor {
        // Burn takes what there is.
        required_features: adapter.features() - wgpu::Features::all_experimental_mask(),
        required_limits: required_limits(&adapter.limits())
            .or_better_values_from(&adapter.limits()),
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))?;
    println!("on {}", adapter.get_info().name);

    // Both adopt the device.
    let context = Context::new(&device, &queue, &ContextDescriptor::default())?;
    let backend = adapter.get_info().backend;
    let setup =
        WgpuSetup { instance, adapter, device: device.clone(), queue: queue.clone(), backend };
    let burn = Device::Wgpu(init_device(setup, RuntimeOptions::default()));

    let [keys, values] = [3, 5].map(|seed| rows(&burn, KV_HEADS * TOKENS, seed));
    let queries = rows(&burn, HEADS, 7);
    let out = rows(&burn, HEADS, 9);
    let [k, v, q, o] = [place(&keys)?, place(&values)?, place(&queries)?, place(&out)?];

    let mut config = CacheConfig::new(&Preset::default(), KV_HEADS, [DIM; 2]);
    config.dtype = Dtype::F32;
    let mut cache = LayerCache::new(&context, config.clone())?;
    let mut encoder = device.create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(&context, &mut encoder);
    let tensor =
        |name, place| DeviceTensor::new(name, slice(place), Dtype::F32, KV_HEADS, TOKENS, DIM);
    cache.append(&mut recorder, &tensor("keys", &k)?, &tensor("values", &v)?)?;
    let asked = DeviceQueries {
        data: slice(&q),
        dtype: Dtype::F32,
        batch: 1,
        heads: HEADS,
        tokens: 1,
        head_dim: DIM,
    };
    let flat = cache.flat(&mut recorder)?;
    let attended = attend(&mut recorder, &flat.view(), &asked, &AttendConfig::default())?;
    recorder.finish()?;
    // Back into a tensor of burn's.
    encoder.copy_buffer_to_buffer(&attended.out, 0, &o.buffer, o.offset, 4 * (HEADS * DIM) as u64);
    queue.submit([encoder.finish()]);
    let doubled = CubeBackend::float_add(out.clone(), out);

    // The same on the CPU path, from what burn says its tensors hold.
    let mut check = HostCache::new(config)?;
    let (keys, values, queries) = (host(keys)?, host(values)?, host(queries)?);
    check.append(
        &Tensor::new("keys", Elements::F32(&keys), KV_HEADS, TOKENS, DIM)?,
        &Tensor::new("values", Elements::F32(&values), KV_HEADS, TOKENS, DIM)?,
    )?;
    let data = Elements::F32(&queries);
    let asked = Queries { data, batch: 1, heads: HEADS, tokens: 1, head_dim: DIM };
    let expected = cpu::attend(&check.flat().view(), &asked, &AttendConfig::default())?.out;
    let ours = host(doubled)?;
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = ours.iter().zip(&expected).map(|(a, b)| square(a - 2.0 * b)).sum();
    let size: f64 = expected.iter().map(|x| square(2.0 * x)).sum();
    let share = (error / size).sqrt();
    let (held, raw) = (cache.counters().device_bytes, 4 * (keys.len() + values.len()));
    println!("{held} bytes for {raw} in f32; outputs are off the CPU path's by {share:.1e}");
    // Where a scale lies between two codes, rounding decides.
    if ours.len() == expected.len() && share < 1e-2 { Ok(()) } else { Err("outputs differ".into()) }
}
