//! The caller's device, adopted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "conformance")]
use super::faults::{Fault, Planted};
use super::kernel::{Kernel, Pipeline, Variant};
use super::{buffer, requirements};
use crate::error::Result;

/// What a [`Context`] is made from.
#[derive(Clone, Copy, Debug, Default)]
pub struct ContextDescriptor<'a> {
    /// A cache that pipelines are made through (Vulkan only); the caller loads and saves it.
    pub pipeline_cache: Option<&'a wgpu::PipelineCache>,
    /// Whether attention over books of bytes (the plain ones of 1 to 3 bits) may multiply integers of 8 bits,
    /// which is faster (benches/RESULTS.md) and less exact. Queries are rounded to 127ths of the largest channel
    /// of each (those that meet the means of keys to 16 bits), so that a logit is off by up to 1/254 of that
    /// channel times the sum of the key's channels, all without their signs, and by a thousandth of the product
    /// of both norms as a rule. Weights are rounded to 127ths of the largest that the 512 tokens taken together
    /// can have; what rounding leaves goes to the next token, so that many small weights are not lost. On keys
    /// and values at random, where values nearly cancel, outputs were off by 2 to 4.5% (root mean square), where
    /// packing values to 2 bits costs 30%. It is for values whose scales have 4 bits and chunks in which lanes
    /// have equal parts (64 tokens at 64, 128 or 256 channels are such); elsewhere floats are multiplied as ever.
    /// Off by default.
    ///
    /// In a browser it takes `packed_4x8_integer_dot_product` in
    /// `navigator.gpu.wgslLanguageFeatures`; outside browsers wgpu has it everywhere.
    pub integer_dots: bool,
}

/// A device and queue of the caller, with the pipelines made for them so far.
///
/// Cloning is cheap and shares the pipelines.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: wgpu::Device,
    queue: wgpu::Queue,
    cache: Option<wgpu::PipelineCache>,
    integer_dots: bool,
    pipelines: Mutex<HashMap<(&'static str, Variant), Arc<Pipeline>>>,
    nonce: AtomicU32,
    #[cfg(feature = "conformance")]
    planted: Planted,
    made: AtomicU64,
}

impl Context {
    /// Adopts a device.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLimit`] or [`crate::Error::MissingFeature`] when the device was made
    /// without the WebGPU baseline's limits or what [`super::required_features`] asks for.
    pub fn new(
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        descriptor: &ContextDescriptor<'_>,
    ) -> Result<Self> {
        requirements::check(device)?;
        Ok(Self {
            inner: Arc::new(Inner {
                device: device.clone(),
                queue: queue.clone(),
                cache: descriptor.pipeline_cache.cloned(),
                integer_dots: descriptor.integer_dots,
                pipelines: Mutex::default(),
                nonce: AtomicU32::new(1),
                #[cfg(feature = "conformance")]
                planted: Planted::default(),
                made: AtomicU64::new(0),
            }),
        })
    }

    /// The same device with faults planted in what runs on it.
    #[cfg(feature = "conformance")]
    pub(crate) fn planted(&self, faults: &[Fault]) -> Self {
        let Inner { device, queue, cache, integer_dots, .. } = &*self.inner;
        Self {
            inner: Arc::new(Inner {
                device: device.clone(),
                queue: queue.clone(),
                cache: cache.clone(),
                integer_dots: *integer_dots,
                pipelines: Mutex::default(),
                nonce: AtomicU32::new(1),
                planted: Planted::new(faults),
                made: AtomicU64::new(0),
            }),
        }
    }

    /// The kernels that ran or were warmed so far, each in its variants, in no order.
    #[cfg(feature = "conformance")]
    pub fn built(&self) -> Vec<(&'static str, Variant)> {
        let pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        pipelines.keys().cloned().collect()
    }

