//! An engine's loop around the paged cache, on a device of the engine's own, with made-up keys, values
//! and queries. It compares every step with the CPU path and prints the bytes by part.
//!
//! `cargo run --features files --example engine`

mod engine;
mod model;
mod story;

use wgkv::gpu::{Context, ContextDescriptor};
use wgkv::wgpu;

fn main() -> engine::Answer<()> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::PRIMARY,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let options = wgpu::RequestAdapterOptions::default();
    let adapter = pollster::block_on(instance.request_adapter(&options))?;
    println!("on {}", adapter.get_info().name);
    let descriptor = wgpu::DeviceDescriptor {
        required_limits: wgkv::gpu::required_limits(&adapter.limits()),
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))?;
    let context = Context::new(&device, &queue, &ContextDescriptor::default())?;
    story::run(&context, 200, &mut std::io::stdout())
}
