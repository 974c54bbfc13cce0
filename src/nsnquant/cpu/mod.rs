//! The stages on the CPU. With the feature `parallel` pages are shared out over threads; a page is
//! made by one thread in a fixed order, so the result does not depend on how many there are.

mod decode;
mod encode;

pub use decode::{decode, decode_at, decode_page, decode_scaled};
pub use encode::{Analysis, analyse, encode, encode_at, encode_scaled};
