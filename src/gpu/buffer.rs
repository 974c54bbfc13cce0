//! Buffers: views of the caller's, and our own.

use core::future::Future;

use super::requirements::binding_limit;
use crate::error::{Error, Result};

/// A part of a buffer that a kernel reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    /// The buffer; it needs the usage `STORAGE`.
    pub buffer: &'a wgpu::Buffer,
    /// First byte, a multiple of the device's `min_storage_buffer_offset_alignment`.
    pub offset: u64,
    /// Bytes, a multiple of 4.
    pub size: u64,
}

impl<'a> Slice<'a> {
    /// The whole buffer.
    pub fn all(buffer: &'a wgpu::Buffer) -> Self {
        Self { buffer, offset: 0, size: buffer.size() }
    }

    /// Checks that this shares no byte with another slice.
    pub(crate) fn check_apart(&self, argument: &'static str, other: &Self) -> Result<()> {
        let end = |slice: &Self| slice.offset.saturating_add(slice.size);
        let apart = self.offset >= end(other) || other.offset >= end(self);
        if self.buffer != other.buffer || apart {
            return Ok(());
        }
        let expected = "apart from what else is written";
        Err(Error::Offsets { argument, index: 0, got: self.offset, expected })
    }
}

impl<'a> From<&'a wgpu::Buffer> for Slice<'a> {
    fn from(buffer: &'a wgpu::Buffer) -> Self {
        Self::all(buffer)
    }
}

/// Makes a storage buffer that holds `bytes`, padded with zeros to a multiple of 4.
///
/// # Errors
/// [`Error::DeviceLimit`] when the device allows no buffer or binding of this size;
/// [`Error::OutOfDeviceMemory`].
pub fn upload(device: &wgpu::Device, label: &'static str, bytes: &[u8]) -> Result<wgpu::Buffer> {
    upload_as(device, label, bytes, storage_usage())
}

/// As [`upload`], with the usages that the buffer is made with.
pub(super) fn upload_as(
    device: &wgpu::Device,
    label: &'static str,
    bytes: &[u8],
    usage: wgpu::BufferUsages,
) -> Result<wgpu::Buffer> {
    let size = (bytes.len() as u64).next_multiple_of(4).max(4);
    check_size(device, label, size)?;
    let descriptor =
        wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: true };
    let buffer = allocate(device, label, &descriptor)?;
    fill(&buffer, 0, bytes)?;
    buffer.unmap();
    Ok(buffer)
}

/// Makes an empty storage buffer of at least 4 bytes.
pub(super) fn create(
    device: &wgpu::Device,
    label: &'static str,
    size: u64,
) -> Result<wgpu::Buffer> {
    let size = size.checked_next_multiple_of(4).unwrap_or(u64::MAX).max(4);
    check_size(device, label, size)?;
    let usage = storage_usage();
    let descriptor =
        wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
    allocate(device, label, &descriptor)
}

/// Makes a buffer, or says that the device has no memory for it. Natively the answer is there at
/// once; a browser's comes later, through the device's own error handling.
pub(super) fn allocate(
    device: &wgpu::Device,
    argument: &'static str,
    descriptor: &wgpu::BufferDescriptor<'_>,
) -> Result<wgpu::Buffer> {
    let scope = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let buffer = device.create_buffer(descriptor);
    let answer = core::pin::pin!(scope.pop());
    match answer.poll(&mut core::task::Context::from_waker(core::task::Waker::noop())) {
        core::task::Poll::Ready(Some(_)) => {
            Err(Error::OutOfDeviceMemory { argument, needed: descriptor.size })
        }
        _ => Ok(buffer),
    }
}

/// Notices a lost device, of which wgpu tells nobody but the device's owner: nothing can be mapped.
pub(super) fn probe(device: &wgpu::Device) -> Result<()> {
    let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
    let descriptor = wgpu::BufferDescriptor {
        label: Some("wgkv probe"),
        size: 8,
        usage,
        mapped_at_creation: true,
    };
    fill(&allocate(device, "probe", &descriptor)?, 0, &[0; 8])
}

pub(super) fn storage_usage() -> wgpu::BufferUsages {
    wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST
}

fn check_size(device: &wgpu::Device, argument: &'static str, needed: u64) -> Result<()> {
    let limits = device.limits();
    let allowed = binding_limit(&limits);
    if needed > allowed {
        return Err(Error::DeviceLimit {
            argument,
            limit: "max_storage_buffer_binding_size",
            needed,
            allowed,
        });
    }
    if needed > limits.max_buffer_size {
        return Err(Error::DeviceLimit {
            argument,
            limit: "max_buffer_size",
            needed,
            allowed: limits.max_buffer_size,
        });
    }
    Ok(())
}

/// Writes to a buffer that is still mapped from its creation.
pub(super) fn fill(buffer: &wgpu::Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
    let whole = bytes.len() / 4 * 4;
    let lost = |e: wgpu::MapRangeError| Error::DeviceLost { reason: e.to_string() };
    if whole > 0 {
        let range = offset..offset + whole as u64;
        buffer.get_mapped_range_mut(range).map_err(lost)?.copy_from_slice(&bytes[..whole]);
    }
    if whole < bytes.len() {
        let mut last = [0; 4];
        last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
        let start = offset + whole as u64;
        // Mapped ranges must start at a multiple of 8, so the last word comes with its neighbour.
        let aligned = start / 8 * 8;
        let mut pair = [0; 8];
        let skip = (start - aligned) as usize;
        if skip == 4 {
            pair[..4].copy_from_slice(&bytes[whole - 4..whole]);
        }
        pair[skip..skip + 4].copy_from_slice(&last);
        let end = (aligned + 8).min(buffer.size());
        buffer
            .get_mapped_range_mut(aligned..end)
            .map_err(lost)?
            .copy_from_slice(&pair[..(end - aligned) as usize]);
    }
    Ok(())
}
