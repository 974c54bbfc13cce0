//! The stages on the GPU: they record into the caller's encoder and never submit, poll or wait.

mod coarse;
mod decode;
mod device;
mod encode;
mod key_scale;
mod squares;

pub(crate) use decode::variant_for as decode_variant;
pub use decode::{
    decode, decode_at, decode_scaled, kernel as decode_kernel, variants as decode_variants,
};
pub(crate) use device::rope_fours;
pub use device::{DeviceCodebook, DeviceCodec, DeviceKeyScales, hadamard_constants};
pub(crate) use encode::variant_for as encode_variant;
pub use encode::{
    encode, encode_at, encode_scaled, kernel as encode_kernel, variants as encode_variants,
};
pub use key_scale::{fix, kernel as key_scale_kernel, key_scale, variants as key_scale_variants};
pub use squares::{Part, kernel as squares_kernel, squares, variants as squares_variants};
