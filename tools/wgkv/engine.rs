//! Where the work runs: a GPU if there is one that can do it, else the CPU.

use std::sync::{Arc, Mutex, PoisonError};

use wgkv::gpu::{self, Context, ContextDescriptor, Readback, Recorder, Span};
use wgkv::wgpu;

use crate::args::{Backend, Common};
use crate::file::{Fail, shown};
use crate::report::say;

/// Where the work runs.
pub enum Engine {
    /// The library's CPU path.
    Cpu,
    /// The library's GPU path.
    Gpu(Box<Gpu>),
}

/// A device of an adapter.
pub struct Gpu {
    pub context: Context,
    pub info: wgpu::AdapterInfo,
    fault: Arc<Mutex<Option<String>>>,
}

/// What of a GPU is made use of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All that costs no exactness.
    Full,
    /// Products of integers, too.
    Integers,
    /// What WebGPU promises, but for sizes of buffers and timestamps.
    Baseline,
}

impl Engine {
    /// Opens what the options ask for and says on standard error what was taken.
    pub fn open(common: &Common) -> Result<Self, Fail> {
        Self::open_as(common, Kind::Full)
    }

    /// As [`Self::open`], on a GPU with so much of it.
    pub fn open_as(common: &Common, kind: Kind) -> Result<Self, Fail> {
        if common.backend == Backend::Cpu {
            if common.adapter.is_some() {
                return Err(Fail::input("--adapter goes with a GPU, not with --backend cpu"));
            }
            say("running on the CPU");
            return Ok(Self::Cpu);
        }
        let adapters = adapters(common.backend);
        let free = common.backend == Backend::Auto && common.adapter.is_none();
        let mut why = Vec::new();
        for adapter in &adapters {
            let info = adapter.get_info();
            if let Some(name) = &common.adapter
                && !info.name.to_lowercase().contains(&name.to_lowercase())
            {
                continue;
            }
            match Gpu::open(adapter, kind) {
                Ok(gpu) => {
                    say(&format!("running on {}", describe(&info)));
                    return Ok(Self::Gpu(Box::new(gpu)));
                }
                Err(reason) => why.push(format!("{}: {reason}", describe(&info))),
            }
        }
        if free {
            let reason = if why.is_empty() { "no GPU adapter".into() } else { why.join("; ") };
            say(&format!("running on the CPU ({reason})"));
            return Ok(Self::Cpu);
        }
        if !why.is_empty() {
            return Err(Fail::device(format!("no usable adapter: {}", why.join("; "))));
        }
        let found: Vec<String> = adapters.iter().map(|a| describe(&a.get_info())).collect();
        let found = if found.is_empty() { "none".into() } else { found.join(", ") };
        Err(Fail::device(match &common.adapter {
            Some(name) => format!("no adapter named {:?}; there are: {found}", shown(name)),
            None => {
                let name = format!("{:?}", common.backend).to_lowercase();
                format!(
                    "no adapter on backend {name}; wgkv doctor says what there is and what to do"
                )
            }
        }))
    }
}

impl Engine {
    /// Where the work runs, in words.
    pub fn name(&self) -> String {
        match self {
            Self::Cpu => "cpu".into(),
            Self::Gpu(gpu) => describe(&gpu.info),
        }
    }
}

