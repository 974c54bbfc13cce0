//! NSNQuant (arXiv 2505.18231): chunks of tokens packed to 1 or 2 bits a value.
//!
//! A chunk is normalised token by token, centred channel by channel and normalised again, which
//! leaves rows that a Hadamard transform makes close to standard normal whatever the model; so one
//! codebook, trained on normal samples alone, serves every layer. The chunk stands alone: its page
//! depends on its own tokens and on nothing else.
//!
//! [`cpu`] says what is right; [`gpu`] records the same stages, in the same order of arithmetic.

mod codebook;
mod codec;
mod codes;
pub mod cpu;
pub mod gpu;
mod hadamard;
mod params;

pub use codebook::Codebook;
pub use codec::{Codec, assigned_avg_bits};
pub use codes::Codes;
pub use hadamard::Hadamard;
