//! The stages on the GPU: they record into the caller's encoder and never submit, poll or wait.

mod decode;
mod device;
mod encode;

pub(crate) use decode::variant_for as decode_variant;
pub use decode::{decode, decode_at, kernel as decode_kernel, variants as decode_variants};
pub(crate) use device::rope_fours;
pub use device::{DeviceCodebook, DeviceCodec, hadamard_constants};
pub(crate) use encode::variant_for as encode_variant;
pub use encode::{encode, encode_at, kernel as encode_kernel, variants as encode_variants};
