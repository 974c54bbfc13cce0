//! The books of centroids.

use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::layout::{Bits, CODEBOOK_ROWS, Family, PIECE};

const VALUES: usize = CODEBOOK_ROWS * PIECE;
/// How far the norm of a centroid of a unit book may be from 1.
const NORM_SLACK: f64 = 1e-3;
/// Largest norm of a row of a plain book: far beyond what normal samples ask for.
const MAX_NORM: f64 = 64.0;

/// The project's own unit books, made by `tools/train_codebook`: 256 signed centroids, then 256
/// positive ones, f32, little-endian.
static UNIT: &[u8; 2 * VALUES * 4] = include_bytes!("codebook.bin");
/// The project's own plain books, made by `tools/train_codebook`: those of 1 to 4 bits, f32,
/// little-endian.
static PLAIN: &[u8; (256 * 8 + 256 * 4 + 64 * 2 + 256 * 2) * 4] = include_bytes!("plain.bin");

/// Centroids that are searched side by side: as many as a baseline vector register holds.
pub(super) const LANES: usize = 4;

/// Centroids of one rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Book {
    width: usize,
    values: Vec<f32>,
    halves: bool,
    /// As the search reads them, in blocks of [`LANES`] rows: a column for each channel, then what
    /// is taken off the dot products, half of the squared norms (nothing where all norms are 1).
    columns: Vec<[f32; LANES]>,
}

impl Book {
    fn new(family: Family, bits: Bits, values: Vec<f32>) -> Self {
        let width = family.width(bits);
        let mut columns = Vec::with_capacity(values.len() / LANES + values.len() / width / LANES);
        for rows in values.chunks_exact(width * LANES) {
            for channel in 0..width {
                columns.push(core::array::from_fn(|lane| rows[lane * width + channel]));
            }
            let half = |lane: usize| 0.5 * square_sum(&rows[lane * width..(lane + 1) * width]);
            columns.push(match family {
                Family::Unit => [0.0; LANES],
                Family::Plain => core::array::from_fn(half),
            });
        }
        let halves = values.iter().all(|v| half::f16::from_f32(*v).to_f32() == *v);
        Self { width, values, halves, columns }
    }

    /// Channels of a centroid.
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Number of centroids.
    pub const fn rows(&self) -> usize {
        self.values.len() / self.width
    }

    /// The centroids, row by row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Whether f16 holds every value as it is.
    pub const fn halves(&self) -> bool {
        self.halves
    }

    /// One centroid.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, index: u8) -> &[f32] {
        let start = usize::from(index) * self.width;
        &self.values[start..start + self.width]
    }

    /// Index of the centroid nearest to a target of `W` channels, the first of equals: in a unit
    /// book by the largest dot product, in a plain one by the smallest distance.
    pub(super) fn nearest<const W: usize>(&self, target: &[f32; W]) -> u8 {
        debug_assert_eq!(W, self.width);
        let mut best = [f32::MIN; LANES];
        let mut block_of = [0u32; LANES];
        for (index, block) in self.columns.chunks_exact(W + 1).enumerate() {
            let mut score = block[W].map(|half| -half);
            for (value, column) in target.iter().zip(block) {
                for lane in 0..LANES {
                    score[lane] += value * column[lane];
                }
            }
            for lane in 0..LANES {
                let better = score[lane] > best[lane];
                best[lane] = if better { score[lane] } else { best[lane] };
                block_of[lane] = if better { index as u32 } else { block_of[lane] };
            }
        }
        let mut index = block_of[0] as usize * LANES;
        let mut top = best[0];
        for lane in 1..LANES {
            let candidate = block_of[lane] as usize * LANES + lane;
            if best[lane] > top || (best[lane] == top && candidate < index) {
                top = best[lane];
                index = candidate;
            }
        }
        index as u8
    }
}

/// Sum of the squares of up to 8 channels, in the order that every path keeps: pairwise.
pub(super) fn square_sum(v: &[f32]) -> f32 {
    match v {
        [a, b] => a * a + b * b,
        [a, b, c, d] => (a * a + b * b) + (c * c + d * d),
        [low @ .., e, f, g, h] if low.len() == 4 => {
            square_sum(low) + ((e * e + f * f) + (g * g + h * h))
        }
        _ => v.iter().fold(0.0, |sum, x| sum + x * x),
    }
}

