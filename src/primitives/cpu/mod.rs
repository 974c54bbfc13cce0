//! The CPU path of the shared stages.

pub mod compact;
pub mod gather;
pub mod scan;
pub mod select;
