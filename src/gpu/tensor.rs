//! Tensors in device memory.

use super::buffer::Slice;
use crate::error::{Error, Result};
use crate::shape::{Dtype, check_head_dim};

/// A dense tensor `[rows, tokens, head_dim]` in device memory; a row is one KV head of one sequence
/// (B*H rows). The twin of [`crate::shape::Tensor`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceTensor<'a> {
    slice: Slice<'a>,
    dtype: Dtype,
    rows: usize,
    tokens: usize,
    head_dim: usize,
}

impl<'a> DeviceTensor<'a> {
    /// Checks the shape and takes the slice, which may be longer than the tensor.
    ///
    /// # Errors
    /// [`Error::Empty`] for a dimension of 0, [`Error::HeadDim`] for a head dimension that
    /// [`check_head_dim`] refuses, [`Error::Length`] when the slice is shorter than the shape says,
    /// [`Error::OutOfRange`] for 2^32 elements or more, [`Error::BufferUsage`] for a buffer without
    /// `STORAGE`.
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
        let expected =
            rows.checked_mul(tokens).and_then(|n| n.checked_mul(head_dim)).unwrap_or(usize::MAX);
        let got = usize::try_from(slice.size / dtype.bytes() as u64).unwrap_or(usize::MAX);
        if got < expected {
            return Err(Error::Length { argument, got, expected });
        }
        // Kernels index elements with 32 bits.
        if expected > u32::MAX as usize {
            let (got, max) = (expected as u64, u64::from(u32::MAX));
            return Err(Error::OutOfRange { argument, got, min: 1, max });
        }
        if !slice.buffer.usage().contains(wgpu::BufferUsages::STORAGE) {
            return Err(Error::BufferUsage { argument, usage: "STORAGE" });
        }
        Ok(Self { slice, dtype, rows, tokens, head_dim })
    }

    /// Where the elements lie, row by row.
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
