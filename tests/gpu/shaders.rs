//! Every kernel in every variant: host structs against WGSL, pipelines, translation, lint.

use std::collections::BTreeSet;
use std::process::Command;

use naga::{AddressSpace, Module, StorageAccess, StructMember, Type, TypeInner};
use wgkv::gpu::{Binding, Context, ContextDescriptor, ParamsLayout};
use wgkv::wgpu;

use crate::{lint, modules};

#[test]
fn host_structs_equal_their_wgsl_twins() {
    for (kernel, shader) in modules::all() {
        let module = &shader.module;
        let at = |binding| {
            module
                .global_variables
                .iter()
                .map(|(_, variable)| variable)
                .find(|v| v.binding.is_some_and(|b| b.group == 0 && b.binding == binding))
                .unwrap_or_else(|| panic!("{}: no binding {binding}", shader.name))
        };
        let params = at(0);
        assert_eq!(params.space, AddressSpace::Uniform, "{}", shader.name);
        let ty = &module.types[params.ty];
        assert_eq!(ty.name.as_deref(), Some("Params"), "{}", shader.name);
        twins(module, ty, &kernel.params, &shader.name);

        let bound = module.global_variables.iter().filter(|(_, v)| v.binding.is_some()).count();
        assert_eq!(bound, kernel.bindings.len() + 1, "{}", shader.name);
        for (index, binding) in kernel.bindings.iter().enumerate() {
            let variable = at(index as u32 + 1);
            assert_eq!(variable.name.as_deref(), Some(binding.name()), "{}", shader.name);
            let storage = |access| AddressSpace::Storage { access };
            let space = match binding {
                Binding::Read(_) => storage(StorageAccess::LOAD),
                Binding::Write(_) => storage(StorageAccess::LOAD | StorageAccess::STORE),
                Binding::Constant(_) => AddressSpace::Uniform,
            };
            assert_eq!(variable.space, space, "{}", shader.name);
        }
    }
}

/// Compares a struct with the host's, and its parts with theirs.
fn twins(module: &Module, ty: &Type, host: &ParamsLayout, shader: &str) {
    let TypeInner::Struct { members, span } = &ty.inner else {
        panic!("{shader}: {:?} is no struct", ty.name);
    };
    let name = |member: &StructMember| member.name.clone().unwrap_or_default();
    let twin: Vec<_> = members.iter().map(|m| (name(m), m.offset as usize)).collect();
    let fields: Vec<_> = host.fields.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect();
    assert_eq!(twin, fields, "{shader}");
    assert_eq!(*span as usize, host.size, "{shader}");
    let nested = |ty| matches!(module.types[ty].inner, TypeInner::Struct { .. });
    let parts: Vec<_> = members.iter().filter(|member| nested(member.ty)).collect();
    assert_eq!(parts.len(), host.parts.len(), "{shader}");
    for (member, (part, layout)) in parts.into_iter().zip(host.parts) {
        assert_eq!(name(member), *part, "{shader}");
        twins(module, &module.types[member.ty], layout, shader);
    }
}

#[test]
fn kernels_have_names_of_their_own() {
    let mut names = BTreeSet::new();
    for (kernel, variants) in wgkv::kernels::kernels() {
        assert!(names.insert(kernel.name), "{} is listed twice", kernel.name);
        assert!(!variants.is_empty(), "{} has no variant", kernel.name);
        let distinct: BTreeSet<_> = variants.iter().map(|v| format!("{v:?}")).collect();
        assert_eq!(distinct.len(), variants.len(), "{} repeats a variant", kernel.name);
    }
}

/// A device that builds pipelines and runs nothing.
pub fn noop() -> (wgpu::Device, wgpu::Queue) {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::NOOP;
    descriptor.backend_options.noop.enable = true;
    let instance = wgpu::Instance::new(descriptor);
    let adapter =
        pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))
            .expect("the noop adapter");
    pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()))
        .expect("a noop device")
}

#[test]
fn every_pipeline_builds() {
    let (device, queue) = noop();
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
    for (kernel, variants) in wgkv::kernels::kernels() {
        for variant in variants {
            let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
            context.warm(kernel, &variant);
            if let Some(error) = pollster::block_on(scope.pop()) {
                panic!("{} {variant:?}: {error}", kernel.name);
            }
        }
    }
}

#[test]
fn every_shader_translates() {
    let validator = Command::new("spirv-val").arg("--version").output().is_ok();
    if !validator {
        eprintln!("spirv-val is not installed: the SPIR-V is written, not validated");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    for (_, shader) in modules::all() {
        count += 1;
        let fail = |e: String| -> ! { panic!("{}: {e}", shader.name) };
        modules::to_msl(&shader).unwrap_or_else(|e| fail(e));
        modules::to_hlsl(&shader).unwrap_or_else(|e| fail(e));
        let words = modules::to_spirv(&shader).unwrap_or_else(|e| fail(e));
        if validator {
            let path = folder.path().join("shader.spv");
            std::fs::write(&path, bytemuck::cast_slice(&words)).unwrap();
            let output =
                Command::new("spirv-val").args(["--target-env", "vulkan1.1"]).arg(&path).output();
            let output = output.unwrap();
            if !output.status.success() {
                fail(String::from_utf8_lossy(&output.stderr).into_owned());
            }
        }
    }
    assert!(count > 0);
}

#[test]
fn every_shader_keeps_the_rules() {
    let mut faults = BTreeSet::new();
    for (_, shader) in modules::all() {
        for fault in lint::module(&shader) {
            faults.insert(format!("{}: {fault}", shader.name));
        }
        let msl = modules::to_msl(&shader).unwrap_or_else(|e| panic!("{}: {e}", shader.name));
        for fault in lint::msl(&msl) {
            faults.insert(format!("{}: MSL: {fault}", shader.name));
        }
    }
    let text: Vec<_> = faults.into_iter().collect();
    assert!(text.is_empty(), "{} faults\n{}", text.len(), text.join("\n"));
}

#[test]
fn every_kernel_is_in_the_table_of_runtime_checks() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("CONTRIBUTING.md");
    let text = std::fs::read_to_string(path).unwrap();
    let table = text.split("\n## ").find(|part| part.starts_with("Runtime checks")).unwrap();
    let bounds = table.split("Bounds of loops").nth(1).unwrap();
    let named: Vec<&str> = bounds.split('`').skip(1).step_by(2).collect();
    let kernels: BTreeSet<_> = wgkv::kernels::kernels().iter().map(|(k, _)| k.name).collect();
    let missing: Vec<_> = kernels.iter().filter(|name| !named.contains(name)).collect();
    assert!(missing.is_empty(), "not in CONTRIBUTING.md: {missing:?}");
    // The completion and the lanes of the self-test are no kernels that callers ask for.
    let own = named.iter().filter(|name| name.contains('/') && !name.starts_with("common/"));
    let gone: Vec<_> = own.filter(|name| !kernels.contains(*name)).collect();
    assert!(gone.is_empty(), "no such kernels: {gone:?}");
}