/// Centroids for each rate and family (step 5 of [`crate::nsnquant`]): the unit books are of the form of
/// arXiv 2505.18231, the plain ones this library's.
#[derive(Clone, Debug, PartialEq)]
pub struct Codebook {
    unit: [Arc<Book>; 2],
    plain: [Arc<Book>; 4],
}

impl Codebook {
    /// Takes two unit books `[256, 8]`, row by row, signed for 1 bit and of magnitudes for 2; the
    /// plain books are the project's own.
    ///
    /// # Errors
    /// [`Error::Length`] when a book does not hold 256 * 8 values; [`Error::Codebook`] for a row
    /// that is not finite or whose norm is further than 0.001 from 1.
    pub fn new(signed: &[f32], magnitude: &[f32]) -> Result<Self> {
        check("codebook_signed", signed)?;
        check("codebook_magnitude", magnitude)?;
        let unit = |bits, values: &[f32]| Arc::new(Book::new(Family::Unit, bits, values.to_vec()));
        let plain = Self::builtin().plain.clone();
        Ok(Self { unit: [unit(Bits::One, signed), unit(Bits::Two, magnitude)], plain })
    }

    /// The project's own books, trained on normal samples only (`tools/train_codebook`).
    pub fn builtin() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Codebook>> = OnceLock::new();
        SHARED
            .get_or_init(|| {
                let [mut unit, mut plain] = [UNIT.as_slice(), PLAIN.as_slice()].map(floats);
                let mut book = |family: Family, bits| {
                    let values = match family {
                        Family::Unit => &mut unit,
                        Family::Plain => &mut plain,
                    };
                    let rest = values.split_off(family.rows(bits) * family.width(bits));
                    Arc::new(Book::new(family, bits, core::mem::replace(values, rest)))
                };
                let unit = [Bits::One, Bits::Two].map(|bits| book(Family::Unit, bits));
                Arc::new(Self { unit, plain: Bits::ALL.map(|bits| book(Family::Plain, bits)) })
            })
            .clone()
    }

    /// The plain books, 1 to 4 bits, one after the other.
    pub fn plain_values(&self) -> Vec<f32> {
        self.plain.iter().flat_map(|book| book.values()).copied().collect()
    }

    /// This codebook with other plain books, 1 to 4 bits, one after the other.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Parameter`] for a row that is not finite or has a norm above 64.
    pub fn with_plain(mut self, values: &[f32]) -> Result<Self> {
        let sizes = Bits::ALL.map(|bits| Family::Plain.rows(bits) * Family::Plain.width(bits));
        let expected = sizes.iter().sum();
        if values.len() != expected {
            let got = values.len();
            return Err(Error::Length { argument: "codebook_plain", got, expected });
        }
        let mut rest = values;
        for (bits, book) in Bits::ALL.into_iter().zip(&mut self.plain) {
            let (own, others) = rest.split_at(sizes[bits.get() - 1]);
            rest = others;
            for centroid in own.chunks_exact(Family::Plain.width(bits)) {
                let got = centroid.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
                if got.is_nan() || got > MAX_NORM {
                    let expected = "rows of norm at most 64";
                    return Err(Error::Parameter { argument: "codebook_plain", got, expected });
                }
            }
            *book = Arc::new(Book::new(Family::Plain, bits, own.to_vec()));
        }
        Ok(self)
    }

    /// The book of a family and rate.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a rate that the family has no book of.
    pub fn book(&self, family: Family, bits: Bits) -> Result<&Arc<Book>> {
        family.rate("bits", bits.get() as u32)?;
        Ok(match family {
            Family::Unit => &self.unit[bits.get() - 1],
            Family::Plain => &self.plain[bits.get() - 1],
        })
    }

    /// The unit book of a rate, `[256, 8]` row by row; nothing for a rate that has none.
    pub fn rows(&self, bits: Bits) -> &[f32] {
        self.unit.get(bits.get() - 1).map_or(&[], |book| book.values())
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
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
