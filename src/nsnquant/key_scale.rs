//! The key scale: a factor for each channel of the keys of one KV head of one sequence.
//!
//! It is fixed from the first tokens and then belongs to the sequence: a page packed under one scale
//! must be read under the same. Keys are divided by it once their mean is gone; attention multiplies
//! the queries by it instead.
//!
//! The two paths give the same factors to one step of f16. Pages are packed under the f16 factors,
//! so those of two paths, or of two caches, can be compared only where both were given one scale.

use core::ops::RangeInclusive;

use half::f16;

use crate::error::{Error, Result};

/// Chunks that the scale is fixed from, at most.
pub const KEY_SCALE_CHUNKS: usize = 8;

/// The factors that there are; a stored one that is none of them counts as 1.
const FACTORS: RangeInclusive<f32> = 1.0 / 1024.0..=1024.0;

/// Key scales of a list of pages.
#[derive(Clone, Copy, Debug)]
pub struct KeyScales<'a> {
    /// The scales `[scales, head_dim]`.
    pub values: &'a [f16],
    /// Which of them each page is packed under `[pages]`.
    pub of_page: &'a [u32],
}

impl<'a> KeyScales<'a> {
    /// Checks the scales for `pages` pages of `head_dim` channels.
    ///
    /// # Errors
    /// [`Error::HeadDim`]; [`Error::Length`]; [`Error::Offsets`] for a page whose scale is not there;
    /// [`Error::Parameter`] for a factor that is not from 2^-10 to 2^10.
    pub fn check(&self, head_dim: usize, pages: usize) -> Result<()> {
        crate::shape::check_head_dim("head_dim", head_dim)?;
        if !self.values.len().is_multiple_of(head_dim) {
            let expected = crate::shape::next_multiple(self.values.len(), head_dim);
            return Err(Error::Length { argument: "key scale", got: self.values.len(), expected });
        }
        if self.of_page.len() != pages {
            let got = self.of_page.len();
            return Err(Error::Length { argument: "key scale pages", got, expected: pages });
        }
        let scales = self.values.len() / head_dim;
        if let Some(index) = self.of_page.iter().position(|which| *which as usize >= scales) {
            return Err(Error::Offsets {
                argument: "key scale pages",
                index,
                got: u64::from(self.of_page[index]),
                expected: "the number of a scale",
            });
        }
        check_factors(self.values)
    }

    /// The scale of a page.
    pub(super) fn of(&self, page: usize, head_dim: usize) -> &'a [f16] {
        let which = self.of_page[page] as usize;
        &self.values[which * head_dim..(which + 1) * head_dim]
    }
}

/// Refuses factors of a key scale that are not from 2^-10 to 2^10.
///
/// # Errors
/// [`Error::Parameter`].
pub fn check_factors(values: &[f16]) -> Result<()> {
    match values.iter().find(|value| !FACTORS.contains(&value.to_f32())) {
        None => Ok(()),
        Some(value) => Err(Error::Parameter {
            argument: "key scale",
            got: f64::from(value.to_f32()),
            expected: "a number from 2^-10 to 2^10",
        }),
    }
}

/// A stored factor; one that is not from 2^-10 to 2^10, which no encoder made, counts as 1.
pub(crate) fn factor(stored: f16) -> f32 {
    let value = stored.to_f32();
    if FACTORS.contains(&value) { value } else { 1.0 }
}
