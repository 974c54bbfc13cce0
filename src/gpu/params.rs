//! Parameters of a dispatch, and where their slots come from.

use crate::error::Result;

/// Layout of a parameter struct, compared with its WGSL twin by a test.
#[derive(Clone, Copy, Debug)]
pub struct ParamsLayout {
    /// Bytes of the struct.
    pub size: usize,
    /// Name and byte offset of each field, in order; parts come first.
    pub fields: &'static [(&'static str, usize)],
    /// Fields that are structs of their own, shared by several kernels.
    pub parts: &'static [(&'static str, ParamsLayout)],
}

/// A host struct whose twin in WGSL is the struct `Params` of a kernel.
pub trait Params: bytemuck::Pod {
    /// Names and offsets of the fields.
    const LAYOUT: ParamsLayout;
}

/// Declares a parameter struct of u32 and f32 fields together with its [`ParamsLayout`]. Parts, which
/// are such structs of a multiple of 16 bytes, stand before the fields.
macro_rules! params {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $(@part $part:ident: $part_ty:ty,)*
        $($(#[$field_meta:meta])* $field:ident: $ty:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
        $vis struct $name { $(pub $part: $part_ty,)* $($(#[$field_meta])* pub $field: $ty),* }

        impl $crate::gpu::Params for $name {
            const LAYOUT: $crate::gpu::ParamsLayout = $crate::gpu::ParamsLayout {
                size: core::mem::size_of::<$name>(),
                fields: &[
                    $((stringify!($part), core::mem::offset_of!($name, $part)),)*
                    $((stringify!($field), core::mem::offset_of!($name, $field))),*
                ],
                parts: &[$((stringify!($part), <$part_ty as $crate::gpu::Params>::LAYOUT)),*],
            };
        }
    };
}
pub(crate) use params;

/// Division by a number known on the host, as a product and two shifts
/// (`wgsl/common/divide.wgsl`): shaders never divide integers, because Apple's compiler gets some
/// of them wrong. Exact for every 32-bit dividend (Granlund and Montgomery 1994, figure 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Magic {
    /// Factor whose product's upper word is taken.
    pub multiplier: u32,
    /// First shift, in bits: 0 for a divisor of 1, else 1.
    pub shift1: u32,
    /// Second shift, in bits.
    pub shift2: u32,
}

impl Magic {
    /// The constants that divide by `divisor`; a divisor of 0 is taken as 1.
    pub fn new(divisor: u32) -> Self {
        let divisor = divisor.max(1);
        let log = u32::BITS - (divisor - 1).leading_zeros();
        let multiplier =
            ((1u64 << 32) * ((1u64 << log) - u64::from(divisor)) / u64::from(divisor) + 1) as u32;
        Self { multiplier, shift1: log.min(1), shift2: log.saturating_sub(1) }
    }

    /// What the shader computes.
    pub fn divide(self, dividend: u32) -> u32 {
        let high = ((u64::from(self.multiplier) * u64::from(dividend)) >> 32) as u32;
        (high + ((dividend - high) >> self.shift1)) >> self.shift2
    }
}

/// Slots of the parameters of one recording: blocks of mapped uniform memory, one slot a dispatch,
/// so that no later write can reach an earlier dispatch.
pub(super) struct Slots {
    device: wgpu::Device,
    stride: u64,
    block: Option<Block>,
}

struct Block {
    buffer: wgpu::Buffer,
    used: u64,
}

/// Bytes that one slot offers.
pub(super) const SLOT_BYTES: u64 = 256;
const SLOTS_PER_BLOCK: u64 = 64;

impl Slots {
    pub(super) fn new(device: &wgpu::Device) -> Self {
        let align = u64::from(device.limits().min_uniform_buffer_offset_alignment);
        Self { device: device.clone(), stride: SLOT_BYTES.next_multiple_of(align), block: None }
    }

    /// Writes `bytes` to a fresh slot and returns its buffer and offset.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(wgpu::Buffer, u32)> {
        if self.block.as_ref().is_some_and(|block| block.used == SLOTS_PER_BLOCK) {
            self.close();
        }
        let block = match &mut self.block {
            Some(block) => block,
            None => {
                let descriptor = wgpu::BufferDescriptor {
                    label: Some("wgkv parameters"),
                    size: self.stride * SLOTS_PER_BLOCK,
                    usage: wgpu::BufferUsages::UNIFORM,
                    mapped_at_creation: true,
                };
                let buffer = super::buffer::allocate(&self.device, "parameters", &descriptor)?;
                self.block.insert(Block { buffer, used: 0 })
            }
        };
        let offset = block.used * self.stride;
        block.used += 1;
        super::buffer::fill(&block.buffer, offset, bytes)?;
        Ok((block.buffer.clone(), offset as u32))
    }

    /// Ends the writing: the buffers may now be used by a submit.
    pub(super) fn close(&mut self) {
        if let Some(block) = self.block.take() {
            block.buffer.unmap();
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.close();
    }
}
