//! Kernels: WGSL source with typed bindings, and the pipelines made from them.

use super::params::ParamsLayout;

/// How a kernel uses a binding. Binding 0 is always the parameters (uniform, dynamic offset); the
/// others follow from 1 in the order of [`Kernel::bindings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Storage, read only; the name is the WGSL variable's.
    Read(&'static str),
    /// Storage, read and written; the name is the WGSL variable's.
    Write(&'static str),
    /// Uniform: a small table that all invocations read at the same place at the same time, which
    /// GPUs serve from constant memory and software adapters with one load.
    Constant(&'static str),
}

impl Binding {
    /// Name of the WGSL variable.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read(name) | Self::Write(name) | Self::Constant(name) => name,
        }
    }
}

/// What differs between two builds of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Variant {
    /// `const NAME: u32 = value;` lines put in front of the source: what sizes arrays.
    pub constants: Vec<(&'static str, u32)>,
    /// Values of WGSL `override`s.
    pub overrides: Vec<(&'static str, u32)>,
}

/// A compute kernel: one WGSL entry point `main` and what it binds.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Method and stage, as in the file's path: `nestedkv/score`.
    pub name: &'static str,
    /// Fragments and the stage's own text, joined.
    pub source: &'static str,
    /// Bindings from 1 on.
    pub bindings: &'static [Binding],
    /// Layout of the parameters at binding 0.
    pub params: ParamsLayout,
}

/// Kernels whose every index is within its bounds whatever the buffers hold, so that they are built
/// without guards:
/// * what is bound is as long as the parameters say: pools check the size of slabs, flat caches that of
///   their pages, positions and offsets, and partial results and prepared queries are made for the
///   dispatch;
/// * a page's number is compared with the slabs that are bound and the pages of a slab, and a page
///   that lies in none of them is not read; a flat cache's first and last pages are held to the pages
///   that there are, the place of a dispatch to its units or rows, a query to those of its row;
/// * within a page, tokens are held to the chunk, and channels and pieces count up to the head
///   dimension, for which the page is laid out;
/// * rounds of integers take equal parts of every page (`Shape::within`), so that tokens, weights and words of
///   values count up to constants of the variant;
/// * codes have as many bits as a book has rows, and books lie in arrays of that many rows;
/// * token rows, runs and blocks of a prompt are compared with those of the tensor, for which factors, sums,
///   means and scores are made or checked, before anything is read or written;
/// * the slots that are merged are those of a dispatch, or listed by the host beside their rows, and lines of
///   sums that a workgroup takes together are as many as it has lanes;
/// * the page of a key scale is compared with those of its slab;
/// * a chunk to be packed starts at the last whole one of the token rows at most, its scale is the last one
///   at most, its page is one of those that are bound, or the chunk counts as empty; pieces, rows of a book
///   and places in workgroup memory count up to constants for which the arrays are laid out.
///
/// The lists of units are made on the host from page tables that it checks. What these kernels read of
/// workgroup memory they have written, so that it need not be zero before.
const GUARDED: [&str; 7] = [
    "attention/merge",
    "attention/packed_plain",
    "attention/paged_packed_plain",
    "attention/rotate",
    "nestedkv/anchor",
    "nestedkv/anomaly_aligned",
    "nsnquant/encode",
];

impl Kernel {
    /// Whether the kernel guards its bounds itself.
    fn guards_itself(&self) -> bool {
        GUARDED.iter().any(|stage| self.name.split('+').next() == Some(stage))
    }

    /// The WGSL text of a variant.
    pub fn text(&self, variant: &Variant) -> String {
        use core::fmt::Write;
        let mut text = String::with_capacity(self.source.len() + 64);
        for (name, value) in &variant.constants {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "const {name}: u32 = {value}u;");
        }
        text.push_str(self.source);
        text
    }
}

/// A built kernel.
#[derive(Debug)]
pub(super) struct Pipeline {
    pub(super) layout: wgpu::BindGroupLayout,
    pub(super) pipeline: wgpu::ComputePipeline,
}

impl Pipeline {
    pub(super) fn new(
        device: &wgpu::Device,
        cache: Option<&wgpu::PipelineCache>,
        kernel: &Kernel,
        variant: &Variant,
        text: String,
    ) -> Self {
        let label = Some(kernel.name);
        let descriptor =
            wgpu::ShaderModuleDescriptor { label, source: wgpu::ShaderSource::Wgsl(text.into()) };
        // Bounds stay guarded by the driver's or naga's code, so that no table from outside can make a
        // kernel reach past its buffers, but in kernels that guard themselves, where the guards would
        // cost twice the time. The count that would end an endless loop is left out: it costs a 64-bit
        // addition a round.
        let checks = wgpu::ShaderRuntimeChecks {
            force_loop_bounding: false,
            bounds_checks: !kernel.guards_itself(),
            ..wgpu::ShaderRuntimeChecks::checked()
        };
        // SAFETY: every loop of the kernels counts an integer up or down by a fixed step of at most 4,096,
        // or halves one, to a bound that does not change under it, which tests/gpu/lint/loops.rs checks in
        // every variant. No bound is above 2^31: each is a constant of the shader, a number that the host
        // checks, or a count of words, tokens or pages of one binding, which has fewer (`MAX_BINDING`), and
        // what comes from tables that callers fill is clamped to such a count (CONTRIBUTING.md says which
        // for every kernel). So no counter wraps around, and all loops end. A kernel without guards of
        // bounds reaches no further than its buffers: see `GUARDED`.
        #[allow(unsafe_code, reason = "checks are chosen on purpose")]
        let module = unsafe { device.create_shader_module_trusted(descriptor, checks) };
        let entry = |binding: u32, ty, has_dynamic_offset, min: u64| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty,
                has_dynamic_offset,
                min_binding_size: core::num::NonZeroU64::new(min),
            },
            count: None,
        };
        let mut entries =
            vec![entry(0, wgpu::BufferBindingType::Uniform, true, kernel.params.size as u64)];
        for (index, binding) in kernel.bindings.iter().enumerate() {
            let ty = match binding {
                Binding::Read(_) => wgpu::BufferBindingType::Storage { read_only: true },
                Binding::Write(_) => wgpu::BufferBindingType::Storage { read_only: false },
                Binding::Constant(_) => wgpu::BufferBindingType::Uniform,
            };
            // No least size: wgpu then takes the shader's element, which need not be one word.
            entries.push(entry(index as u32 + 1, ty, false, 0));
        }
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label,
            entries: &entries,
        });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let constants: Vec<(&str, f64)> =
            variant.overrides.iter().map(|(name, value)| (*name, f64::from(*value))).collect();
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &constants,
                // Kernels without guards write what they read of workgroup memory.
                zero_initialize_workgroup_memory: !kernel.guards_itself(),
            },
            cache,
        });
        Self { layout, pipeline }
    }
}
