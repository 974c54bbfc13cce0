//! WGSL text to checked naga modules, and on to the languages of the backends as wgpu does it.

use std::borrow::Cow;

use naga::back::{hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ResourceBinding, ShaderStage, StorageAccess};

use wgkv::gpu::{Kernel, Variant};

/// A validated module with its overrides settled.
pub struct Shader {
    /// What to call it in a message.
    pub name: String,
    /// The module.
    pub module: Module,
    /// What validation found.
    pub info: ModuleInfo,
}

/// Parses and validates `text` on the WebGPU baseline and settles its overrides.
pub fn shader(name: &str, text: &str, overrides: &[(&str, u32)]) -> Result<Shader, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let mut validator =
        Validator::new(ValidationFlags::all(), Capabilities::SHADER_FLOAT16_IN_FLOAT32);
    let info = validator.validate(&module).map_err(|e| e.emit_to_string(text))?;
    let constants =
        overrides.iter().map(|(name, value)| ((*name).to_owned(), f64::from(*value))).collect();
    let (module, info) = naga::back::pipeline_constants::process_overrides(
        &module,
        &info,
        Some((ShaderStage::Compute, "main")),
        &constants,
    )
    .map_err(|e| format!("{e:?}"))?;
    let (module, info) = (Cow::into_owned(module), Cow::into_owned(info));
    Ok(Shader { name: name.to_owned(), module, info })
}

/// A kernel in one variant.
pub fn variant(kernel: &Kernel, variant: &Variant) -> Shader {
    let name = format!("{} {:?} {:?}", kernel.name, variant.constants, variant.overrides);
    shader(&name, &kernel.text(variant), &variant.overrides)
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Every kernel of the library in every variant.
pub fn all() -> impl Iterator<Item = (&'static Kernel, Shader)> {
    wgkv::kernels::kernels().into_iter().flat_map(|(kernel, variants)| {
        variants.into_iter().map(move |v| (kernel, variant(kernel, &v)))
    })
}

fn bound(module: &Module) -> impl Iterator<Item = (ResourceBinding, AddressSpace)> {
    let mut bound: Vec<_> = module
        .global_variables
        .iter()
        .filter_map(|(_, variable)| Some((variable.binding?, variable.space)))
        .collect();
    bound.sort_by_key(|(at, _)| (at.group, at.binding));
    bound.into_iter()
}

fn entry() -> (ShaderStage, String) {
    (ShaderStage::Compute, "main".to_owned())
}

const RESTRICT: BoundsCheckPolicies = BoundsCheckPolicies {
    index: BoundsCheckPolicy::Restrict,
    buffer: BoundsCheckPolicy::Restrict,
    image_load: BoundsCheckPolicy::Restrict,
    binding_array: BoundsCheckPolicy::Unchecked,
};

/// Metal's language, with the options that wgpu-hal's `load_shader` sets for modules as we make them and
/// the slots that its `create_pipeline_layout` hands out: buffers in the order of the bindings, the
/// buffer of sizes behind them.
pub fn to_msl(shader: &Shader) -> Result<String, String> {
    let mut resources = msl::BindingMap::default();
    for (slot, (at, space)) in bound(&shader.module).enumerate() {
        let mutable = matches!(space, AddressSpace::Storage { access } if access.contains(StorageAccess::STORE));
        resources.insert(
            at,
            msl::BindTarget { buffer: Some(slot as u8), mutable, ..Default::default() },
        );
    }
    let sizes_buffer = Some(resources.len() as u8);
    let options = msl::Options {
        lang_version: (3, 0),
        per_entry_point_map: msl::EntryPointResourceMap::from([(
            "main".to_owned(),
            msl::EntryPointResources { resources, immediates_buffer: None, sizes_buffer },
        )]),
        inline_samplers: Vec::new(),
        spirv_cross_compatibility: false,
        fake_missing_bindings: false,
        bounds_check_policies: RESTRICT,
        zero_initialize_workgroup_memory: true,
        force_loop_bounding: false,
        task_dispatch_limits: None,
        mesh_shader_primitive_indices_clamp: true,
        emit_int_div_checks: true,
        ray_query_initialization_tracking: true,
    };
    let pipeline = msl::PipelineOptions {
        entry_point: Some(entry()),
        vertex_pulling_transform: true,
        ..Default::default()
    };
    let (text, info) = msl::write_string(&shader.module, &shader.info, &options, &pipeline)
        .map_err(|e| format!("MSL: {e:?}"))?;
    info.entry_point_names[0].as_ref().map_err(|e| format!("MSL: {e}"))?;
    Ok(text)
}

/// Direct3D's language, shader model 6.0: the lowest that wgpu compiles with DXC.
pub fn to_hlsl(shader: &Shader) -> Result<String, String> {
    let mut binding_map = hlsl::BindingMap::default();
    let mut registers = [0; 3];
    for (at, space) in bound(&shader.module) {
        let kind = match space {
            AddressSpace::Uniform => 0,
            AddressSpace::Storage { access } if access.contains(StorageAccess::STORE) => 1,
            _ => 2,
        };
        binding_map.insert(
            at,
            hlsl::BindTarget {
                space: 0,
                register: registers[kind],
                binding_array_size: None,
                dynamic_storage_buffer_offsets_index: None,
                restrict_indexing: true,
            },
        );
        registers[kind] += 1;
    }
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_0,
        binding_map,
        fake_missing_bindings: false,
        special_constants_binding: Some(hlsl::BindTarget {
            space: 0,
            register: registers[0],
            binding_array_size: None,
            dynamic_storage_buffer_offsets_index: None,
            restrict_indexing: false,
        }),
        ..Default::default()
    };
    let pipeline = hlsl::PipelineOptions { entry_point: Some(entry()) };
    let mut text = String::new();
    let info = hlsl::Writer::new(&mut text, &options, &pipeline)
        .write(&shader.module, &shader.info, None)
        .map_err(|e| format!("HLSL: {e:?}"))?;
    info.entry_point_names[0].as_ref().map_err(|e| format!("HLSL: {e}"))?;
    Ok(text)
}

/// SPIR-V for Vulkan 1.1, the words of a module.
pub fn to_spirv(shader: &Shader) -> Result<Vec<u32>, String> {
    let binding_map = bound(&shader.module)
        .map(|(at, _)| {
            let info = spv::BindingInfo {
                descriptor_set: at.group,
                binding: at.binding,
                binding_array_size: None,
            };
            (at, info)
        })
        .collect();
    let options = spv::Options {
        lang_version: (1, 3),
        fake_missing_bindings: false,
        binding_map,
        bounds_check_policies: RESTRICT,
        ..Default::default()
    };
    let pipeline =
        spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: "main".to_owned() };
    spv::write_vec(&shader.module, &shader.info, &options, Some(&pipeline))
        .map_err(|e| format!("SPIR-V: {e:?}"))
}
