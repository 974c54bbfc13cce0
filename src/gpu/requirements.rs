//! What a device must have, and what makes it faster.

use crate::error::{Error, Result};

/// Features that the device must be made with: none. Every stage runs on the WebGPU baseline.
pub fn required_features() -> wgpu::Features {
    wgpu::Features::empty()
}

/// Features of `available` that this library makes use of when the device is made with them.
pub fn optional_features(available: wgpu::Features) -> wgpu::Features {
    available & (wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::PIPELINE_CACHE)
}

/// Largest storage binding used, whatever the device allows: Metal and Direct3D 12 are told sizes in
/// 32 or 31 bits, and shaders index words in 32.
const MAX_BINDING: u64 = (1 << 31) - 4;

/// Bytes that a storage binding may have on a device of these limits.
pub(crate) fn binding_limit(limits: &wgpu::Limits) -> u64 {
    limits.max_storage_buffer_binding_size.min(MAX_BINDING)
}

/// Most workgroup memory that a kernel makes use of.
const MAX_STORAGE: u32 = 32768;

/// The limits that the device should be made with: those of the WebGPU baseline, without which no stage
/// runs; with buffers as large as `available` allows and storage bindings too, up to 2 GiB, since the
/// size of a binding bounds the size of a tensor; and with up to 32 KiB of workgroup memory, which
/// attention of grouped queries is faster with.
pub fn required_limits(available: &wgpu::Limits) -> wgpu::Limits {
    wgpu::Limits {
        max_buffer_size: available.max_buffer_size,
        max_storage_buffer_binding_size: binding_limit(available),
        max_compute_workgroup_storage_size: available
            .max_compute_workgroup_storage_size
            .clamp(baseline().max_compute_workgroup_storage_size, MAX_STORAGE),
        ..baseline()
    }
}

/// The limits without which no stage runs.
fn baseline() -> wgpu::Limits {
    wgpu::Limits::default()
}

/// Compares a device with [`required_features`] and the baseline limits.
pub(super) fn check(device: &wgpu::Device) -> Result<()> {
    let has = device.limits();
    let needs = baseline();
    let at_least = [
        (
            "max_storage_buffers_per_shader_stage",
            u64::from(needs.max_storage_buffers_per_shader_stage),
            u64::from(has.max_storage_buffers_per_shader_stage),
        ),
        (
            "max_compute_workgroup_storage_size",
            u64::from(needs.max_compute_workgroup_storage_size),
            u64::from(has.max_compute_workgroup_storage_size),
        ),
        (
            "max_compute_invocations_per_workgroup",
            u64::from(needs.max_compute_invocations_per_workgroup),
            u64::from(has.max_compute_invocations_per_workgroup),
        ),
        (
            "max_compute_workgroup_size_x",
            u64::from(needs.max_compute_workgroup_size_x),
            u64::from(has.max_compute_workgroup_size_x),
        ),
        (
            "max_compute_workgroups_per_dimension",
            u64::from(needs.max_compute_workgroups_per_dimension),
            u64::from(has.max_compute_workgroups_per_dimension),
        ),
        (
            "max_dynamic_uniform_buffers_per_pipeline_layout",
            1,
            u64::from(has.max_dynamic_uniform_buffers_per_pipeline_layout),
        ),
    ];
    for (limit, needed, allowed) in at_least {
        if allowed < needed {
            return Err(Error::DeviceLimit { argument: "device", limit, needed, allowed });
        }
    }
    if !device.features().contains(required_features()) {
        return Err(Error::MissingFeature { argument: "device", feature: "a required feature" });
    }
    Ok(())
}