impl Gpu {
    fn open(adapter: &wgpu::Adapter, kind: Kind) -> Result<Self, String> {
        let baseline = kind == Kind::Baseline;
        let limits = gpu::required_limits(&adapter.limits());
        let plain = wgpu::Limits {
            max_buffer_size: limits.max_buffer_size,
            max_storage_buffer_binding_size: limits.max_storage_buffer_binding_size,
            ..wgpu::Limits::default()
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("wgkv"),
            required_features: gpu::required_features()
                | match baseline {
                    true => adapter.features() & wgpu::Features::TIMESTAMP_QUERY,
                    false => gpu::optional_features(adapter.features()),
                },
            required_limits: if baseline { plain } else { limits },
            ..Default::default()
        };
        if !adapter.features().contains(descriptor.required_features) {
            return Err("lacks a required feature".into());
        }
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|e| one_line(&e.to_string()))?;
        let fault = Arc::new(Mutex::new(None));
        let first = fault.clone();
        // The default handler panics; the program reports the first error and stops in order.
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            first
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert_with(|| one_line(&error.to_string()));
        }));
        let descriptor = ContextDescriptor {
            integer_dots: kind == Kind::Integers,
            ..ContextDescriptor::default()
        };
        let context = Context::new(&device, &queue, &descriptor).map_err(|e| e.to_string())?;
        Ok(Self { context, info: adapter.get_info(), fault })
    }

    /// The first thing that the GPU refused since this was last asked.
    pub fn refused(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Records work with `record`, runs it, and hands back the bytes of the read-backs it asked for.
    pub fn run(
        &self,
        record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<Vec<Readback>>,
    ) -> Result<Vec<Vec<u8>>, Fail> {
        Ok(self.timed(record)?.0)
    }

    /// As [`Self::run`], with the spans that were marked, where the device has timestamps.
    pub fn timed(
        &self,
        record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<Vec<Readback>>,
    ) -> Result<(Vec<Vec<u8>>, Vec<Span>), Fail> {
        let device = self.context.device();
        let mut encoder =
            device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("wgkv") });
        let mut recorder = Recorder::new(&self.context, &mut encoder);
        let wanted = record(&mut recorder)?;
        let timing = recorder.finish()?;
        self.context.queue().submit([encoder.finish()]);
        let polled = device.poll(wgpu::PollType::wait_indefinitely());
        if let Some(fault) = self.refused() {
            return Err(Fail::device(format!("the GPU refused the work: {fault}")));
        }
        polled.map_err(|e| Fail::device(format!("the GPU did not answer: {e}")))?;
        let read = wanted
            .into_iter()
            .map(|readback| pollster::block_on(readback).map_err(Fail::from))
            .collect::<Result<_, _>>()?;
        let spans = match timing {
            Some(timing) => pollster::block_on(timing.spans())?,
            None => Vec::new(),
        };
        Ok((read, spans))
    }
}

/// Adapters of a backend, the one to be preferred first.
pub fn adapters(backend: Backend) -> Vec<wgpu::Adapter> {
    let native = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    match backend {
        Backend::Cpu => Vec::new(),
        Backend::Vulkan => list(wgpu::Backends::VULKAN),
        Backend::Metal => list(wgpu::Backends::METAL),
        Backend::Dx12 => list(wgpu::Backends::DX12),
        Backend::Gl => list(wgpu::Backends::GL),
        Backend::Auto => {
            let found = list(native);
            if !found.is_empty() {
                return found;
            }
            // OpenGL reaches the same hardware with lower limits. In software it takes minutes to
            // compile a shader, and the CPU path is the better answer.
            let mut others = list(wgpu::Backends::GL);
            others.retain(|adapter| adapter.get_info().device_type != wgpu::DeviceType::Cpu);
            others
        }
    }
}

fn list(backends: wgpu::Backends) -> Vec<wgpu::Adapter> {
    if !wgpu::Instance::enabled_backend_features().intersects(backends) {
        return Vec::new();
    }
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let mut found = pollster::block_on(instance.enumerate_adapters(backends));
    found.sort_by_key(|adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    found
}

/// An adapter in a few words.
pub fn describe(info: &wgpu::AdapterInfo) -> String {
    format!("{} ({}, {})", info.name, info.backend, kind(info.device_type))
}

/// The kind of an adapter in words.
pub fn kind(device_type: wgpu::DeviceType) -> &'static str {
    match device_type {
        wgpu::DeviceType::DiscreteGpu => "discrete GPU",
        wgpu::DeviceType::IntegratedGpu => "integrated GPU",
        wgpu::DeviceType::VirtualGpu => "virtual GPU",
        wgpu::DeviceType::Cpu => "software",
        wgpu::DeviceType::Other => "other",
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
