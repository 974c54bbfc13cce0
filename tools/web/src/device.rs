//! The visitor's GPU and the way to run work on it.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use wgkv::gpu::{Context, ContextDescriptor, Readback, Recorder};
use wgkv::wgpu;

/// A device made for the library, and what went wrong on it.
pub struct Device {
    context: Context,
    info: wgpu::AdapterInfo,
    fault: Arc<Mutex<Option<String>>>,
}

impl Device {
    /// Opens the adapter with as much as it allows.
    pub async fn open() -> Result<Self, String> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: wgpu::Backends::BROWSER_WEBGPU,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let options = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        let adapter = instance
            .request_adapter(&options)
            .await
            .map_err(|_| {
                "The browser has WebGPU, but gives this page no GPU. It may hold the driver back or have \
                 WebGPU switched off: chrome://gpu or about:support says why; on Linux, Chrome may want \
                 --enable-unsafe-webgpu."
            })?;
        let descriptor = wgpu::DeviceDescriptor {
            required_features: wgkv::gpu::optional_features(adapter.features()),
            required_limits: wgkv::gpu::required_limits(&adapter.limits()),
            ..Default::default()
        };
        let (device, queue) = adapter
            .request_device(&descriptor)
            .await
            .map_err(|e| format!("the GPU adapter gives no device ({e})"))?;
        let fault: Arc<Mutex<Option<String>>> = Arc::default();
        let told = fault.clone();
        device.on_uncaptured_error(Arc::new(move |error| {
            let mut fault = told.lock().unwrap_or_else(PoisonError::into_inner);
            fault.get_or_insert_with(|| error.to_string());
        }));
        let context = Context::new(&device, &queue, &ContextDescriptor::default())
            .map_err(|e| e.to_string())?;
        Ok(Self { context, info: adapter.get_info(), fault })
    }

    /// The library's side of the device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// What the GPU refused since this was asked last.
    pub fn refused(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Name and limits.
    pub fn about(&self) -> Value {
        let limits = self.context.device().limits();
        json!({
            "name": self.info.name,
            "driver": self.info.driver,
            "max_buffer_size": limits.max_buffer_size,
            "max_storage_buffer_binding_size": limits.max_storage_buffer_binding_size,
        })
    }

    /// Records, submits, and waits for the read-backs.
    pub async fn run(
        &self,
        record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<Vec<Readback>>,
    ) -> Result<Vec<Vec<u8>>, String> {
        let mut encoder = self.context.device().create_command_encoder(&Default::default());
        let mut recorder = Recorder::new(&self.context, &mut encoder);
        let waiting = record(&mut recorder).map_err(|e| e.to_string())?;
        recorder.finish().map_err(|e| e.to_string())?;
        self.context.queue().submit([encoder.finish()]);
        let mut answers = Vec::with_capacity(waiting.len());
        for readback in waiting {
            let answer = readback.await;
            if let Some(fault) = self.refused() {
                return Err(format!("the GPU refused the work: {fault}"));
            }
            answers.push(answer.map_err(|e| e.to_string())?);
        }
        Ok(answers)
    }

    /// Runs the library's self-test.
    pub async fn self_test(&self) -> Result<String, String> {
        let mut encoder = self.context.device().create_command_encoder(&Default::default());
        let test = self.context.self_test(&mut encoder).map_err(|e| e.to_string())?;
        self.context.queue().submit([encoder.finish()]);
        let answer = test.await.map_err(|e| e.to_string())?;
        let faults: Vec<String> = answer.faults.iter().map(ToString::to_string).collect();
        Ok(faults.join("\n"))
    }
}
