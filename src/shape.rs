//! Shapes and element types of the tensors that callers hand over.

use half::{bf16, f16};

use crate::error::{Error, Result};

/// Largest head dimension that any stage takes.
pub const MAX_HEAD_DIM: usize = 512;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// The upper half of a 32-bit IEEE float.
    Bf16,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Name of the type: `f32`, `f16` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// The number by which shaders know this type (`wgsl/common/element.wgsl`).
    pub const fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 2,
        }
    }
}

/// A borrowed run of elements of one type.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE halves.
    F16(&'a [f16]),
    /// Brain floats.
    Bf16(&'a [bf16]),
}

impl<'a> Elements<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::F16(x) => x.len(),
            Self::Bf16(x) => x.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::F32,
            Self::F16(_) => Dtype::F16,
            Self::Bf16(_) => Dtype::Bf16,
        }
    }

    /// The elements as they lie in memory.
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            Self::F32(x) => bytemuck::cast_slice(x),
            Self::F16(x) => bytemuck::cast_slice(x),
            Self::Bf16(x) => bytemuck::cast_slice(x),
        }
    }

    /// A part of the elements.
    ///
    /// # Panics
    /// When the range is outside the elements, as slicing does.
    pub fn slice(&self, range: core::ops::Range<usize>) -> Elements<'a> {
        match self {
            Self::F32(x) => Self::F32(&x[range]),
            Self::F16(x) => Self::F16(&x[range]),
            Self::Bf16(x) => Self::Bf16(&x[range]),
        }
    }

    /// One element as f32, exactly as stored (NaN and Inf included).
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Self::F32(x) => x[index],
            Self::F16(x) => x[index].to_f32(),
            Self::Bf16(x) => x[index].to_f32(),
        }
    }

    /// Copies `out.len()` elements from `start` as f32, reading NaN and Inf as 0: the one treatment
    /// of non-finite values in this library. Returns whether there was one.
    pub fn read(&self, start: usize, out: &mut [f32]) -> bool {
        let range = start..start + out.len();
        // Looked for on the stored bits, all at once: the rows that hold one are rare.
        let found = match self {
            Self::F32(x) => {
                out.copy_from_slice(&x[range.clone()]);
                x[range].iter().fold(false, |bad, x| bad | !x.is_finite())
            }
            Self::F16(x) => {
                half::slice::HalfFloatSliceExt::convert_to_f32_slice(&x[range.clone()], out);
                x[range].iter().fold(false, |bad, x| bad | (x.to_bits() & 0x7c00 == 0x7c00))
            }
            Self::Bf16(x) => {
                half::slice::HalfFloatSliceExt::convert_to_f32_slice(&x[range.clone()], out);
                x[range].iter().fold(false, |bad, x| bad | (x.to_bits() & 0x7f80 == 0x7f80))
            }
        };
        if found {
            for value in out {
                *value = if value.is_finite() { *value } else { 0.0 };
            }
        }
        found
    }
}

/// A dense tensor `[rows, tokens, head_dim]`; a row is one KV head of one sequence (B*H rows).
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    data: Elements<'a>,
    rows: usize,
    tokens: usize,
    head_dim: usize,
}

impl<'a> Tensor<'a> {
    /// Checks the shape and takes the elements.
    ///
    /// # Errors
    /// [`Error::Empty`] for a dimension of 0, [`Error::Length`] when the elements do not fill the
    /// shape exactly, [`Error::HeadDim`] for a head dimension that [`check_head_dim`] refuses.
    pub fn new(
        argument: &'static str,
        data: Elements<'a>,
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
        if data.len() != expected {
            return Err(Error::Length { argument, got: data.len(), expected });
        }
        Ok(Self { data, rows, tokens, head_dim })
    }

    /// The elements, row by row.
    pub fn data(&self) -> Elements<'a> {
        self.data
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

/// Checks that a head dimension is one that every stage can take: a multiple of 8, at most
/// [`MAX_HEAD_DIM`], of the form m * 2^k with m in {1, 12, 20, 28} (orders with a Hadamard matrix
/// here).
///
/// # Errors
/// [`Error::HeadDim`] otherwise.
pub fn check_head_dim(argument: &'static str, head_dim: usize) -> Result<()> {
    let of_form = [1, 12, 20, 28]
        .iter()
        .any(|m| head_dim.is_multiple_of(*m) && (head_dim / m).is_power_of_two());
    if of_form && head_dim.is_multiple_of(8) && head_dim <= MAX_HEAD_DIM {
        Ok(())
    } else {
        Err(Error::HeadDim { argument, got: head_dim })
    }
}

/// The next multiple of `of`, for messages: sizes from outside may have none that fits.
pub(crate) fn next_multiple(n: usize, of: usize) -> usize {
    n.checked_next_multiple_of(of).unwrap_or(usize::MAX)
}

/// Checks a list of offsets: `rows + 1` entries, from 0, never decreasing, ending at `total`.
///
/// # Errors
/// [`Error::Length`] or [`Error::Offsets`].
pub fn check_offsets(
    argument: &'static str,
    offsets: &[u32],
    rows: usize,
    total: usize,
) -> Result<()> {
    if offsets.len().checked_sub(1) != Some(rows) {
        let expected = rows.saturating_add(1);
        return Err(Error::Length { argument, got: offsets.len(), expected });
    }
    let fault = |index: usize, expected| {
        Err(Error::Offsets { argument, index, got: u64::from(offsets[index]), expected })
    };
    if offsets[0] != 0 {
        return fault(0, "0");
    }
    if let Some(index) = (1..offsets.len()).find(|&i| offsets[i] < offsets[i - 1]) {
        return fault(index, "no less than the entry before");
    }
    if offsets[rows] as usize != total {
        return fault(rows, "the number of token rows");
    }
    Ok(())
}

/// Checks that a product of sizes fits 32 bits, by which shaders count.
///
/// # Errors
/// [`Error::OutOfRange`].
pub fn check_count(argument: &'static str, factors: &[usize]) -> Result<usize> {
    let product = factors.iter().try_fold(1u64, |product, &f| product.checked_mul(f as u64));
    let max = u64::from(u32::MAX);
    match product {
        Some(count) if count <= max => Ok(count as usize),
        _ => Err(Error::OutOfRange { argument, got: product.unwrap_or(u64::MAX), min: 0, max }),
    }
}