    /// The text that a kernel is built of.
    fn text(&self, kernel: &Kernel, variant: &Variant) -> String {
        #[cfg(feature = "conformance")]
        return self.inner.planted.text(kernel, variant);
        #[cfg(not(feature = "conformance"))]
        kernel.text(variant)
    }

    /// What goes to the slot of a dispatch whose parameters are these.
    #[cfg(feature = "conformance")]
    pub(super) fn params(&self, kernel: &Kernel, bytes: &[u8]) -> Vec<u8> {
        self.inner.planted.params(kernel, bytes)
    }

    /// The workgroups that a dispatch of so many has.
    #[cfg(feature = "conformance")]
    pub(super) fn groups(&self, kernel: &Kernel, groups: u64) -> u64 {
        self.inner.planted.groups(kernel, groups)
    }

    /// Whether kernels may use products of packed integers.
    pub(crate) fn integer_dots(&self) -> bool {
        self.inner.integer_dots
    }

    /// The caller's device.
    pub fn device(&self) -> &wgpu::Device {
        &self.inner.device
    }

    /// The caller's queue.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.inner.queue
    }

    /// Makes a storage buffer holding `bytes` (see [`super::upload`]).
    ///
    /// # Errors
    /// [`crate::Error::DeviceLimit`] when the device allows no buffer or binding of this size;
    /// [`crate::Error::OutOfDeviceMemory`].
    pub fn upload(&self, label: &'static str, bytes: &[u8]) -> Result<wgpu::Buffer> {
        buffer::upload(self.device(), label, bytes).map(|made| self.count(made))
    }

    /// Makes a storage buffer holding `bytes` that can also be bound as a
    /// [`super::Binding::Constant`].
    ///
    /// # Errors
    /// [`crate::Error::DeviceLimit`] when the device allows no buffer or binding of this size;
    /// [`crate::Error::OutOfDeviceMemory`].
    pub fn upload_constant(&self, label: &'static str, bytes: &[u8]) -> Result<wgpu::Buffer> {
        let usage = buffer::storage_usage() | wgpu::BufferUsages::UNIFORM;
        buffer::upload_as(self.device(), label, bytes, usage).map(|made| self.count(made))
    }

    /// Makes an empty storage buffer that can also be copied from and to.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLimit`] when the device allows no buffer or binding of this size;
    /// [`crate::Error::OutOfDeviceMemory`].
    pub fn create(&self, label: &'static str, size: u64) -> Result<wgpu::Buffer> {
        buffer::create(self.device(), label, size).map(|made| self.count(made))
    }

    /// Bytes of all buffers made through this context and its clones so far, those that are gone too:
    /// what a recording adds to them is all that it can take beside its arguments.
    pub fn made_bytes(&self) -> u64 {
        self.inner.made.load(Ordering::Relaxed)
    }

    fn count(&self, made: wgpu::Buffer) -> wgpu::Buffer {
        self.inner.made.fetch_add(made.size(), Ordering::Relaxed);
        made
    }

    /// The pipeline of a kernel in a variant, made at the first call.
    pub(super) fn pipeline(&self, kernel: &Kernel, variant: &Variant) -> Arc<Pipeline> {
        // A panic while the lock was held leaves the map whole: entries are only added.
        let mut pipelines = self.inner.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        pipelines
            .entry((kernel.name, variant.clone()))
            .or_insert_with(|| {
                let text = self.text(kernel, variant);
                Arc::new(Pipeline::new(
                    self.device(),
                    self.inner.cache.as_ref(),
                    kernel,
                    variant,
                    text,
                ))
            })
            .clone()
    }

    /// Makes the pipeline of a kernel ahead of its first use.
    pub fn warm(&self, kernel: &Kernel, variant: &Variant) {
        self.pipeline(kernel, variant);
    }

    /// A completion word that no recent submit used; never 0, the content of fresh memory.
    pub(super) fn nonce(&self) -> u32 {
        self.inner.nonce.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9) | 1
    }
}
