//! wgkv keeps a transformer's KV cache compressed in GPU memory, through WGSL compute pipelines on
//! [`wgpu`], with a CPU path that says what is right. An engine calls it; it is no engine.
//!
//! # A tour
//!
//! Keys and values of a layer come as dense tensors `[rows, tokens, head_dim]`, a row being one KV
//! head of one sequence: [`shape::Tensor`] in host memory, [`gpu::DeviceTensor`] on a device.
//!
//! 1. [`nestedkv`] decides, once at the end of the prompt and from the keys alone, which tokens
//!    stay. Heads may keep different numbers of tokens; what comes out is ragged, with offsets a row.
//! 2. [`nsnquant`] packs chunks of tokens to 1 to 4 bits a value. A chunk stands alone, so it is a
//!    page ([`layout::PageLayout`]) that can be stored, shared and freed by itself.
//! 3. [`attention`] reads raw and packed tokens side by side, the packed ones as they lie.
//! 4. [`cache`] puts it together. Engines use [`cache::gpu::PagedCache`] (its twin is
//!    [`cache::cpu::PagedCache`]): many sequences and layers, forks, eviction, batches, files.
//!    [`cache::gpu::LayerCache`] holds one layer of sequences of one length.
//!
//! Each of them has a `cpu` and a `gpu` module with the same names. Given the same scores, both
//! select the same tokens bit for bit; where sums of floats differ, the documentation says by how
//! much. [`judge`] is a third version in f64, naive and sharing no code with either, for tests.
//!
//! [`guide`] has pages to read: [what to choose](guide::choosing) and what it costs, [how an engine uses
//! the library](guide::engines), and [what is computed](guide::method), in words.
//!
//! # On the CPU
//!
//! ```
//! use wgkv::attention::{AttendConfig, CacheView, Queries, cpu::attend};
//! use wgkv::nestedkv::{Budget, EvictConfig, cpu::compress_prefill};
//! use wgkv::shape::{Elements, Tensor};
//!
//! # fn main() -> wgkv::Result<()> {
//! // 2 KV heads, 100 tokens, 32 channels; f16 and bf16 go as well.
//! let keys: Vec<f32> = (0..2 * 100 * 32).map(|i| (i as f32 * 0.7).sin()).collect();
//! let values: Vec<f32> = (0..2 * 100 * 32).map(|i| (i as f32 * 0.3).cos()).collect();
//! let keys = Tensor::new("keys", Elements::F32(&keys), 2, 100, 32)?;
//! let values = Tensor::new("values", Elements::F32(&values), 2, 100, 32)?;
//!
//! // 40 tokens a head on average, shared out over the two by need.
//! let budget = Budget::Adaptive { per_head: 40, heads: 2 };
//! let evicted = compress_prefill(&keys, &values, &EvictConfig::new(budget))?;
//! assert_eq!(evicted.kept.positions.len(), 80);
//!
//! // Four query heads, two for each KV head, attend to what stayed.
//! let queries: Vec<f32> = (0..4 * 32).map(|i| (i as f32 * 0.9).sin()).collect();
//! let view = CacheView {
//!     kv_rows: 2,
//!     head_dim_k: 32,
//!     head_dim_v: 32,
//!     raw_offsets: &evicted.kept.offsets,
//!     raw_keys: Elements::F16(&evicted.keys),
//!     raw_values: Elements::F16(&evicted.values),
//!     raw_positions: &evicted.kept.positions,
//!     packed: None,
//! };
//! let queries =
//!     Queries { data: Elements::F32(&queries), batch: 1, heads: 4, tokens: 1, head_dim: 32 };
//! let attended = attend(&view, &queries, &AttendConfig::default())?;
//! assert_eq!(attended.out.len(), 4 * 32);
//! # Ok(())
//! # }
//! ```
//!
//! # On a GPU
//!
//! The device is the caller's, made with at least [`gpu::required_limits`]. A [`gpu::Recorder`]
//! writes into the caller's encoder; nothing here submits, polls or blocks. What must come back is a
//! future, and an error if the work did not reach its end.
//!
//! ```no_run
//! use wgkv::gpu::{Context, ContextDescriptor, DeviceTensor, Recorder, Slice};
//! use wgkv::nestedkv::{Budget, EvictConfig, gpu::compress_prefill};
//! use wgkv::shape::Dtype;
//! use wgkv::wgpu;
//!
//! /// Evicts keys and values `[8, 4096, 128]` f16, given as bytes; returns the positions that stay.
//! async fn evict(
//!     device: &wgpu::Device,
//!     queue: &wgpu::Queue,
//!     keys: &[u8],
//!     values: &[u8],
//! ) -> wgkv::Result<Vec<u8>> {
//!     let context = Context::new(device, queue, &ContextDescriptor::default())?;
//!     let [keys, values] = [context.upload("keys", keys)?, context.upload("values", values)?];
//!     let tensor = |name, buffer| {
//!         DeviceTensor::new(name, Slice::all(buffer), Dtype::F16, 8, 4096, 128)
//!     };
//!     let config = EvictConfig::new(Budget::Uniform(512));
//!
//!     let mut encoder = device.create_command_encoder(&Default::default());
//!     let mut recorder = Recorder::new(&context, &mut encoder);
//!     let evicted = compress_prefill(
//!         &mut recorder,
//!         &tensor("keys", &keys)?,
//!         &tensor("values", &values)?,
//!         &config,
//!     )?;
//!     let positions = recorder.read_back(Slice::all(&evicted.kept.positions))?;
//!     recorder.finish()?;
//!     queue.submit([encoder.finish()]);
//!     // Natively nothing comes back unless somebody polls the device: an engine's loop does, or one
//!     // waits, as here. In a browser the device polls itself.
//!     let _ = device.poll(wgpu::PollType::wait_indefinitely());
//!     positions.await
//! }
//! ```
//!
//! # A cache of many sequences
//!
//! ```no_run
//! use wgkv::attention::PagedAttend;
//! use wgkv::attention::gpu::DeviceQueries;
//! use wgkv::cache::gpu::{Counts, IncomingRows, PagedCache};
//! use wgkv::cache::pool::{Operation, Part, SequenceId};
//! use wgkv::gpu::{Recorder, Slice};
//! use wgkv::nestedkv::{Budget, EvictConfig};
//! use wgkv::shape::Dtype;
//!
//! /// Ends the prompt of a sequence in one layer: keeps 512 tokens a head, packs what it can.
//! fn finish(cache: &mut PagedCache, rec: &mut Recorder<'_>, id: SequenceId) -> wgkv::Result<()> {
//!     let config = EvictConfig::new(Budget::Uniform(512));
//!     let eviction = cache.evict(rec, id, 0, &config)?;
//!     match &eviction.counts {
//!         Counts::Known(counts) => cache.finish(rec, &eviction, counts),
//!         // Those of adaptive budgets come once the recording has run: `guide::engines` shows it.
//!         Counts::Later(_) => Ok(()),
//!     }
//! }
//!
//! /// Decodes one token of each member: its rows are written in every layer, chunks that the
//! /// frontier passes are packed, and the queries of a layer attend as soon as its rows are there.
//! fn decode(
//!     cache: &mut PagedCache,
//!     rec: &mut Recorder<'_>,
//!     members: &[SequenceId],
//!     layers: &[[&wgkv::wgpu::Buffer; 3]],
//! ) -> wgkv::Result<Vec<wgkv::wgpu::Buffer>> {
//!     let part = |id: &SequenceId| Part { sequence: *id, tokens: 1 };
//!     let parts: Vec<Part> = members.iter().map(part).collect();
//!     let step = cache.step(&Operation::Append { parts: &parts, flush: true })?;
//!     let mut batch = cache.batch(members)?;
//!     let (dtype, mut outputs) = (Dtype::F16, Vec::new());
//!     for (layer, buffers) in layers.iter().enumerate() {
//!         let [keys, values, data] = buffers.map(Slice::all);
//!         cache.record(rec, &step, layer, Some(IncomingRows { keys, values, dtype }))?;
//!         let (heads, head_dim) = (32, 128);
//!         let queries =
//!             DeviceQueries { data, dtype, batch: members.len(), heads, tokens: 1, head_dim };
//!         let settings = PagedAttend::default();
//!         outputs.push(cache.attend(rec, &mut batch, layer, &queries, &settings)?.out);
//!     }
//!     Ok(outputs)
//! }
//! ```
//!
//! # What holds everywhere
//!
//! - A NaN or Inf element is read as 0 wherever arithmetic is done; a key row that holds one is
//!   chosen last. Copies of raw rows keep their bits.
//! - Sums are f32 in a fixed order that each module states; results do not depend on the number of
//!   threads.
//! - Arguments are checked before anything is recorded or changed; an [`Error`] names the argument,
//!   what came and what was expected.
//! - Shaders keep to the WebGPU baseline: no optional feature, 8 storage buffers, 16 KiB of
//!   workgroup memory, workgroups of 64 to 256.
//!
//! # Features
//!
//! - `vulkan`, `metal`, `dx12`, `gles`, `webgpu` (all on by default): backends of wgpu.
//! - `parallel`: threads for the CPU path; results are the same without.
//! - `files`: sequences saved to files and loaded again, mlx-lm prompt caches ([`files`]).
//! - `conformance`: a suite that holds a device to the CPU path and the judge (the module
//!   `conformance`).
//! - `cli`: the program `wgkv`.
#![deny(unsafe_code)]

pub mod attention;
pub mod cache;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod error;
#[cfg(feature = "files")]
pub mod files;
pub mod gpu;
pub mod guide;
pub mod judge;
pub mod kernels;
pub mod layout;
pub mod nestedkv;
pub mod nsnquant;
pub mod primitives;
pub mod shape;

pub use error::{Error, Result};
pub use half;
pub use wgpu;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
