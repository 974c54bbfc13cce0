//! The GPU path of the shared stages. Nothing here submits or waits.

pub mod compact;
pub mod gather;
pub mod scan;
pub mod select;

use crate::error::{Error, Result};
use crate::gpu::{Kernel, Variant};

/// Every kernel of this folder with its variants.
pub fn kernels() -> Vec<(&'static Kernel, Vec<Variant>)> {
    let pairs = select::kernels().into_iter().chain(compact::kernels());
    let others = [&scan::KERNEL, &gather::KERNEL];
    let plain = pairs.chain(others).map(|kernel| (kernel, vec![Variant::default()]));
    let (short, variant) = select::short();
    plain.chain([(short, vec![variant])]).collect()
}

/// Tokens of a row that a workgroup takes, in kernels that count or compact.
pub(crate) const SPAN: usize = 4096;

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
