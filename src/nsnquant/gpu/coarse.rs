//! A unit book in 8 bits a channel, for a first look at all of its rows (`wgsl/common/coarse.wgsl`).

use crate::layout::{Family, PIECE, PageLayout};
use crate::nsnquant::codebook::Book;

/// Words behind the rows: how far scores may be off.
const BOUNDS: usize = 4;
/// What is added to every bound, in the units of a score: its own rounding to a whole number and that of
/// the comparison in f32 that it stands for.
const ROUNDING: f64 = 4.0;

/// Whether an encoder takes a first look at the book of a layout.
pub(super) fn serves(layout: &PageLayout) -> bool {
    layout.scheme().family == Family::Unit && layout.width() == PIECE
}

/// Groups of four words of a book as encoders bind it.
pub(super) fn fours(layout: &PageLayout, book: &Book) -> u32 {
    let words = if serves(layout) { book.rows() * PIECE / 4 + BOUNDS } else { 0 };
    ((book.values().len() + words) / 4) as u32
}

/// Channels of a row in steps of `1 / scale`, and what is left of them.
struct Row {
    steps: [f64; PIECE],
    rest: [f64; PIECE],
}

impl Row {
    fn new(channels: &[f64; PIECE]) -> Self {
        let steps = channels.map(f64::round_ties_even);
        Self { steps, rest: core::array::from_fn(|i| channels[i] - steps[i]) }
    }

    fn sum(&self) -> f64 {
        self.rest.iter().sum()
    }

    /// How much a target of magnitudes of normal samples is expected to be off by, squared: their mean
    /// is 0.8, their variance 0.36.
    fn cost(&self) -> f64 {
        0.36 * self.rest.iter().map(|v| v * v).sum::<f64>() + 0.64 * self.sum() * self.sum()
    }

    /// Rounds channels the other way as long as that makes the cost less: one that all channels share
    /// weighs most where none is negative.
    fn settle(mut self, most: f64) -> Self {
        loop {
            let own = self.cost();
            let mut best = (own - 1e-9, 0, 0.0);
            for channel in 0..PIECE {
                for step in [-1.0, 1.0] {
                    let mut rest = self.rest;
                    rest[channel] -= step;
                    let other = Self { steps: self.steps, rest }.cost();
                    let inside = (0.0..=most).contains(&(self.steps[channel] + step));
                    if inside && other < best.0 {
                        best = (other, channel, step);
                    }
                }
            }
            if best.2 == 0.0 {
                return self;
            }
            self.steps[best.1] += best.2;
            self.rest[best.1] -= best.2;
        }
    }

    /// What is left of the channels but for their mean.
    fn spread(&self) -> [f64; PIECE] {
        self.rest.map(|v| v - self.sum() / PIECE as f64)
    }
}

/// The rows in 8 bits, two words a row, and the bounds; nothing for books that no encoder looks at so.
///
/// With `s` steps a unit, a target `t` in steps and its whole part `T`, the score of row `c` is off by
/// `<t - T, c s> + <T, rest>`, and two of them by no more than what the bounds make of `|t - T|`, of the
/// mean of `t`, and of the norm of what it is without its mean.
pub(super) fn words(layout: &PageLayout, book: &Book) -> Vec<u32> {
    if !serves(layout) {
        return Vec::new();
    }
    let values = || book.values().iter().map(|v| f64::from(*v));
    let (low, high) = values().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
    let (least, scale, most) = if layout.signs() {
        (low, 255.0 / (high - low).max(1e-3), 255.0)
    } else {
        (0.0, 127.0 / high.max(-low).max(1e-3), 127.0)
    };
    let rows: Vec<[f64; PIECE]> = book
        .values()
        .chunks_exact(PIECE)
        .map(|row| core::array::from_fn(|i| (f64::from(row[i]) - least) * scale))
        .collect();
    let coarse: Vec<Row> = rows
        .iter()
        .map(|row| if layout.signs() { Row::new(row).settle(most) } else { Row::new(row) })
        .collect();
    let farthest = |points: &[[f64; PIECE]]| {
        let apart = |a: &[f64; PIECE], b: &[f64; PIECE]| {
            a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>()
        };
        let pairs = points.iter().flat_map(|a| points.iter().map(move |b| apart(a, b)));
        pairs.fold(0.0, f64::max).sqrt()
    };
    let whole: Vec<_> = coarse.iter().map(|row| row.rest).collect();
    let spreads: Vec<_> = coarse.iter().map(Row::spread).collect();
    let sums = || coarse.iter().map(Row::sum);
    let between = sums().fold(f64::MIN, f64::max) - sums().fold(f64::MAX, f64::min);
    let bounds =
        [farthest(&rows) + farthest(&whole), between / PIECE as f64, farthest(&spreads), ROUNDING];
    // Rounded up, also where the kernel takes a root or a sum.
    let bounds = bounds.map(|bound| ((bound * 1.0001) as f32).to_bits());
    let packed = coarse.iter().flat_map(|row| {
        let byte = |i: usize| u32::from(row.steps[i] as i16 as u8);
        [0, 4].map(|i| byte(i) | (byte(i + 1) << 8) | (byte(i + 2) << 16) | (byte(i + 3) << 24))
    });
    packed.chain(bounds).collect()
}
