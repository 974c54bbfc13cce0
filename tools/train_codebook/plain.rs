//! Euclidean k-means over normal samples, for books whose rows have any norm.
//!
//! As in [`mod@super::train`], the same seed gives the same bytes on every host and with any number of
//! threads.

use super::train::Random;

/// Samples that one job sums up; fixed, so that the order of sums does not depend on the threads.
const JOB: usize = 8192;
/// Rows that are compared side by side.
const LANES: usize = 16;

/// Shape of a book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows, a multiple of 16.
    pub rows: usize,
    /// Channels of a row, at most 8.
    pub width: usize,
}

impl Shape {
    /// Code bits per channel.
    pub fn rate(self) -> f64 {
        f64::from(self.rows.ilog2()) / self.width as f64
    }

    /// Whether steps of 1/32 cost next to nothing: 0.1 % of the error at 3 bits, 1 % at 4.
    fn coarse(self) -> bool {
        self.rate() <= 3.0
    }

    /// Rows lie on multiples of this, so that a signed byte holds every value below 4, at 4 bits f16.
    pub fn grid(self) -> f64 {
        if self.coarse() { 1.0 / 32.0 } else { 1.0 / 512.0 }
    }

    /// The multiple of the grid nearest to a value; integers have no negative zero.
    fn on_grid(self, value: f64) -> f32 {
        ((value / self.grid()).round_ties_even() * self.grid() + 0.0) as f32
    }
}

/// The books of the rates 1 to 4.
pub const SHAPES: [Shape; 4] = [
    Shape { rows: 256, width: 8 },
    Shape { rows: 256, width: 4 },
    Shape { rows: 64, width: 2 },
    Shape { rows: 256, width: 2 },
];

/// How well a book serves samples.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    /// Mean square error a channel.
    pub mse: f64,
    /// Cosine between all samples and what their codes stand for.
    pub cosine: f64,
}

/// Rows in blocks of [`LANES`], channel first, then half the squared norms.
struct Search {
    blocks: Vec<([[f32; LANES]; 8], [f32; LANES])>,
    width: usize,
}

impl Search {
    fn new(shape: Shape, book: &[f32]) -> Self {
        let blocks = book
            .chunks_exact(LANES * shape.width)
            .map(|rows| {
                let (mut columns, mut halves) = ([[0.0; LANES]; 8], [0.0; LANES]);
                for (lane, row) in rows.chunks_exact(shape.width).enumerate() {
                    for (column, value) in columns.iter_mut().zip(row) {
                        column[lane] = *value;
                    }
                    halves[lane] = row.iter().fold(0.0, |sum, v| sum + v * v) * 0.5;
                }
                (columns, halves)
            })
            .collect();
        Self { blocks, width: shape.width }
    }

