//! The report that a run ends with.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::checks::Worst;
use super::suite::Config;
use crate::gpu::Context;

/// What came of the cases of one stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageReport {
    /// Name of the stage.
    pub stage: &'static str,
    /// Cases that ran.
    pub cases: u64,
    /// Cases that failed.
    pub failed: u64,
    /// Numbers compared.
    pub compared: u64,
    /// The comparison of floats that came closest to its tolerance; none where all are exact.
    pub worst: Option<Worst>,
    /// What the first failing case, or the smallest found of its kind, says.
    pub failure: Option<String>,
    /// That case: see [`super::Case::from_json`].
    pub case: Option<String>,
}

/// How many variants of a kernel ran.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelReport {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Variants that occur in the library; other codecs and head dimensions may add to them.
    pub variants: usize,
    /// Variants that were built on this device and ran.
    pub ran: usize,
}

/// Everything that is worth sending in.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The stages that took part.
    pub stages: Vec<StageReport>,
    /// All kernels.
    pub kernels: Vec<KernelReport>,
    /// Adapter, driver, backend, features and limits of the device.
    device: Value,
    seed: u64,
}

impl Report {
    pub(super) fn new(
        config: &Config,
        context: &Context,
        stages: Vec<StageReport>,
        kernels: Vec<KernelReport>,
    ) -> Self {
        Self { stages, kernels, device: device(context.device()), seed: config.seed }
    }

    /// Whether cases ran and none failed.
    pub fn passed(&self) -> bool {
        let ran: u64 = self.stages.iter().map(|stage| stage.cases).sum();
        ran > 0 && self.stages.iter().all(|stage| stage.failed == 0)
    }

    /// The report as one JSON object.
    pub fn to_json(&self) -> String {
        let object = json!({
            "format": "wgkv-conformance",
            "version": env!("CARGO_PKG_VERSION"),
            "passed": self.passed(),
            "seed": self.seed,
            "device": self.device,
            "stages": self.stages,
            "kernels": self.kernels,
        });
        object.to_string()
    }
}

fn device(device: &wgpu::Device) -> Value {
    let (info, limits) = (device.adapter_info(), device.limits());
    let features: Vec<&str> = device.features().iter_names().map(|(name, _)| name).collect();
    let mut numbers = Map::new();
    for (name, limit) in [
        ("max_buffer_size", limits.max_buffer_size),
        ("max_storage_buffer_binding_size", limits.max_storage_buffer_binding_size),
        ("max_uniform_buffer_binding_size", limits.max_uniform_buffer_binding_size),
        (
            "max_storage_buffers_per_shader_stage",
            limits.max_storage_buffers_per_shader_stage.into(),
        ),
        ("max_compute_workgroup_storage_size", limits.max_compute_workgroup_storage_size.into()),
        (
            "max_compute_invocations_per_workgroup",
            limits.max_compute_invocations_per_workgroup.into(),
        ),
        (
            "max_compute_workgroups_per_dimension",
            limits.max_compute_workgroups_per_dimension.into(),
        ),
        ("min_storage_buffer_offset_alignment", limits.min_storage_buffer_offset_alignment.into()),
        ("min_uniform_buffer_offset_alignment", limits.min_uniform_buffer_offset_alignment.into()),
    ] {
        numbers.insert(name.into(), json!(limit));
    }
    json!({
        "name": info.name,
        "backend": info.backend.to_str(),
        "kind": format!("{:?}", info.device_type),
        "vendor": info.vendor,
        "device": info.device,
        "driver": info.driver,
        "driver_info": info.driver_info,
        "subgroup_min_size": info.subgroup_min_size,
        "subgroup_max_size": info.subgroup_max_size,
        "features": features,
        "limits": numbers,
    })
}
