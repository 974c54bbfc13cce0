//! What a case compares, and what came of it.

use core::fmt::Debug;

use serde::Serialize;

/// The comparison of floats that came closest to its tolerance, or went beyond it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// What was compared.
    pub what: String,
    /// Difference found; an infinite one, of NaN or Inf, reads as the largest number.
    pub error: f64,
    /// Difference allowed there.
    pub tolerance: f64,
}

impl Worst {
    /// The error as a share of the tolerance.
    pub fn ratio(&self) -> f64 {
        self.error / self.tolerance.max(f64::MIN_POSITIVE)
    }
}

/// What came of a case: how much was compared, and what failed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Numbers compared.
    pub compared: u64,
    /// The worst comparison of floats, if any was made.
    pub worst: Option<Worst>,
    /// The first thing that was not as it should be.
    pub failure: Option<String>,
}

/// The account of a case while it runs.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    outcome: Outcome,
}

impl Checks {
    /// What came of the case, given how it ended.
    pub fn end(mut self, ended: crate::Result<()>) -> Outcome {
        if let Err(error) = ended {
            self.outcome.failure.get_or_insert_with(|| error.to_string());
        }
        if self.outcome.failure.is_none() && self.outcome.compared == 0 {
            self.outcome.failure = Some("nothing was compared".into());
        }
        self.outcome
    }

    pub fn fail(&mut self, what: impl FnOnce() -> String) {
        self.outcome.failure.get_or_insert_with(what);
    }

    /// Something that must be so.
    pub fn hold(&mut self, so: bool, what: impl FnOnce() -> String) {
        self.outcome.compared += 1;
        if !so {
            self.fail(what);
        }
    }

    /// Two lists that must be the same.
    pub fn equal<T: PartialEq + Debug>(&mut self, what: &str, got: &[T], want: &[T]) {
        self.outcome.compared += want.len() as u64 + 1;
        if got.len() != want.len() {
            return self.fail(|| format!("{what}: {} items, expected {}", got.len(), want.len()));
        }
        if let Some(at) = got.iter().zip(want).position(|(got, want)| got != want) {
            self.fail(|| format!("{what} [{at}]: {:?}, expected {:?}", got[at], want[at]));
        }
    }

    /// Two numbers that may differ by `tolerance`.
    pub fn near(&mut self, what: &str, at: usize, got: f64, want: f64, tolerance: f64) {
        self.outcome.compared += 1;
        let error = if got == want { 0.0 } else { (got - want).abs() };
        let error = if error.is_finite() { error } else { f64::MAX };
        let ratio = error / tolerance.max(f64::MIN_POSITIVE);
        if self.outcome.worst.as_ref().is_none_or(|worst| ratio > worst.ratio()) {
            self.outcome.worst = Some(Worst { what: what.into(), error, tolerance });
        }
        if error > tolerance {
            self.fail(|| {
                format!("{what} [{at}]: {got:e}, expected {want:e} within {tolerance:.1e}")
            });
        }
    }

    /// Two lists whose items may differ by `tolerance`.
    pub fn close(&mut self, what: &str, got: &[f32], want: &[f32], tolerance: f64) {
        self.equal(&format!("{what} count"), &[got.len()], &[want.len()]);
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            self.near(what, at, f64::from(*got), f64::from(*want), tolerance);
        }
    }
}