    /// Index of the row nearest to a sample, the first of equals.
    fn nearest(&self, sample: &[f32]) -> usize {
        let (mut best, mut block_of) = ([f32::MIN; LANES], [0u32; LANES]);
        for (index, (columns, halves)) in self.blocks.iter().enumerate() {
            let mut score = halves.map(|half| -half);
            for (value, column) in sample.iter().zip(&columns[..self.width]) {
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
        let place = |lane: usize| block_of[lane] as usize * LANES + lane;
        let top = (1..LANES).fold(0, |top, lane| {
            let ahead = best[lane] > best[top];
            if ahead || (best[lane] == best[top] && place(lane) < place(top)) { lane } else { top }
        });
        place(top)
    }
}

#[derive(Clone)]
struct Sums {
    vectors: Vec<f64>,
    counts: Vec<u64>,
    error: f64,
    dot: f64,
    square: f64,
    coded: f64,
}

impl Sums {
    fn new(shape: Shape) -> Self {
        let vectors = vec![0.0; shape.rows * shape.width];
        let counts = vec![0; shape.rows];
        Self { vectors, counts, error: 0.0, dot: 0.0, square: 0.0, coded: 0.0 }
    }

    fn add(&mut self, other: &Self) {
        self.vectors.iter_mut().zip(&other.vectors).for_each(|(a, b)| *a += b);
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.error += other.error;
        self.dot += other.dot;
        self.square += other.square;
        self.coded += other.coded;
    }
}

fn job(shape: Shape, search: &Search, book: &[f32], samples: &[f32]) -> Sums {
    let mut sums = Sums::new(shape);
    for sample in samples.chunks_exact(shape.width) {
        let index = search.nearest(sample);
        let range = index * shape.width..(index + 1) * shape.width;
        sums.counts[index] += 1;
        let row = &book[range.clone()];
        for ((sum, x), c) in sums.vectors[range].iter_mut().zip(sample).zip(row) {
            let (x, c) = (f64::from(*x), f64::from(*c));
            *sum += x;
            sums.error += (x - c) * (x - c);
            sums.dot += x * c;
            sums.square += x * x;
            sums.coded += c * c;
        }
    }
    sums
}

/// One pass over all samples, summed in their order.
fn pass(shape: Shape, book: &[f32], samples: &[f32], threads: usize) -> Sums {
    let search = Search::new(shape, book);
    let jobs: Vec<&[f32]> = samples.chunks(JOB * shape.width).collect();
    let share = jobs.len().div_ceil(threads.max(1)).max(1);
    let parts: Vec<Sums> = std::thread::scope(|scope| {
        let handles: Vec<_> = jobs
            .chunks(share)
            .map(|part| {
                let search = &search;
                scope.spawn(move || {
                    part.iter().map(|s| job(shape, search, book, s)).collect::<Vec<_>>()
                })
            })
            .collect();
        handles
            .into_iter()
            .flat_map(|handle| handle.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    });
    let mut total = Sums::new(shape);
    parts.iter().for_each(|part| total.add(part));
    total
}

/// Trains a book on samples `[count, width]`, row by row.
///
/// Starts from the first samples, spread out to the density of an optimal book: the samples' own to
/// the power `width / (width + 2)` (Gersho 1979), which for normal ones is normal too. For two thirds
/// of the passes the rows are shaken by noise that dies away with the third power of what is left of
/// them, which takes k-means out of poor optima (stochastic relaxation: Zeger, Vaisey and Gersho
/// 1992). A row that no sample chose moves beside the one most chosen. Then the rows are rounded to
/// the shape's grid, and up to 3 bits a third as many passes again settle on it: of its points the
/// one nearest to the mean of what chose a row has the least error.
pub fn train(
    shape: Shape,
    samples: &[f32],
    passes: usize,
    threads: usize,
    random: &mut Random,
) -> Vec<f32> {
    let spread = ((shape.width + 2) as f64 / shape.width as f64).sqrt();
    let first = &samples[..shape.rows * shape.width];
    let mut book: Vec<f32> = first.iter().map(|v| (f64::from(*v) * spread) as f32).collect();
    let shaken = passes * 2 / 3;
    for number in 0..passes {
        let sums = pass(shape, &book, samples, threads);
        let most =
            (0..shape.rows).fold(0, |a, b| if sums.counts[b] > sums.counts[a] { b } else { a });
        let deviation = (sums.error / (samples.len() as f64)).sqrt();
        let left = 1.0 - number as f64 / shaken.max(1) as f64;
        let size = if number < shaken { 0.5 * deviation * left * left * left } else { 0.0 };
        for row in 0..shape.rows {
            let chosen = sums.counts[row] > 0;
            let from = if chosen { row } else { most };
            let size = if chosen { size } else { size.max(0.1 * deviation) };
            for channel in 0..shape.width {
                let mean = sums.vectors[from * shape.width + channel] / sums.counts[from] as f64;
                let noise = if size > 0.0 { random.normal_pair()[0] * size } else { 0.0 };
                book[row * shape.width + channel] = (mean + noise) as f32;
            }
        }
    }
    book.iter_mut().for_each(|v| *v = shape.on_grid(f64::from(*v)));
    for _ in 0..if shape.coarse() { passes / 3 } else { 0 } {
        let sums = pass(shape, &book, samples, threads);
        for ((row, vector), count) in book
            .chunks_exact_mut(shape.width)
            .zip(sums.vectors.chunks_exact(shape.width))
            .zip(&sums.counts)
            .filter(|(_, count)| **count > 0)
        {
            for (value, sum) in row.iter_mut().zip(vector) {
                *value = shape.on_grid(sum / *count as f64);
            }
        }
    }
    book
}

/// Measures a book on samples.
pub fn measure(shape: Shape, book: &[f32], samples: &[f32], threads: usize) -> Quality {
    let sums = pass(shape, book, samples, threads);
    Quality {
        mse: sums.error / samples.len() as f64,
        cosine: sums.dot / (sums.square * sums.coded).sqrt(),
    }
}
