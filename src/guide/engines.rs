//! How an engine uses the library: its device, its sizes, a prompt, one decode step, its features.
//!
//! `tools/engine` in the repository is this page as a program that runs and compares itself with the CPU
//! path: `cargo run --features files --example engine`.
//!
//! # The device stays yours
//!
//! Nothing here creates a device, submits, polls or blocks. Make the device with at least
//! [`required_limits`](crate::gpu::required_limits), and with
//! [`optional_features`](crate::gpu::optional_features) for timestamps and the pipeline cache. No feature is
//! required.
//!
//! ```no_run
//! use wgkv::gpu::{Context, ContextDescriptor, optional_features, required_limits};
//! use wgkv::wgpu;
//!
//! # async fn open() -> Result<(), Box<dyn std::error::Error>> {
//! let instance = wgpu::Instance::default();
//! let adapter = instance.request_adapter(&Default::default()).await?;
//! let (device, queue) = adapter
//!     .request_device(&wgpu::DeviceDescriptor {
//!         required_features: optional_features(adapter.features()),
//!         // What the engine itself needs goes on top of these.
//!         required_limits: required_limits(&adapter.limits()),
//!         ..Default::default()
//!     })
//!     .await?;
//! let context = Context::new(&device, &queue, &ContextDescriptor::default())?;
//! # drop(context);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Context`](crate::gpu::Context) holds pipelines and parameter slots; make one a device and clone it.
//! A device without the limits of the WebGPU baseline is refused by the limit's name; what
//! [`required_limits`](crate::gpu::required_limits) asks for beyond makes kernels faster. So does
//! [`integer_dots`](crate::gpu::ContextDescriptor::integer_dots), which rounds queries and weights to 8 bits. Engines on another version of wgpu cannot
//! share their device: types of two versions do not mix; [`crate::wgpu`] is the version in use.
//!
//! # Sizes
//!
//! [`PoolConfig::new`](crate::cache::pool::PoolConfig::new) takes a preset, layers, KV heads, channels, and
//! a budget in bytes; slabs follow from these. What a sequence takes can be told beforehand:
//!
//! ```
//! use wgkv::cache::pool::{Operation, Part, Pool, PoolConfig};
//! use wgkv::layout::Preset;
//!
//! # fn main() -> wgkv::Result<()> {
//! // 30 layers, 3 KV heads of 64 channels, 512 MiB.
//! let config = PoolConfig::new(&Preset::default(), 30, 3, [64, 64], 512 << 20)?;
//! assert!(config.smallest_bytes()? <= config.byte_budget);
//! let mut pool = Pool::new(config)?;
//! let parts = [Part { sequence: pool.begin(), tokens: 4096 }];
//! let needs = pool.needs(&Operation::Append { parts: &parts, flush: true })?;
//! assert!(needs.fits());
//! # Ok(())
//! # }
//! ```
//!
//! The cache on a device is made of the same configuration, beside the codebooks of the library:
//!
//! ```no_run
//! use wgkv::cache::gpu::PagedCache;
//! use wgkv::cache::pool::PoolConfig;
//! use wgkv::gpu::Context;
//! use wgkv::layout::Preset;
//! use wgkv::nsnquant::Codebook;
//!
//! fn open(context: &Context) -> wgkv::Result<PagedCache> {
//!     let config = PoolConfig::new(&Preset::default(), 30, 3, [64, 64], 512 << 20)?;
//!     PagedCache::new(context, config, Codebook::builtin())
//! }
//! ```
//!
//! Pages are those of one KV head, so heads of uneven length waste nothing. Bindings limit a slab, not a
//! sequence. Where memory is short, [`Pool::needs`](crate::cache::pool::Pool::needs) says what an operation would take,
//! and [`Error::OutOfBudget`](crate::Error::OutOfBudget) leaves everything as it was: free a sequence, or save one to a
//! file ([`crate::files`]), and try again.
//!
//! # A sequence's life
//!
//! | step | call on [`gpu::PagedCache`](crate::cache::gpu::PagedCache) |
//! |---|---|
//! | a new sequence | `begin`, or `fork` of one with the same beginning |
//! | the prompt, in pieces of any length | `step(&Operation::Prefill { .. })`, then `record` a layer |
//! | its end, all tokens | `step(&Operation::Finish { keep: Keep::All, .. })`, `record_all` |
//! | its end, with eviction | `evict` a layer, then `finish` with the counts |
//! | each further token | `step(&Operation::Append { .. })`, `record` and `attend` a layer |
//! | a rejected draft | `step(&Operation::Trim { .. })`, `record_all` |
//! | a pause | `save`, `load` (feature `files`), between CPU and GPU too |
//! | the end | `free`; `shrink` gives empty slabs back |
//!
//! [`cpu::PagedCache`](crate::cache::cpu::PagedCache) is the same cache on the CPU, for tests and for machines without
//! a GPU: it takes slices where this one takes buffers, and `apply` does what `record` does.
//!
//! # A prompt
//!
//! Written in pieces of any length, then cut to half its tokens, shared out among heads by need. How many a head
//! keeps is decided on the device, so the counts come back once before their pages are booked:
//!
//! ```no_run
//! use wgkv::cache::gpu::{IncomingRows, PagedCache};
//! use wgkv::cache::pool::{Operation, Part, SequenceId};
//! use wgkv::gpu::{Context, Recorder, Slice};
//! use wgkv::nestedkv::{Budget, EvictConfig};
//! use wgkv::shape::Dtype;
//! use wgkv::wgpu;
//!
//! fn submit<T>(
//!     context: &Context,
//!     work: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<T>,
//! ) -> wgkv::Result<T> {
//!     let mut encoder = context.device().create_command_encoder(&Default::default());
//!     let mut recorder = Recorder::new(context, &mut encoder);
//!     let done = work(&mut recorder)?;
//!     recorder.finish()?;
//!     context.queue().submit([encoder.finish()]);
//!     Ok(done)
//! }
//!
//! /// Keys and values of a layer are `[KV heads, tokens, d]` in f16.
//! async fn prompt(
//!     context: &Context,
//!     cache: &mut PagedCache,
//!     tokens: u32,
//!     layers: &[[wgpu::Buffer; 2]],
//! ) -> wgkv::Result<SequenceId> {
//!     let id = cache.begin();
//!     let parts = [Part { sequence: id, tokens }];
//!     let step = cache.step(&Operation::Prefill { parts: &parts })?;
//!     submit(context, |rec| {
//!         layers.iter().enumerate().try_for_each(|(layer, buffers)| {
//!             let [keys, values] = [Slice::all(&buffers[0]), Slice::all(&buffers[1])];
//!             let rows = IncomingRows { keys, values, dtype: Dtype::F16 };
//!             cache.record(rec, &step, layer, Some(rows))
//!         })
//!     })?;
//!     // Tokens to keep a head, on average; sinks are among them.
//!     let config = EvictConfig::new(Budget::Adaptive { per_head: tokens / 2, heads: 3 });
//!     for layer in 0..layers.len() {
//!         let mut eviction = submit(context, |rec| cache.evict(rec, id, layer, &config))?;
//!         let _ = context.device().poll(wgpu::PollType::wait_indefinitely());
//!         let counts = eviction.counts.get().await?;
//!         let positions = (&mut eviction.positions).await?;
//!         submit(context, |rec| cache.finish(rec, &eviction, &counts))?;
//!         // Which rows stayed; the cache asks for it before tokens of the prompt are trimmed.
//!         cache.told(id, layer, &bytemuck::pod_collect_to_vec::<u8, u32>(&positions))?;
//!     }
//!     Ok(id)
//! }
//! ```
//!
//! An engine evicts all layers in one submit and waits once. While the prompt is read, let it attend to its raw keys and values, as the model would without a cache: a
//! prompt that sees its own packed chunks adds their errors up from layer to layer.
//!
//! # One decode step
//!
//! For every member of the batch one token; the engine's own kernels write keys, values and queries of a
//! layer into buffers, the cache's work goes into the same encoder, and the attention output is a buffer for the
//! next kernel. The members may have any lengths; the number of dispatches does not depend on how many there are.
//!
//! ```no_run
//! use wgkv::attention::PagedAttend;
//! use wgkv::attention::gpu::DeviceQueries;
//! use wgkv::cache::gpu::{IncomingRows, PagedCache};
//! use wgkv::cache::pool::{Operation, Part, SequenceId};
//! use wgkv::gpu::{Context, Recorder, Slice};
//! use wgkv::shape::Dtype;
//! use wgkv::wgpu;
//!
//! /// Kernels of the engine for one layer: keys and values `[batch * KV heads, 1, d]` and queries
//! /// `[batch, query heads, 1, d]` before attention, and whatever comes after it.
//! trait Layer {
//!     fn before(&self, encoder: &mut wgpu::CommandEncoder) -> [&wgpu::Buffer; 3];
//!     fn after(&self, encoder: &mut wgpu::CommandEncoder, attended: &wgpu::Buffer);
//! }
//!
//! fn decode(
//!     context: &Context,
//!     cache: &mut PagedCache,
//!     members: &[SequenceId],
//!     layers: &[&dyn Layer],
//! ) -> wgkv::Result<()> {
//!     let part = |id: &SequenceId| Part { sequence: *id, tokens: 1 };
//!     let parts: Vec<Part> = members.iter().map(part).collect();
//!     // Books the pages; `flush` packs the chunks that the new tokens complete.
//!     let step = cache.step(&Operation::Append { parts: &parts, flush: true })?;
//!     let mut batch = cache.batch(members)?;
//!     let mut encoder = context.device().create_command_encoder(&Default::default());
//!     for (number, layer) in layers.iter().enumerate() {
//!         let [keys, values, data] = layer.before(&mut encoder).map(Slice::all);
//!         let mut recorder = Recorder::new(context, &mut encoder);
//!         let dtype = Dtype::F16;
//!         let rows = IncomingRows { keys, values, dtype };
//!         cache.record(&mut recorder, &step, number, Some(rows))?;
//!         let (batch_size, heads, head_dim) = (members.len(), 9, 64);
//!         let queries =
//!             DeviceQueries { data, dtype, batch: batch_size, heads, tokens: 1, head_dim };
//!         let settings = PagedAttend::default();
//!         let attended = cache.attend(&mut recorder, &mut batch, number, &queries, &settings)?;
//!         recorder.finish()?;
//!         layer.after(&mut encoder, &attended.out);
//!     }
//!     context.queue().submit([encoder.finish()]);
//!     Ok(())
//! }
//! ```
//!
//! `attended.out` is f32 `[batch, query heads, 1, d]`. Rows are written before they are packed or read, by the
//! order in the encoder. A [`Step`](crate::cache::gpu::Step) is booked at once: if its encoder is dropped, free its
//! sequences.
//!
//! # What comes back
//!
//! [`Recorder::read_back`](crate::gpu::Recorder::read_back) gives a future. Natively it resolves only while somebody polls
//! the device: an engine's loop with `PollType::Poll`, or `device.poll(PollType::wait_indefinitely())` once before
//! it is awaited; in a browser by itself. It is an error, not zeros, when the work did not reach its end: the
//! driver gave up, the device is lost, or the encoder was never submitted.
//!
//! # Features of the crate
//!
//! An engine usually takes the library without the program and with its own choice of backends, which are those
//! of wgpu: `default-features = false, features = ["vulkan", "metal", "dx12"]`; `webgpu` in a browser;
//! `parallel` if the CPU path matters; `files` to save sequences. There are no build scripts, and shaders are part of
//! the crate.
//!
//! # Models that differ
//!
//! - Query heads are a multiple of KV heads; the library finds the KV head of each.
//! - Keys and values may differ in channels ([`Hadamard`](crate::nsnquant::Hadamard) says which numbers there
//!   are: multiples of 8 up to 512, among them 64, 80, 96, 112, 128, 192, 256).
//! - Sliding windows, soft caps and other scales: [`PagedAttend`](crate::attention::PagedAttend).
//! - Layers whose rows are another size: a pool for each size.
//! - Rotary embeddings: keys come with theirs. A pool that knows it ([`PoolConfig::rope`](crate::cache::pool::PoolConfig))
//!   packs keys without; queries always come with theirs.
