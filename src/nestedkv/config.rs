//! What can be set, with the paper's values as defaults.

use crate::error::{Error, Result};
use crate::shape::next_multiple;

/// Largest magnitude of `beta`, `tau` and `kappa`: beyond it the exponentials of f32 say nothing.
const MAX_GAIN: f32 = 1e6;

/// Constants of the score (arXiv 2605.26678, appendix A).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreConfig {
    /// Tokens of the trailing window (step 2), itself included; at least 1. Default 64.
    pub window: u32,
    /// Weight of a scale's gap in the blend (step 6). Default 3.
    pub beta: f32,
    /// Surprise at which the gate is half open (step 8). Default 0.6.
    pub tau: f32,
    /// Steepness of the gate (step 8). Default 10.
    pub kappa: f32,
    /// Prior weights of the stable, episodic and current scale, each above 0. Default 0.4, 0.4, 0.2.
    pub prior: [f32; 3],
    /// Whether surprise below the mean counts as the mean (the paper's text; its code and the
    /// default do not).
    pub rectify: bool,
}

impl Default for ScoreConfig {
    fn default() -> Self {
        Self {
            window: 64,
            beta: 3.0,
            tau: 0.6,
            kappa: 10.0,
            prior: [0.4, 0.4, 0.2],
            rectify: false,
        }
    }
}

impl ScoreConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a window of 0; [`Error::Parameter`] for a constant that is not
    /// finite or beyond 1e6 in magnitude, and for a prior that is not within 1e-6 to 1e6.
    pub fn validate(&self) -> Result<()> {
        if self.window == 0 {
            return Err(Error::OutOfRange {
                argument: "window",
                got: 0,
                min: 1,
                max: u64::from(u32::MAX),
            });
        }
        for (argument, value) in [("beta", self.beta), ("tau", self.tau), ("kappa", self.kappa)] {
            if !value.is_finite() || value.abs() > MAX_GAIN {
                return Err(Error::Parameter {
                    argument,
                    got: f64::from(value),
                    expected: "a number from -1e6 to 1e6",
                });
            }
        }
        for value in self.prior {
            if !value.is_finite() || !(1e-6..=MAX_GAIN).contains(&value) {
                return Err(Error::Parameter {
                    argument: "prior",
                    got: f64::from(value),
                    expected: "numbers from 1e-6 to 1e6",
                });
            }
        }
        Ok(())
    }
}

/// How many tokens of a prompt stay, sinks counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// So many tokens in every row (KV head of a sequence).
    Uniform(u32),
    /// `per_head * heads` tokens in the `heads` rows of each sequence, shared out by score (arXiv
    /// 2605.26678, appendix A).
    Adaptive {
        /// Tokens a row on average.
        per_head: u32,
        /// KV heads of a sequence: consecutive rows.
        heads: usize,
    },
}

/// Everything that decides which tokens stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictConfig {
    /// Constants of the score.
    pub score: ScoreConfig,
    /// How many tokens stay, sinks included.
    pub budget: Budget,
    /// First tokens of each row, which always stay, even beyond the budget. Default 4.
    pub sinks: u32,
    /// Share of a row's even budget that the row is sure of when budgets are adaptive (appendix A).
    /// Default 0.2.
    pub safeguard: f64,
}

impl EvictConfig {
    /// The paper's constants with this budget.
    pub fn new(budget: Budget) -> Self {
        Self { score: ScoreConfig::default(), budget, sinks: 4, safeguard: 0.2 }
    }

    /// Checks every field against the number of rows.
    ///
    /// # Errors
    /// As [`ScoreConfig::validate`]; [`Error::Parameter`] for a safeguard outside 0 to 1;
    /// [`Error::Empty`] for no heads; [`Error::Mismatch`] when the rows are no multiple of the heads.
    pub fn validate(&self, rows: usize) -> Result<()> {
        self.score.validate()?;
        check_safeguard(self.safeguard)?;
        if let Budget::Adaptive { heads, .. } = self.budget {
            if heads == 0 {
                return Err(Error::Empty { argument: "heads" });
            }
            if !rows.is_multiple_of(heads) {
                return Err(Error::Mismatch {
                    argument: "rows",
                    got: rows,
                    expected: next_multiple(rows, heads),
                    reference: "whole sequences of heads",
                });
            }
        }
        Ok(())
    }
}

pub(crate) fn check_safeguard(safeguard: f64) -> Result<()> {
    if (0.0..=1.0).contains(&safeguard) {
        Ok(())
    } else {
        Err(Error::Parameter {
            argument: "safeguard",
            got: safeguard,
            expected: "a number from 0 to 1",
        })
    }
}
