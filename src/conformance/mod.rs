//! Whether a device computes what it should: every stage on the GPU against the CPU path and the
//! f64 [`crate::judge`], on reference cases and on random ones.
//!
//! A [`Suite`] hands out cases one after the other and keeps the account; the caller runs each on a
//! [`Context`] of its own device and tells the suite what came of it. A case is an `async` call: it
//! records, submits to the context's queue and awaits its read-backs, so a browser awaits it as it
//! is, and a native caller has [`wait`] poll the device meanwhile. Nothing blocks by itself.
//!
//! ```no_run
//! # fn conform(context: &wgkv::gpu::Context) -> wgkv::Result<()> {
//! use wgkv::conformance::{Config, Suite, wait};
//!
//! let mut suite = Suite::new(&Config { cases: 4, ..Config::default() })?;
//! while let Some(case) = suite.next_case() {
//!     let outcome = wait(context, case.run(context));
//!     suite.add(&case, outcome);
//! }
//! let report = suite.report(context);
//! assert!(report.passed(), "{}", report.to_json());
//! # Ok(())
//! # }
//! ```
//!
//! Selections, copies and integers are compared bit for bit; floats within the tolerance that each
//! stage states in the report. A [`Case`] depends on its stage, its seed and the version of this
//! crate alone, so that [`Case::to_json`] is all that it takes to run it again elsewhere.
//!
//! Reference cases come with the crate (`tests/data`). Covering cases go through the variants of the
//! kernels; what the device's features do not offer is not built, and the report lists the kernels'
//! variants that ran.

mod case;
mod checks;
mod draw;
mod faults;
mod reference;
mod report;
mod run;
mod stages;
mod suite;

pub use case::Case;
pub use checks::{Outcome, Worst};
pub use faults::with_faults;
pub use report::{KernelReport, Report, StageReport};
#[cfg(not(target_arch = "wasm32"))]
pub use run::wait;
pub use suite::{Config, Fixed, Suite, stages};

#[allow(unused_imports, reason = "the documentation links to it")]
use crate::gpu::Context;
