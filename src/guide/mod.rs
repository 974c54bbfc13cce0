//! Pages to read: what to choose, how an engine uses the library, and what it computes.
//!
//! - [`choosing`]: bits, chunk, raw rows and budgets, what each costs, and where nothing was measured.
//! - [`engines`]: for authors of engines, from adopting the device to one decode step.
//! - [`method`]: the mathematics in words, stage by stage, with sources.

pub mod choosing;
pub mod engines;
pub mod method;
