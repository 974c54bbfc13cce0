//! `doctor`: what there is to run on.

use serde_json::{Value, json};
use wgkv::wgpu;

use crate::args::Common;
use crate::engine::{self, Engine, describe, kind};
use crate::file::Fail;
use crate::report::print;

/// Lists the adapters and says which one would be taken.
pub fn run(common: &Common) -> Result<(), Fail> {
    let adapters = engine::adapters(common.backend);
    let taken = match Engine::open(common)? {
        Engine::Cpu => None,
        Engine::Gpu(gpu) => Some(gpu.info),
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    if common.json {
        let list: Vec<Value> = adapters.iter().map(adapter_json).collect();
        let runs_on = taken.as_ref().map_or_else(|| "cpu".to_string(), describe);
        let object = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "adapters": list,
            "runs_on": runs_on,
            "cpu_threads": threads,
        });
        return print(&object.to_string());
    }
    print(&format!("wgkv {}, CPU path with {threads} threads", env!("CARGO_PKG_VERSION")))?;
    for adapter in &adapters {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        print(&format!("\n{}", describe(&info)))?;
        print(&format!("  driver                  {} {}", info.driver, info.driver_info))?;
        print(&format!(
            "  largest tensor          {} MiB (max_storage_buffer_binding_size)",
            wgkv::gpu::required_limits(&limits).max_storage_buffer_binding_size >> 20
        ))?;
        print(&format!("  largest buffer          {} MiB", limits.max_buffer_size >> 20))?;
        print(&format!(
            "  workgroup memory        {} KiB, {} invocations",
            limits.max_compute_workgroup_storage_size >> 10,
            limits.max_compute_invocations_per_workgroup
        ))?;
        print(&format!(
            "  subgroups               {} to {} lanes",
            info.subgroup_min_size, info.subgroup_max_size
        ))?;
        let has = adapter.features();
        print(&format!(
            "  timestamps {}, subgroup operations {}, f16 in shaders {} (none is required)",
            yes(has.contains(wgpu::Features::TIMESTAMP_QUERY)),
            yes(has.contains(wgpu::Features::SUBGROUP)),
            yes(has.contains(wgpu::Features::SHADER_F16)),
        ))?;
        if let Some(reason) = shortfall(&limits) {
            print(&format!("  not usable: {reason}"))?;
        }
    }
    if adapters.is_empty() {
        print("no GPU adapter")?;
    }
    match taken {
        Some(info) => print(&format!("\nevery verb runs on {}", describe(&info))),
        None => print("\nevery verb runs on the CPU"),
    }
}

fn adapter_json(adapter: &wgpu::Adapter) -> Value {
    let (info, limits, has) = (adapter.get_info(), adapter.limits(), adapter.features());
    json!({
        "name": info.name,
        "backend": info.backend.to_str(),
        "kind": kind(info.device_type),
        "driver": info.driver,
        "driver_info": info.driver_info,
        "vendor": info.vendor,
        "device": info.device,
        "subgroup_min_size": info.subgroup_min_size,
        "subgroup_max_size": info.subgroup_max_size,
        "features": {
            "timestamp_query": has.contains(wgpu::Features::TIMESTAMP_QUERY),
            "subgroup": has.contains(wgpu::Features::SUBGROUP),
            "shader_f16": has.contains(wgpu::Features::SHADER_F16),
        },
        "limits": {
            "max_storage_buffer_binding_size": limits.max_storage_buffer_binding_size,
            "max_buffer_size": limits.max_buffer_size,
            "max_compute_workgroup_storage_size": limits.max_compute_workgroup_storage_size,
            "max_compute_invocations_per_workgroup": limits.max_compute_invocations_per_workgroup,
            "max_compute_workgroups_per_dimension": limits.max_compute_workgroups_per_dimension,
            "max_storage_buffers_per_shader_stage": limits.max_storage_buffers_per_shader_stage,
        },
        "not_usable": shortfall(&limits),
    })
}

/// The first limit that is too low for this library.
fn shortfall(limits: &wgpu::Limits) -> Option<String> {
    let mut first = None;
    wgkv::gpu::required_limits(limits).check_limits_with_fail_fn(
        limits,
        false,
        |name, needed, allowed| {
            first.get_or_insert_with(|| format!("{name} is {allowed}, {needed} needed"));
        },
    );
    first
}

fn yes(there: bool) -> &'static str {
    if there { "yes" } else { "no" }
}
