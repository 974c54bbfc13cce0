//! Recording into the caller's encoder.

use super::buffer::{Slice, allocate, probe};
use super::context::Context;
use super::kernel::{Binding, Kernel, Variant};
use super::params::{Magic, Params, SLOT_BYTES, Slots};
use super::readback::{self, Promise, Readback};
use super::requirements::binding_limit;
use super::timing::{Timer, Timing};
use crate::error::{Error, Result};

/// Workgroups of a dispatch, counted along one line and folded to two dimensions where a device's
/// limit on one dimension (65,535 on the baseline) asks for it.
///
/// A shader finds its place as `workgroup_id.y * num_workgroups.x + workgroup_id.x` and guards its
/// work against places past the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups(pub u64);

impl Groups {
    /// The fold for a device that allows `limit` workgroups a dimension.
    fn fold(self, argument: &'static str, limit: u32) -> Result<(u32, u32)> {
        let limit = u64::from(limit);
        let rows = self.0.div_ceil(limit);
        if rows > limit {
            return Err(Error::DeviceLimit {
                argument,
                limit: "max_compute_workgroups_per_dimension",
                needed: self.0,
                allowed: limit * limit,
            });
        }
        let width = if rows == 0 { 0 } else { self.0.div_ceil(rows) };
        Ok((width as u32, rows as u32))
    }
}

/// Bytes in front of what is read back: the completion word.
const READ_BACK_HEAD: u64 = 8;

/// Bytes beyond which read-backs do not share a buffer.
const STAGING_BYTES: u64 = 256 << 20;

struct Pending {
    source: wgpu::Buffer,
    offset: u64,
    size: u64,
    promise: Promise,
}

/// Records kernels, clears, copies and read-backs into an encoder of the caller.
///
/// [`Recorder::finish`] ends the recording; then the caller finishes the encoder, submits it and
/// polls the device. Dropping a recorder without finishing it leaves a valid encoder whose
/// read-backs end in an error.
pub struct Recorder<'a> {
    context: &'a Context,
    encoder: &'a mut wgpu::CommandEncoder,
    pass: Option<wgpu::ComputePass<'static>>,
    slots: Slots,
    pending: Vec<Pending>,
    timer: Option<Timer>,
    each: bool,
    dispatches: u64,
    bound: u64,
}

impl core::fmt::Debug for Recorder<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Recorder").field("pending", &self.pending.len()).finish_non_exhaustive()
    }
}

impl<'a> Recorder<'a> {
    /// Starts a recording into `encoder`, which must come from the context's device.
    pub fn new(context: &'a Context, encoder: &'a mut wgpu::CommandEncoder) -> Self {
        Self {
            context,
            encoder,
            pass: None,
            slots: Slots::new(context.device()),
            pending: Vec::new(),
            timer: None,
            each: false,
            dispatches: 0,
            bound: 0,
        }
    }

