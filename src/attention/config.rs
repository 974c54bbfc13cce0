//! Settings of attention.

use crate::error::{Error, Result};

/// What the log of the sum of weights is given as where a query sees no key: the lowest f32. Its
/// output is 0.
pub const NO_KEY: f32 = f32::MIN;

/// Largest size of [`AttendConfig::scale`].
const MAX_SCALE: f32 = 1_048_576.0;

/// Range of [`AttendConfig::soft_cap`].
const CAPS: core::ops::RangeInclusive<f32> = 1.0 / 1_048_576.0..=1_048_576.0;

/// Settings of attention over rows that lie side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttendConfig {
    /// Factor of the dot products; `1 / sqrt(head_dim_k)` where none is given.
    pub scale: Option<f32>,
    /// Position of the first query token for causal attention: query token i stands at `first + i`
    /// and sees the keys whose position is at most that. All keys are seen where none is given.
    pub causal: Option<u32>,
    /// Bends a logit x, the scaled dot product, to `cap * tanh(x / cap)`; from 2^-20 to 2^20.
    pub soft_cap: Option<f32>,
    /// Sliding window of causal attention: a query at position p sees positions above `p - window`
    /// alone; at least 1.
    pub window: Option<u32>,
}

/// Settings of attention over page tables.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PagedAttend<'a> {
    /// As [`AttendConfig::scale`].
    pub scale: Option<f32>,
    /// Which keys a query sees.
    pub causal: Causal<'a>,
    /// As [`AttendConfig::soft_cap`].
    pub soft_cap: Option<f32>,
    /// As [`AttendConfig::window`].
    pub window: Option<u32>,
}

/// Which keys the queries of a batch see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Causal<'a> {
    /// The query tokens of each member are the newest that it has seen, and each sees the keys
    /// whose position is at most its own.
    #[default]
    Newest,
    /// The same for query tokens that stand at these positions and those after, one a member.
    From(&'a [u32]),
    /// Every query sees all keys.
    All,
}

impl AttendConfig {
    /// Checks the settings and returns the factor for keys of `head_dim` channels.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a scale that is not finite or beyond ±2^20.
    pub fn scale_for(&self, head_dim: usize) -> Result<f32> {
        scale_for(self.scale, head_dim)
    }
}

/// The factor of dot products with keys of `head_dim` channels.
pub(super) fn scale_for(scale: Option<f32>, head_dim: usize) -> Result<f32> {
    let scale = scale.unwrap_or((1.0 / (head_dim as f64).sqrt()) as f32);
    let expected = "a finite number from -2^20 to 2^20";
    let got = f64::from(scale);
    let fault = Error::Parameter { argument: "scale", got, expected };
    if scale.abs() <= MAX_SCALE { Ok(scale) } else { Err(fault) }
}

/// Checks a soft cap.
pub(super) fn check_cap(cap: f32) -> Result<f32> {
    let fault = Error::Parameter {
        argument: "soft_cap",
        got: f64::from(cap),
        expected: "a number from 2^-20 to 2^20",
    };
    if CAPS.contains(&cap) { Ok(cap) } else { Err(fault) }
}

/// Checks a sliding window, which needs positions.
pub(super) fn check_window(window: u32, causal: bool) -> Result<u32> {
    if window == 0 {
        return Err(Error::Empty { argument: "window" });
    }
    let (got, expected) = (f64::from(window), "no window where attention is not causal");
    let fault = Error::Parameter { argument: "window", got, expected };
    if causal { Ok(window) } else { Err(fault) }
}
