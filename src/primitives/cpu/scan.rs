//! Offsets from counts.

use crate::error::{Error, Result};

/// Running sums of `counts`, from 0 to the total: `counts.len() + 1` entries.
///
/// # Errors
/// [`Error::OutOfRange`] when the total exceeds `u32::MAX`.
pub fn offsets(argument: &'static str, counts: &[u32]) -> Result<Vec<u32>> {
    let mut total = 0u64;
    let mut offsets = Vec::with_capacity(counts.len() + 1);
    offsets.push(0);
    for &count in counts {
        total += u64::from(count);
        let end = u32::try_from(total).map_err(|_| Error::OutOfRange {
            argument,
            got: total,
            min: 0,
            max: u64::from(u32::MAX),
        })?;
        offsets.push(end);
    }
    Ok(offsets)
}
