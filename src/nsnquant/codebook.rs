//! The two books of 256 centroids.

use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::layout::{Bits, CODEBOOK_ROWS, PIECE};

const VALUES: usize = CODEBOOK_ROWS * PIECE;
/// How far the norm of a centroid may be from 1.
const NORM_SLACK: f64 = 1e-3;

/// The project's own books, made by `tools/train_codebook`: 256 signed centroids, then 256 positive
/// ones, f32, little-endian.
static BUILTIN: &[u8; 2 * VALUES * 4] = include_bytes!("codebook.bin");

/// 256 unit centroids of 8 channels for each rate (arXiv 2505.18231, section 4.2): signed ones for
/// 1 bit, positive ones for 2 bits, where the signs are stored beside the index.
#[derive(Clone, Debug, PartialEq)]
pub struct Codebook {
    signed: Vec<f32>,
    magnitude: Vec<f32>,
    /// The same books as the search reads them.
    blocks: [Vec<Block>; 2],
}

/// Centroids that are searched side by side: as many as a baseline vector register holds.
pub(super) const LANES: usize = 4;
/// A block of centroids, channel first.
pub(super) type Block = [[f32; LANES]; PIECE];

impl Codebook {
    /// Takes two books `[256, 8]`, row by row.
    ///
    /// # Errors
    /// [`Error::Length`] when a book does not hold 256 * 8 values; [`Error::Codebook`] for a row
    /// that is not finite or whose norm is further than 0.001 from 1.
    pub fn new(signed: &[f32], magnitude: &[f32]) -> Result<Self> {
        check("codebook_signed", signed)?;
        check("codebook_magnitude", magnitude)?;
        Ok(Self::from_checked(signed.to_vec(), magnitude.to_vec()))
    }

    fn from_checked(signed: Vec<f32>, magnitude: Vec<f32>) -> Self {
        let block = |rows: &[f32]| {
            let mut block = Block::default();
            for (index, value) in rows.iter().enumerate() {
                block[index % PIECE][index / PIECE] = *value;
            }
            block
        };
        let blocks =
            [&signed, &magnitude].map(|book| book.chunks_exact(PIECE * LANES).map(block).collect());
        Self { signed, magnitude, blocks }
    }

    /// The project's own books, trained on normal samples only (`tools/train_codebook`).
    pub fn builtin() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Codebook>> = OnceLock::new();
        SHARED
            .get_or_init(|| {
                let mut values = BUILTIN
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect::<Vec<_>>();
                let magnitude = values.split_off(VALUES);
                Arc::new(Self::from_checked(values, magnitude))
            })
            .clone()
    }

    /// The book of a rate, `[256, 8]` row by row.
    pub fn rows(&self, bits: Bits) -> &[f32] {
        match bits {
            Bits::One => &self.signed,
            Bits::Two => &self.magnitude,
        }
    }

    /// One centroid of a book.
    pub fn row(&self, bits: Bits, index: u8) -> &[f32] {
        let start = usize::from(index) * PIECE;
        &self.rows(bits)[start..start + PIECE]
    }

    /// The book of a rate in blocks, for the search.
    pub(super) fn blocks(&self, bits: Bits) -> &[Block] {
        &self.blocks[bits.get() - 1]
    }
}

fn check(argument: &'static str, book: &[f32]) -> Result<()> {
    if book.len() != VALUES {
        return Err(Error::Length { argument, got: book.len(), expected: VALUES });
    }
    for (row, centroid) in book.chunks_exact(PIECE).enumerate() {
        let norm = centroid.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        if norm.is_nan() || (norm - 1.0).abs() > NORM_SLACK {
            return Err(Error::Codebook { argument, row, norm });
        }
    }
    Ok(())
}
