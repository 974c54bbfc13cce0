//! `doctor`: what there is to run on, whether it computes right, and what to do if not.

use serde_json::{Value, json};
use wgkv::gpu::SelfTest;
use wgkv::wgpu;

use crate::args::{Backend, Common};
use crate::engine::{self, Engine, Gpu, describe, kind};
use crate::file::Fail;
use crate::report::print;

/// Lists the adapters and says which one would be taken.
pub fn run(common: &Common) -> Result<(), Fail> {
    let adapters = engine::adapters(common.backend);
    let engine = Engine::open(common)?;
    let (taken, test) = match &engine {
        Engine::Cpu => (None, None),
        Engine::Gpu(gpu) => (Some(gpu.info.clone()), Some(self_test(gpu)?)),
    };
    let hints = hints(common.backend, adapters.len(), taken.as_ref(), test.as_ref());
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    if common.json {
        let list: Vec<Value> = adapters.iter().map(adapter_json).collect();
        let runs_on = taken.as_ref().map_or_else(|| "cpu".to_string(), describe);
        let object = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "adapters": list,
            "runs_on": runs_on,
            "self_test": test.as_ref().map(test_json),
            "hints": hints,
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
    match &taken {
        Some(info) => print(&format!("\nevery verb runs on {}", describe(info)))?,
        None => print("\nevery verb runs on the CPU")?,
    }
    if let Some(test) = &test {
        match test.passed() {
            true => print("self-test passed")?,
            false => print("self-test FAILED:")?,
        }
        test.faults.iter().try_for_each(|fault| print(&format!("  {fault}")))?;
    }
    hints.iter().try_for_each(|hint| print(&format!("\n{}", wrapped(hint))))
}

/// Text in lines of at most 100 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if !lines[last].is_empty() && lines[last].len() + 1 + word.len() > 100 {
            lines.push(word.into());
        } else {
            let gap = if lines[last].is_empty() { "" } else { " " };
            lines[last] += &format!("{gap}{word}");
        }
    }
    lines.join("\n")
}

/// Tries what every kernel stands on.
fn self_test(gpu: &Gpu) -> Result<SelfTest, Fail> {
    let (device, queue) = (gpu.context.device(), gpu.context.queue());
    let mut encoder = device.create_command_encoder(&Default::default());
    let test = gpu.context.self_test(&mut encoder)?;
    queue.submit([encoder.finish()]);
    let polled = device.poll(wgpu::PollType::wait_indefinitely());
    if let Some(fault) = gpu.refused() {
        return Err(Fail::device(format!("the GPU refused the self-test: {fault}")));
    }
    polled.map_err(|e| Fail::device(format!("the GPU did not answer: {e}")))?;
    Ok(pollster::block_on(test)?)
}

fn test_json(test: &SelfTest) -> Value {
    let faults: Vec<String> = test.faults.iter().map(ToString::to_string).collect();
    json!({ "passed": test.passed(), "faults": faults, "subgroup_size": test.subgroup_size })
}

/// What a newcomer can do about what was found.
fn hints(
    backend: Backend,
    adapters: usize,
    taken: Option<&wgpu::AdapterInfo>,
    test: Option<&SelfTest>,
) -> Vec<String> {
    let mut hints = Vec::new();
    let software = |info: &wgpu::AdapterInfo| info.device_type == wgpu::DeviceType::Cpu;
    if backend == Backend::Cpu {
        return hints;
    }
    if adapters == 0 {
        let what = if backend == Backend::Auto {
            "No GPU was found."
        } else {
            "Nothing was found on this backend; try --backend auto."
        };
        hints.push(format!("{what} {}", drivers(std::env::consts::OS)));
    } else if taken.is_some_and(software) {
        hints.push(format!(
            "The adapter is software: right for tests, no faster than --backend cpu. {}",
            drivers(std::env::consts::OS)
        ));
    } else if taken.is_none() {
        hints.push(
            "No adapter has what is needed, which is WebGPU's baseline; what each lacks stands above \
             as \"not usable\". A newer driver may have more; --backend vulkan, metal, dx12 or gl \
             tries one way to the same hardware; --backend cpu needs none."
                .into(),
        );
    }
    if test.is_some_and(|test| !test.passed()) {
        hints.push(
            "This GPU or its driver computes wrong: do not use it with wgkv. Update the driver and \
             try again, take another adapter (--adapter) or --backend cpu, and send in the report of \
             wgkv conformance -o report."
                .into(),
        );
    }
    hints
}

