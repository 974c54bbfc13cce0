//! Spherical k-means over normal samples, and the measure of a book.
//!
//! Everything is arithmetic of f32 and f64 without library functions that differ between hosts, and
//! sums are taken in a fixed order whatever the number of threads, so the same seed gives the same
//! bytes everywhere.

/// Channels of a piece.
pub const PIECE: usize = 8;
/// Centroids of a book.
pub const ROWS: usize = 256;
/// Samples that one job sums up; fixed, so that the order of sums does not depend on the threads.
const JOB: usize = 4096;

/// A piece of 8 channels.
pub type Piece = [f32; PIECE];

/// Which book is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Book {
    /// Signed centroids, for 1 bit.
    Signed,
    /// Positive centroids of magnitudes, for 2 bits.
    Magnitude,
}

impl Book {
    fn of(self, piece: &Piece) -> Piece {
        match self {
            Self::Signed => *piece,
            Self::Magnitude => piece.map(f32::abs),
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    fn symmetric(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// A pair of normal numbers (Marsaglia's polar method).
    pub fn normal_pair(&mut self) -> [f64; 2] {
        loop {
            let (u, v) = (self.symmetric(), self.symmetric());
            let s = u * u + v * v;
            if s > 0.0 && s < 1.0 {
                let factor = (-2.0 * ln(s) / s).sqrt();
                return [u * factor, v * factor];
            }
        }
    }

    /// Normal numbers.
    pub fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count.div_ceil(2))
            .flat_map(|_| self.normal_pair())
            .map(|v| v as f32)
            .take(count)
            .collect()
    }

    /// Tokens of `dim` channels, each brought to norm sqrt(dim), as pieces.
    pub fn tokens(&mut self, count: usize, dim: usize) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(count * dim / PIECE);
        for _ in 0..count {
            let token = (0..dim / 2).flat_map(|_| self.normal_pair()).collect::<Vec<_>>();
            let square = token.iter().fold(0.0, |sum, v| sum + v * v);
            let scale = (dim as f64 / square).sqrt();
            pieces.extend(token.chunks_exact(PIECE).map(|chunk| {
                let mut piece = [0.0; PIECE];
                for (piece, value) in piece.iter_mut().zip(chunk) {
                    *piece = (value * scale) as f32;
                }
                piece
            }));
        }
        pieces
    }
}

/// Natural logarithm of a normal positive number, by the series of atanh: hosts differ in theirs.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 1023 << 52);
    if mantissa > core::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let series = (0..16).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    2.0 * z * series + exponent as f64 * core::f64::consts::LN_2
}

/// The book with the channel first, as the search reads it.
fn columns(book: &[Piece]) -> Vec<[f32; ROWS]> {
    (0..PIECE)
        .map(|channel| {
            let mut column = [0.0; ROWS];
            for (column, row) in column.iter_mut().zip(book) {
                *column = row[channel];
            }
            column
        })
        .collect()
}

/// Index and dot product of the nearest centroid; the first of equals.
fn nearest(columns: &[[f32; ROWS]], piece: &Piece) -> (usize, f32) {
    let mut dots = [0.0f32; ROWS];
    for (column, value) in columns.iter().zip(piece) {
        for (dot, entry) in dots.iter_mut().zip(column) {
            *dot += value * entry;
        }
    }
    let mut best = (0, dots[0]);
    for (index, dot) in dots.iter().enumerate() {
        if *dot > best.1 {
            best = (index, *dot);
        }
    }
    best
}

struct Sums {
    vectors: Vec<[f64; PIECE]>,
    total: f64,
    worst: (f32, usize),
}

fn job(book: Book, columns: &[[f32; ROWS]], samples: &[Piece], first: usize) -> Sums {
    let mut sums = Sums { vectors: vec![[0.0; PIECE]; ROWS], total: 0.0, worst: (f32::MAX, first) };
    for (offset, sample) in samples.iter().enumerate() {
        let piece = book.of(sample);
        let (index, dot) = nearest(columns, &piece);
        for (sum, value) in sums.vectors[index].iter_mut().zip(&piece) {
            *sum += f64::from(*value);
        }
        sums.total += f64::from(dot);
        if dot < sums.worst.0 {
            sums.worst = (dot, first + offset);
        }
    }
    sums
}

/// One pass over all samples: the jobs' sums, in the order of the samples.
fn pass(book: Book, centroids: &[Piece], samples: &[Piece], threads: usize) -> Vec<Sums> {
    let columns = columns(centroids);
    let jobs: Vec<(usize, &[Piece])> =
        samples.chunks(JOB).enumerate().map(|(i, part)| (i * JOB, part)).collect();
    let share = jobs.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        let handles: Vec<_> = jobs
            .chunks(share)
            .map(|part| {
                let columns = &columns;
                scope.spawn(move || {
                    part.iter()
                        .map(|(first, samples)| job(book, columns, samples, *first))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        handles
            .into_iter()
            .flat_map(|handle| handle.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    })
}

fn unit(v: &[f64; PIECE]) -> Option<Piece> {
    let norm = v.iter().fold(0.0, |sum, x| sum + x * x).sqrt();
    (norm > 1e-9).then(|| v.map(|x| (x / norm) as f32))
}

/// Trains a book on `samples`. The objective is the sum of the dot products of each piece with its
/// nearest unit centroid: with tokens decoded at a fixed norm that is the token's cosine, summed.
/// Starts from the first samples; a centroid that no sample chose takes the worst served one.
pub fn train(book: Book, samples: &[Piece], passes: usize, threads: usize) -> Vec<Piece> {
    let mut centroids: Vec<Piece> = samples
        .iter()
        .filter_map(|sample| unit(&book.of(sample).map(f64::from)))
        .take(ROWS)
        .collect();
    assert_eq!(centroids.len(), ROWS, "at least {ROWS} samples that are not zero");
    for _ in 0..passes {
        let parts = pass(book, &centroids, samples, threads);
        let mut vectors = vec![[0.0; PIECE]; ROWS];
        let mut worst: Vec<(f32, usize)> = Vec::new();
        for part in &parts {
            for (vector, sum) in vectors.iter_mut().zip(&part.vectors) {
                for (vector, sum) in vector.iter_mut().zip(sum) {
                    *vector += sum;
                }
            }
            worst.push(part.worst);
        }
        worst.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
        for (centroid, vector) in centroids.iter_mut().zip(&vectors) {
            let replacement = unit(vector).or_else(|| {
                worst.pop().and_then(|(_, i)| unit(&book.of(&samples[i]).map(f64::from)))
            });
            if let Some(row) = replacement {
                *centroid = row;
            }
        }
    }
    centroids
}

/// Mean cosine between tokens of `dim` channels and what their codes stand for.
pub fn mean_cosine(book: Book, centroids: &[Piece], tokens: &[Piece], dim: usize) -> f64 {
    let columns = columns(centroids);
    let pieces = dim / PIECE;
    let mut total = 0.0;
    for token in tokens.chunks_exact(pieces) {
        let (mut dot, mut left, mut right) = (0.0, 0.0, 0.0);
        for piece in token {
            let piece = book.of(piece);
            let (index, product) = nearest(&columns, &piece);
            dot += f64::from(product);
            left += piece.iter().fold(0.0, |sum, v| sum + f64::from(*v).powi(2));
            right += centroids[index].iter().fold(0.0, |sum, v| sum + f64::from(*v).powi(2));
        }
        total += dot / (left * right).sqrt();
    }
    total / (tokens.len() / pieces) as f64
}
