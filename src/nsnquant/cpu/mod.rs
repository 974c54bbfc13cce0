//! The stages on the CPU. With the feature `parallel` pages are shared out over threads; a page is
//! made by one thread in a fixed order, so the result does not depend on how many there are.

mod decode;
mod encode;
mod key_scale;
mod squares;

pub use decode::{decode, decode_at, decode_page, decode_scaled};
pub use encode::{Analysis, analyse, encode, encode_at, encode_scaled};
pub use key_scale::{fix, key_scale};
pub use squares::squares;
