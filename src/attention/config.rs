//! Settings of attention.

use crate::error::{Error, Result};

/// What the log of the sum of weights is given as where a query sees no key: the lowest f32. Its
/// output is 0.
pub const NO_KEY: f32 = f32::MIN;

/// Largest size of [`AttendConfig::scale`].
const MAX_SCALE: f32 = 1_048_576.0;

/// Settings of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttendConfig {
    /// Factor of the dot products; `1 / sqrt(head_dim_k)` where none is given.
    pub scale: Option<f32>,
    /// Position of the first query token for causal attention: query token i stands at `first + i`
    /// and sees the keys whose position is at most that. All keys are seen where none is given.
    pub causal: Option<u32>,
}

impl AttendConfig {
    /// Checks the settings and returns the factor for keys of `head_dim` channels.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a scale that is not finite or beyond ±2^20.
    pub fn scale_for(&self, head_dim: usize) -> Result<f32> {
        let scale = self.scale.unwrap_or((1.0 / (head_dim as f64).sqrt()) as f32);
        if scale.abs() <= MAX_SCALE {
            Ok(scale)
        } else {
            Err(Error::Parameter {
                argument: "scale",
                got: f64::from(scale),
                expected: "a finite number from -2^20 to 2^20",
            })
        }
    }
}
