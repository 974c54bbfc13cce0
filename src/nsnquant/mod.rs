//! NSNQuant (arXiv 2505.18231): chunks of tokens packed to 1 or 2 bits a value.
//!
//! A chunk is normalised token by token, centred channel by channel and normalised again, which
//! leaves rows that a Hadamard transform makes close to standard normal whatever the model; so one
//! codebook, trained on normal samples alone, serves every layer. The chunk stands alone: its page
//! depends on its own tokens and on nothing else.
//!
//! [`cpu`] says what is right; [`gpu`] records the same stages, in the same order of arithmetic.
//! Scales and means of the two differ by at most one step of f16, and codes only where two choices
//! are closer than rounding, about 2e-6 before the second division. Rows that hardly differ from the
//! chunk's mean (`s2` below 0.001) are divided up to rounding noise: there codes may differ freely,
//! and what they restore differs by no more than that noise.
//!
//! What comes back differs from what went in by at most `2 s1 s2 sqrt(d)` a token, and the rounding of
//! the scales ([`crate::layout::encode_scale`]) and means (f16). Tokens close to normal come back
//! with a relative error of about 0.34 at 2 bits and 0.57 at 1 bit.

mod codebook;
mod codec;
mod codes;
pub mod cpu;
pub mod gpu;
mod hadamard;
mod key_scale;
mod params;
mod rope;

pub use codebook::{Book, Codebook};
pub use codec::{Codec, assigned_avg_bits};
pub use codes::Codes;
pub use hadamard::Hadamard;
pub use key_scale::{KeyScales, key_scale};
pub use rope::{Pairing, Rope};

pub use crate::layout::{Gain, MeanDomain, Profile, Scheme};