/// Where the drivers of GPUs come from.
fn drivers(os: &str) -> &'static str {
    match os {
        "linux" => {
            "To use a GPU install its Vulkan driver. AMD and Intel: apt-get install \
             mesa-vulkan-drivers (Debian, Ubuntu; the same package on Fedora, vulkan-radeon or \
             vulkan-intel on Arch); the user must be allowed to open /dev/dri/renderD128 (group \
             render). NVIDIA: its own driver with libvulkan1; in a container \
             NVIDIA_DRIVER_CAPABILITIES=graphics,compute. vulkaninfo --summary (package vulkan-tools) \
             shows what the system sees; VK_DRIVER_FILES, if set, must name files that there are. \
             Without a GPU mesa-vulkan-drivers brings a software one."
        }
        "macos" => {
            "Metal comes with macOS: 10.15 or later on Apple silicon or a GPU of 2012 or later. In a \
             virtual machine it must be passed through."
        }
        "windows" => {
            "To use a GPU install the driver of its maker (NVIDIA, AMD, Intel): Windows' basic display \
             driver has neither Vulkan nor Direct3D 12. Over remote desktop the GPU may be hidden."
        }
        "android" => "Vulkan 1.1 or later comes with the system or not at all.",
        _ => "To use a GPU install the Vulkan driver of its maker.",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_has_a_way_to_a_driver() {
        for os in ["linux", "macos", "windows", "android", "freebsd"] {
            assert!(drivers(os).len() > 40, "{os}");
        }
        assert!(drivers("linux").contains("mesa-vulkan-drivers"));
        let lines = wrapped(drivers("linux"));
        assert!(
            lines.lines().count() > 3 && lines.lines().all(|line| line.len() <= 100),
            "{lines}"
        );
        assert_eq!(lines.replace('\n', " "), drivers("linux"));
    }

    #[test]
    fn a_limit_that_is_too_low_is_named_with_what_is_needed() {
        assert_eq!(shortfall(&wgpu::Limits::default()), None);
        let storage =
            wgpu::Limits { max_compute_workgroup_storage_size: 8192, ..Default::default() };
        let said = shortfall(&storage).unwrap_or_default();
        assert!(
            said.contains("max_compute_workgroup_storage_size is 8192, 16384 needed"),
            "{said}"
        );
        let web = shortfall(&wgpu::Limits::downlevel_webgl2_defaults()).unwrap_or_default();
        assert!(web.contains("needed"), "{web}");
    }

    #[test]
    fn what_is_missing_or_wrong_is_answered_with_something_to_do() {
        let none = hints(Backend::Auto, 0, None, None);
        assert!(none[0].starts_with("No GPU was found."), "{none:?}");
        assert!(hints(Backend::Metal, 0, None, None)[0].contains("--backend auto"));
        assert!(hints(Backend::Cpu, 0, None, None).is_empty());
        let short = hints(Backend::Auto, 1, None, None);
        assert!(short[0].contains("not usable") && short[0].contains("cpu"), "{short:?}");
        let fault = wgkv::gpu::SelfTestFault {
            part: wgkv::gpu::SelfTestPart::Division,
            word: 7,
            got: 2,
            expected: 1,
        };
        let test = SelfTest { faults: vec![fault], subgroup_size: None };
        let hints = hints(Backend::Auto, 0, None, Some(&test));
        assert!(hints[1].contains("computes wrong") && hints[1].contains("conformance"));
        assert_eq!(test_json(&test)["passed"], false);
        assert!(test_json(&test)["faults"][0].as_str().is_some_and(|f| f.contains("division")));
    }
}
