//! Tensors in device memory.

use super::buffer::Slice;
use crate::error::{Error, Result};
use crate::shape::{Dtype, check_head_dim};

/// A dense tensor `[rows, tokens, head_dim]` in a buffer: [`crate::shape::Tensor`] on the device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTensor<'a> {
    slice: Slice<'a>,
    dtype: Dtype,
    rows: usize,
    tokens: usize,
    head_dim: usize,
}

impl<'a> DeviceTensor<'a> {
    /// Checks the shape and takes the slice.
    ///
    /// # Errors
    /// [`Error::Empty`] for a dimension of 0; [`Error::HeadDim`]; [`Error::Length`] when the slice
    /// has not the bytes of the shape; [`Error::OutOfRange`] for 2^32 elements or more.
    pub fn new(
        argument: &'static str,
        slice: Slice<'a>,
        dtype: Dtype,
        rows: usize,
        tokens: usize,
        head_dim: usize,
    ) -> Result<Self> {
        if rows == 0 || tokens == 0 {
            return Err(Error::Empty { argument });
        }
        check_head_dim(argument, head_dim)?;
        let elements = rows
            .checked_mul(tokens)
            .and_then(|n| n.checked_mul(head_dim))
            .map_or(u64::MAX, |n| n as u64);
        let max = u64::from(u32::MAX);
        if elements > max {
            return Err(Error::OutOfRange { argument, got: elements, min: 1, max });
        }
        let bytes = elements * dtype.bytes() as u64;
        if slice.size != bytes {
            return Err(Error::Length {
                argument,
                got: slice.size as usize / dtype.bytes(),
                expected: elements as usize,
            });
        }
        Ok(Self { slice, dtype, rows, tokens, head_dim })
    }

    /// Where the elements lie.
    pub fn slice(&self) -> Slice<'a> {
        self.slice
    }

    /// Type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Rows: sequences times KV heads.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Tokens of each row.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Channels of each token.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }
}
