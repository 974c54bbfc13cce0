//! The GPU path of the shared stages. Nothing here submits or waits.

pub mod compact;
pub mod gather;
pub mod scan;
pub mod select;

use crate::error::{Error, Result};
use crate::gpu::{Kernel, Variant};

/// Every kernel of this folder with its variants.
pub fn kernels() -> Vec<(&'static Kernel, Vec<Variant>)> {
    vec![
        (&select::KERNEL, lane_variants()),
        (&compact::KERNEL, lane_variants()),
        (&scan::KERNEL, vec![Variant::default()]),
        (&gather::KERNEL, vec![Variant::default()]),
    ]
}

/// Rows up to this length get a workgroup of 64 lanes, longer ones of 256.
const SHORT_ROW: usize = 1024;

/// The variant of a kernel that gives each row of `tokens` tokens a workgroup.
pub(crate) fn lanes(tokens: usize) -> Variant {
    let lanes = if tokens <= SHORT_ROW { 64 } else { 256 };
    Variant { constants: Vec::new(), overrides: vec![("WG", lanes)] }
}

/// Every variant that [`lanes`] chooses from.
pub(crate) fn lane_variants() -> Vec<Variant> {
    vec![lanes(1), lanes(SHORT_ROW + 1)]
}

/// Scores as the kernels count them.
pub(crate) fn size(argument: &'static str, value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::OutOfRange {
        argument,
        got: value as u64,
        min: 0,
        max: u64::from(u32::MAX),
    })
}

/// Refuses a slice that is shorter than `expected` words.
pub(crate) fn check_words(argument: &'static str, size: u64, expected: usize) -> Result<()> {
    if size / 4 < expected as u64 {
        return Err(Error::Length { argument, got: (size / 4) as usize, expected });
    }
    Ok(())
}