    /// The context that this recording belongs to.
    pub fn context(&self) -> &'a Context {
        self.context
    }

    /// Dispatches recorded so far.
    pub fn dispatches(&self) -> u64 {
        self.dispatches
    }

    /// Bytes of the slices of all dispatches so far, each counted as often as it was bound: what a
    /// recording can move at most, as long as no kernel reads a slice twice.
    pub fn bound_bytes(&self) -> u64 {
        self.bound
    }

    /// Refuses a slice that [`Recorder::dispatch`] would refuse for this binding.
    pub(crate) fn check(&self, binding: Binding, slice: &Slice<'_>) -> Result<()> {
        check_slice(binding, slice, &self.context.device().limits())
    }

    /// Measures the dispatches that follow, up to the next mark, under `label`. Without
    /// `TIMESTAMP_QUERY` on the device this does nothing.
    pub fn mark(&mut self, label: &'static str) {
        self.pass = None;
        if self.timer.is_none() {
            self.timer = Timer::new(self.context);
        }
        if let Some(timer) = &mut self.timer {
            timer.mark(label);
        }
    }

    /// Measures every dispatch that follows on its own, under its kernel's name, instead of what is
    /// marked. Each then waits for the one before, so the sum is more than the whole takes.
    pub fn mark_each(&mut self) {
        self.each = true;
    }

    /// Records one dispatch. A dispatch of no workgroups is left out.
    ///
    /// # Errors
    /// [`Error::Length`] when the number of slices is not that of the kernel's bindings;
    /// [`Error::DeviceLimit`] for a slice above the binding limit or too many workgroups;
    /// [`Error::BufferUsage`] for a buffer without `STORAGE` (or `UNIFORM`, for a constant);
    /// [`Error::Offsets`] for a slice that is misaligned or outside its buffer, and for one that lies
    /// in memory that the kernel writes through another.
    pub fn dispatch<P: Params>(
        &mut self,
        kernel: &'static Kernel,
        variant: &Variant,
        params: &P,
        slices: &[Slice<'_>],
        groups: Groups,
    ) -> Result<()> {
        let limits = self.context.device().limits();
        let limit = limits.max_compute_workgroups_per_dimension;
        let fold = groups.fold(kernel.name, limit)?;
        if slices.len() != kernel.bindings.len() {
            return Err(Error::Length {
                argument: kernel.name,
                got: slices.len(),
                expected: kernel.bindings.len(),
            });
        }
        for (slice, binding) in slices.iter().zip(kernel.bindings) {
            check_slice(*binding, slice, &limits)?;
        }
        check_aliases(kernel.bindings, slices)?;
        if groups.0 == 0 {
            return Ok(());
        }
        #[cfg(feature = "conformance")]
        let fold =
            Groups(self.context.groups(kernel, groups.0)).fold(kernel.name, limit).unwrap_or(fold);
        if self.each {
            self.mark(kernel.name);
        }
        debug_assert_eq!(P::LAYOUT.size, kernel.params.size, "{}", kernel.name);
        debug_assert!(P::LAYOUT.size as u64 <= SLOT_BYTES, "{}", kernel.name);
        let pipeline = self.context.pipeline(kernel, variant);
        let bytes = bytemuck::bytes_of(params);
        #[cfg(feature = "conformance")]
        let bytes = &*self.context.params(kernel, bytes);
        let (uniform, offset) = self.slots.write(bytes)?;
        let mut entries = vec![wgpu::BindGroupEntry {
            binding: 0,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: &uniform,
                offset: 0,
                size: core::num::NonZeroU64::new(kernel.params.size as u64),
            }),
        }];
        for (index, slice) in slices.iter().enumerate() {
            entries.push(wgpu::BindGroupEntry {
                binding: index as u32 + 1,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: slice.buffer,
                    offset: slice.offset,
                    size: core::num::NonZeroU64::new(slice.size),
                }),
            });
        }
        let group = self.context.device().create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.name),
            layout: &pipeline.layout,
            entries: &entries,
        });
        let pass = match &mut self.pass {
            Some(pass) => pass,
            None => {
                let timestamp_writes = self.timer.as_mut().and_then(Timer::writes);
                let descriptor =
                    wgpu::ComputePassDescriptor { label: Some("wgkv"), timestamp_writes };
                let pass = self.encoder.begin_compute_pass(&descriptor).forget_lifetime();
                self.pass.insert(pass)
            }
        };
        pass.set_pipeline(&pipeline.pipeline);
        pass.set_bind_group(0, &group, &[offset]);
        pass.dispatch_workgroups(fold.0, fold.1, 1);
        self.dispatches += 1;
        self.bound += slices.iter().map(|slice| slice.size).sum::<u64>();
        Ok(())
    }

    /// Sets a part of a buffer to zero.
    ///
    /// # Errors
    /// [`Error::BufferUsage`] when the buffer was made without `COPY_DST`; [`Error::Offsets`] for a
    /// slice that is misaligned or outside its buffer.
    pub fn clear(&mut self, slice: Slice<'_>) -> Result<()> {
        check_copied("clear", &slice, wgpu::BufferUsages::COPY_DST, "COPY_DST")?;
        self.pass = None;
        self.encoder.clear_buffer(slice.buffer, slice.offset, Some(slice.size));
        Ok(())
    }

    /// Copies `size` bytes, a multiple of 4, from one buffer to another.
    ///
    /// # Errors
    /// [`Error::BufferUsage`] for buffers made without `COPY_SRC` and `COPY_DST`; [`Error::Offsets`]
    /// for a part that is misaligned, outside its buffer, or in the buffer that it is copied from.
    pub fn copy(
        &mut self,
        from: &wgpu::Buffer,
        from_offset: u64,
        to: &wgpu::Buffer,
        to_offset: u64,
        size: u64,
    ) -> Result<()> {
        let source = Slice { buffer: from, offset: from_offset, size };
        check_copied("copy source", &source, wgpu::BufferUsages::COPY_SRC, "COPY_SRC")?;
        let result = Slice { buffer: to, offset: to_offset, size };
        check_copied("copy result", &result, wgpu::BufferUsages::COPY_DST, "COPY_DST")?;
        if from == to {
            let (argument, expected) = ("copy result", "in another buffer than the source");
            return Err(Error::Offsets { argument, index: 0, got: to_offset, expected });
        }
        if size > 0 {
            self.pass = None;
            self.encoder.copy_buffer_to_buffer(from, from_offset, to, to_offset, size);
        }
        Ok(())
    }

    /// Asks for the content that `slice` has at the end of this recording.
    ///
    /// # Errors
    /// [`Error::BufferUsage`] when the buffer was made without `COPY_SRC`; [`Error::Offsets`] for a
    /// slice that is misaligned or outside its buffer.
    pub fn read_back(&mut self, slice: Slice<'_>) -> Result<Readback> {
        check_copied("read-back", &slice, wgpu::BufferUsages::COPY_SRC, "COPY_SRC")?;
        let (promise, readback) = Promise::new();
        self.pending.push(Pending {
            source: slice.buffer.clone(),
            offset: slice.offset,
            size: slice.size,
            promise,
        });
        Ok(readback)
    }

    /// Ends the recording: writes the completion word, copies what was asked back and schedules its
    /// mapping for the submit. Returns the timings if anything was marked.
    ///
    /// # Errors
    /// [`Error::DeviceLimit`] when a read-back exceeds the largest buffer; [`Error::DeviceLost`] when
    /// the device was lost on the way. The encoder is then to be dropped: to wgpu what was recorded
    /// since the loss is not valid.
    pub fn finish(mut self) -> Result<Option<Timing>> {
        self.pass = None;
        self.each = false;
        if self.dispatches > 0 {
            probe(self.context.device())?;
        }
        let timing = match self.timer.take() {
            Some(timer) => {
                let (buffer, spans) = timer.resolve(self.context, self.encoder)?;
                let readback = self.read_back(Slice::all(&buffer))?;
                Some(Timing::new(readback, spans, self.context.queue().get_timestamp_period()))
            }
            None => None,
        };
        if self.pending.is_empty() {
            return Ok(timing);
        }
        let nonce = self.context.nonce();
        let word = self.context.create("wgkv completion word", 4)?;
        self.dispatch(
            &readback::KERNEL,
            &Variant::default(),
            &readback::CompleteParams { nonce },
            &[Slice::all(&word)],
            Groups(1),
        )?;
        self.pass = None;
        let allowed = self.context.device().limits().max_buffer_size;
        // What does not fit one buffer comes back in several.
        let mut parts: Vec<(u64, Vec<Pending>)> = Vec::new();
        for pending in self.pending.drain(..) {
            let size = pending.size.next_multiple_of(8);
            if READ_BACK_HEAD + size > allowed {
                return Err(Error::DeviceLimit {
                    argument: "read-back",
                    limit: "max_buffer_size",
                    needed: READ_BACK_HEAD + size,
                    allowed,
                });
            }
            match parts.last_mut() {
                Some((total, part)) if *total + size <= allowed.min(STAGING_BYTES) => {
                    *total += size;
                    part.push(pending);
                }
                _ => parts.push((READ_BACK_HEAD + size, vec![pending])),
            }
        }
        let mut staged = Vec::with_capacity(parts.len());
        for (size, part) in parts {
            let descriptor = wgpu::BufferDescriptor {
                label: Some("wgkv read-back"),
                size,
                usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
                mapped_at_creation: false,
            };
            let staging = allocate(self.context.device(), "read-back", &descriptor)?;
            staged.push((staging, part));
        }
        for (staging, part) in staged {
            self.encoder.copy_buffer_to_buffer(&word, 0, &staging, 0, 4);
            let mut offset = READ_BACK_HEAD;
            let mut waiting = Vec::with_capacity(part.len());
            for Pending { source, offset: from, size, promise } in part {
                if size > 0 {
                    self.encoder.copy_buffer_to_buffer(&source, from, &staging, offset, size);
                }
                waiting.push((promise, offset, size));
                offset += size.next_multiple_of(8);
            }
            readback::schedule(self.encoder, &staging, nonce, waiting);
        }
        Ok(timing)
    }
}

