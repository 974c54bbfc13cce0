//! The shared stages on both paths.

#[path = "../support/mod.rs"]
mod support;

mod compact;
mod gather;
mod math;
mod scan;
mod select;

use wgkv::wgpu;

/// Uploads numbers of any plain type.
fn upload<T: bytemuck::NoUninit>(values: &[T]) -> wgpu::Buffer {
    support::context().upload("numbers", bytemuck::cast_slice(values)).expect("a buffer")
}
