//! NSNQuant (arXiv 2505.18231): chunks of tokens packed to 1 to 4 bits a value.
//!
//! A chunk is normalised token by token, centred channel by channel and normalised again, which
//! leaves rows that a Hadamard transform makes close to standard normal whatever the model; so one
//! codebook, trained on normal samples alone, serves every layer. The chunk stands alone: its page
//! depends on its own tokens and on nothing else.
//!
//! # Steps
//! A chunk `x` `[r, d]` of one KV head, keys or values. Steps 1 to 5 are those of arXiv 2505.18231
//! (Normalize, Shift, Normalize, a Hadamard transform, one codebook for all); [`Profile`] says which of a
//! step's forms is the paper's and which this library's.
//!
//! 1. `s1[t] = max(|x_t| / sqrt(d), 1e-8)`; token t is divided by it.
//! 2. `o[c]` is the mean of channel c over the chunk and is taken off. With a rotary embedding taken off
//!    ([`Codec::with_rope`], the paper's way with keys) the mean is that of the tokens turned back.
//!    Key scales ([`KeyScales`], this library's) divide what is left.
//! 3. `s2[t] = max(|x_t| / sqrt(d), 1e-8)`; token t is divided by it.
//! 4. `y = H x`, with a normalised Hadamard matrix ([`Hadamard`]).
//! 5. Pieces of 2 to 8 channels of `y` become the number of the nearest entry `c` of a book ([`Codebook`]).
//! 6. A gain for the length that this costs goes into `s2` or into decoding ([`Gain`]).
//!
//! Decoding is `s1 * (s2 * H^T c + o)`.
//!
//! [`cpu`] says what is right; [`gpu`] records the same stages, in the same order of arithmetic.
//! Scales and means of the two differ by at most one step of f16, and codes only where two choices
//! are closer than rounding, about 2e-6 before the second division. Rows that hardly differ from the
//! chunk's mean (`s2` below 0.001) are divided up to rounding noise: there codes may differ freely,
//! and what they restore differs by no more than that noise.
//!
//! # How far off
//!
//! Whatever the chunk, no value that comes back is a NaN or an infinity, and a token is off by at most
//! `s1 (1 + g) s2 sqrt(d)`, where `s2 sqrt(d)` is the length of what its chunk's mean leaves of it over
//! `s1`, and g is how much longer its codes can get:
//! 1 with [`Gain::TokenNorm`] and [`Gain::NormPreserving`]; with [`Gain::Unbiased`] 4 in unit books
//! and `4 sqrt(1/2 + m^2 / w)` in plain ones (2.8 to 3.1), m being the norm of the shortest
//! row and w its channels. To that comes the rounding of what is stored after it was used: of
//! [`crate::layout::encode_scale`] and of f16 with [`Metadata::Half`](crate::layout::Metadata::Half).
//! With [`Metadata::Four`](crate::layout::Metadata::Four) `s1` and `o` are those that are stored, g
//! grows by half a step of the grid of `s2`, at most 2^0.42, and a token whose second scale is below
//! 2^-10 of the chunk's largest gets codes of that length. With
//! [`Metadata::Linear`](crate::layout::Metadata::Linear) `s1` and `o` are those that are stored, so that
//! a token whose norm is below 1/32 of the chunk's largest has that `s1`, and `s2` is f16; a chunk whose
//! norms are all below 2^-25 comes back as zeros.
//!
//! A codec that knows the keys' rotary embedding ([`Codec::with_rope`]) takes the mean of the keys
//! turned back from their positions; all the above holds with that mean turned to each token's
//! position.
//!
//! Tokens close to normal are far from that: their relative error is about 0.59 at 1 bit and 0.35 at 2
//! in unit books (0.7 and 0.37 with [`Gain::Unbiased`]), and 0.68, 0.32, 0.17 and 0.09 at 1 to 4 bits in plain
//! ones with their gains (keys, which keep their norm, 0.59 at 1 bit).

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
pub use cpu::key_scale;
pub use hadamard::Hadamard;
pub use key_scale::{KEY_SCALE_CHUNKS, KeyScales, check_factors};
pub use rope::{Pairing, Rope};

pub use crate::layout::{Gain, MeanDomain, Profile, Scheme};