/// Refuses what the device would refuse of a copy, where nobody could answer for it any more.
fn check_copied(
    argument: &'static str,
    slice: &Slice<'_>,
    usage: wgpu::BufferUsages,
    name: &'static str,
) -> Result<()> {
    if !slice.buffer.usage().contains(usage) {
        return Err(Error::BufferUsage { argument, usage: name });
    }
    let fault = |index, got, expected| Err(Error::Offsets { argument, index, got, expected });
    for (index, got) in [slice.offset, slice.size].into_iter().enumerate() {
        if !got.is_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT) {
            return fault(index, got, "a multiple of 4");
        }
    }
    let end = slice.offset.saturating_add(slice.size);
    if end > slice.buffer.size() {
        return fault(1, end, "an end within the buffer");
    }
    Ok(())
}

fn check_slice(binding: Binding, slice: &Slice<'_>, limits: &wgpu::Limits) -> Result<()> {
    let argument = binding.name();
    let constant = matches!(binding, Binding::Constant(_));
    let (usage, name) = if constant {
        (wgpu::BufferUsages::UNIFORM, "UNIFORM")
    } else {
        (wgpu::BufferUsages::STORAGE, "STORAGE")
    };
    if !slice.buffer.usage().contains(usage) {
        return Err(Error::BufferUsage { argument, usage: name });
    }
    let (limit, allowed) = if constant {
        ("max_uniform_buffer_binding_size", limits.max_uniform_buffer_binding_size)
    } else {
        ("max_storage_buffer_binding_size", binding_limit(limits))
    };
    if slice.size > allowed {
        return Err(Error::DeviceLimit { argument, limit, needed: slice.size, allowed });
    }
    let (alignment, aligned) = if constant {
        (
            limits.min_uniform_buffer_offset_alignment,
            "a multiple of min_uniform_buffer_offset_alignment",
        )
    } else {
        (
            limits.min_storage_buffer_offset_alignment,
            "a multiple of min_storage_buffer_offset_alignment",
        )
    };
    let fault = |index, got, expected| Err(Error::Offsets { argument, index, got, expected });
    if !slice.offset.is_multiple_of(u64::from(alignment)) {
        return fault(0, slice.offset, aligned);
    }
    if slice.size == 0 || !slice.size.is_multiple_of(4) {
        return fault(1, slice.size, "a multiple of 4, at least 4");
    }
    if slice.offset.checked_add(slice.size).is_none_or(|end| end > slice.buffer.size()) {
        return fault(1, slice.offset.saturating_add(slice.size), "an end within the buffer");
    }
    Ok(())
}

/// Checks that what a dispatch writes is bound once: no buffer may be read and written by one dispatch,
/// and what is written may not overlap.
fn check_aliases(bindings: &[Binding], slices: &[Slice<'_>]) -> Result<()> {
    let writes = |index: usize| matches!(bindings[index], Binding::Write(_));
    for (index, slice) in slices.iter().enumerate() {
        for (before, other) in slices[..index].iter().enumerate() {
            let argument = bindings[index].name();
            match (writes(before), writes(index)) {
                (false, false) => {}
                (true, true) => slice.check_apart(argument, other)?,
                _ if slice.buffer != other.buffer => {}
                _ => {
                    let expected = "in another buffer than what is written";
                    let got = slice.offset;
                    return Err(Error::Offsets { argument, index, got, expected });
                }
            }
        }
    }
    Ok(())
}

impl Magic {
    /// The constants for a divisor that came as usize.
    pub fn of(divisor: usize) -> Self {
        Self::new(u32::try_from(divisor).unwrap_or(u32::MAX))
    }
}
