//! What the tests share: one device per process, a way to record and wait, golden files.
#![allow(dead_code, reason = "each test target uses its part")]

pub mod chunks;
pub mod golden;
pub mod schemes;

use std::path::PathBuf;
use std::sync::OnceLock;

use wgkv::gpu::{Context, ContextDescriptor, Readback, Recorder, Slice};
use wgkv::wgpu;

/// A device made with the limits and features that the library asks for.
///
/// # Panics
/// When there is no adapter: GPU tests fail loudly.
pub fn context() -> &'static Context {
    static CONTEXT: OnceLock<Context> = OnceLock::new();
    CONTEXT.get_or_init(|| {
        let (device, queue) = make(&|adapter| wgkv::gpu::required_limits(&adapter.limits()));
        Context::new(&device, &queue, &ContextDescriptor::default()).expect("a context")
    })
}

/// A device of its own, made with `limits` and, where a validation layer is installed, with it on.
///
/// # Panics
/// When there is no adapter.
pub fn device(limits: &wgpu::Limits) -> (wgpu::Device, wgpu::Queue) {
    make(&|_| limits.clone())
}

fn make(limits: &dyn Fn(&wgpu::Adapter) -> wgpu::Limits) -> (wgpu::Device, wgpu::Queue) {
    // The GL backend looks for a display when its instance is made, so it comes only when named.
    let instance = wgpu::Instance::new(
        wgpu::InstanceDescriptor {
            backends: wgpu::Backends::PRIMARY,
            flags: wgpu::InstanceFlags::VALIDATION,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        }
        .with_env(),
    );
    let adapter =
        pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))
            .expect("no GPU adapter: on Debian install mesa-vulkan-drivers, or use tools/test");
    let descriptor = wgpu::DeviceDescriptor {
        required_features: wgkv::gpu::optional_features(adapter.features()),
        required_limits: limits(&adapter),
        ..Default::default()
    };
    pollster::block_on(adapter.request_device(&descriptor)).expect("a device")
}

/// Records with `record`, submits, waits and returns what `record` returned.
pub fn run_on<T>(
    context: &Context,
    record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<T>,
) -> wgkv::Result<T> {
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    let value = record(&mut recorder)?;
    recorder.finish()?;
    context.queue().submit([encoder.finish()]);
    context.device().poll(wgpu::PollType::wait_indefinitely()).expect("the device polls");
    Ok(value)
}

/// [`run_on`] the shared device.
pub fn run<T>(record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<T>) -> wgkv::Result<T> {
    run_on(context(), record)
}

/// Waits for a read-back that was submitted.
pub fn wait(readback: Readback) -> Vec<u8> {
    pollster::block_on(readback).expect("a read-back")
}

/// Content of a whole buffer.
pub fn download(buffer: &wgpu::Buffer) -> Vec<u8> {
    wait(run(|recorder| recorder.read_back(Slice::all(buffer))).expect("a read-back"))
}

/// The content of a buffer as f32, u32 or the like.
pub fn download_as<T: bytemuck::Pod>(buffer: &wgpu::Buffer) -> Vec<T> {
    bytemuck::pod_collect_to_vec(&download(buffer))
}

/// Path of a reference file: the larger set beside the checkout if it is there, else the one shipped.
pub fn golden_path(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let large = root.join("../shared/golden").join(name);
    if large.exists() { large } else { root.join("tests/data").join(name) }
}

/// Bytes of a reference file.
///
/// # Panics
/// When the file cannot be read.
pub fn golden(name: &str) -> Vec<u8> {
    let path = golden_path(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
