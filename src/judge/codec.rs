//! NSNQuant in every combination of its choices, from its definition: pages taken apart, restored,
//! and held against the rows that they were made of.
//!
//! A page whose scales and means are quantised on the way cannot be compared with another one, for a
//! choice at a tie changes all that follow. So [`check`] goes the encoder's way with the page's own
//! choices and says for each how far from the best one it was.

use super::nsnquant::{hadamard, rotate, rotate_back, stored_scale};
use super::{from_f16, tame, to_f16};

/// How the length of a token is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Centroids are brought to norm sqrt(d).
    Token,
    /// `s2 (y.y) / (y.c)` is stored.
    Unbiased,
    /// `s2 |y| / |c|` is stored.
    Norm,
}

/// How scales and means are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 16 bits each.
    Half,
    /// 4 bits each: scales by their logs.
    Four,
    /// First scales in 4 bits, means in 4 bits by groups of 32 channels, second scales in 16.
    Linear,
}

/// A rotary embedding.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Whether channels i and i + n turn together, of n pairs; else 2i and 2i + 1.
    pub halves: bool,
    /// Radians a position of each pair.
    pub frequencies: Vec<f64>,
}

impl Turn {
    fn pair(&self, i: usize) -> [usize; 2] {
        if self.halves { [i, i + self.frequencies.len()] } else { [2 * i, 2 * i + 1] }
    }

    /// Sums of the magnitudes of the channels that turn together.
    fn sizes(&self, row: &[f64]) -> Vec<f64> {
        let mut out = row.to_vec();
        for i in 0..self.frequencies.len() {
            let [a, b] = self.pair(i);
            [out[a], out[b]] = [row[a].abs() + row[b].abs(); 2];
        }
        out
    }

    /// Turns a row to a position, or back from it.
    pub fn row(&self, row: &[f64], position: u32, back: bool) -> Vec<f64> {
        let mut out = row.to_vec();
        for (i, frequency) in self.frequencies.iter().enumerate() {
            // Exact: a frequency has 24 bits, and positions as far as 2^29 do no harm.
            let angle = frequency * f64::from(position) * if back { -1.0 } else { 1.0 };
            let [a, b] = self.pair(i);
            out[a] = row[a] * angle.cos() - row[b] * angle.sin();
            out[b] = row[a] * angle.sin() + row[b] * angle.cos();
        }
        out
    }
}

/// The choices of a codec.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Channels.
    pub d: usize,
    /// Tokens of a page.
    pub r: usize,
    /// Code bits per value.
    pub bits: usize,
    /// Rows of any norm, without signs, in place of unit rows.
    pub plain: bool,
    /// How scales and means are stored.
    pub form: Form,
    /// How the length of a token is set.
    pub length: Length,
    /// Whether the mean is stored in the Hadamard domain.
    pub turned: bool,
    /// Seed of the signs before the transform.
    pub seed: Option<u32>,
    /// The rotary embedding that is taken off.
    pub turn: Option<Turn>,
}

impl Rules {
    /// Channels of a piece.
    pub fn width(&self) -> usize {
        if self.plain { [8, 4, 2, 2][self.bits - 1] } else { 8 }
    }

    fn index_bits(&self) -> usize {
        if self.plain && self.bits == 3 { 6 } else { 8 }
    }

    fn signed(&self) -> bool {
        !self.plain && self.bits == 2
    }

    fn flips(&self) -> Vec<f64> {
        let sign = |channel: u32| {
            let Some(seed) = self.seed else { return 1.0 };
            let mut x = seed.wrapping_add(channel.wrapping_mul(0x9e37_79b9));
            x ^= x >> 16;
            x = x.wrapping_mul(0x85eb_ca6b);
            x ^= x >> 13;
            x = x.wrapping_mul(0xc2b2_ae35);
            x ^= x >> 16;
            if x % 2 == 1 { -1.0 } else { 1.0 }
        };
        (0..self.d as u32).map(sign).collect()
    }

    /// The mean as it is taken off the row at a position.
    fn shift(&self, mean: &[f64], positions: &[u32], t: usize) -> Vec<f64> {
        self.turn.as_ref().map_or_else(|| mean.to_vec(), |turn| turn.row(mean, positions[t], false))
    }

    fn mix(&self, h: &[f64], x: &[f64]) -> Vec<f64> {
        let flipped: Vec<f64> = x.iter().zip(self.flips()).map(|(x, s)| x * s).collect();
        rotate(h, &flipped)
    }

    fn unmix(&self, h: &[f64], y: &[f64]) -> Vec<f64> {
        rotate_back(h, y).iter().zip(self.flips()).map(|(x, s)| x * s).collect()
    }
}

/// The parts of a page, as numbers.
#[derive(Clone, Debug)]
pub struct Page {
    /// Index of each piece.
    pub idx: Vec<usize>,
    /// Sign mask of each piece of 8; empty where there are none.
    pub signs: Vec<u8>,
    /// First scale, second scale and mean.
    pub parts: [Vec<f64>; 3],
    /// Their codes of 4 bits; empty where they have 16.
    pub codes: [Vec<u8>; 3],
    /// Low end and step of the codes' grids.
    pub grids: Vec<(f64, f64)>,
    /// Bytes of all that is stored.
    pub bytes: usize,
}

fn bits_of(bytes: &[u8], at: usize, count: usize) -> usize {
    (0..count).map(|i| usize::from(bytes[(at + i) / 8] >> ((at + i) % 8) & 1) << i).sum()
}

/// Takes a page apart: indices, signs, first scales, second scales, means, grids, each from a whole
/// word on.
///
/// # Panics
/// For a page of another length.
pub fn unpack(rules: &Rules, page: &[u32]) -> Page {
    let bytes: Vec<u8> = page.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (mut at, mut stored) = (0, 0);
    let mut take = |bits: usize, count: usize| -> Vec<usize> {
        let part = (0..count).map(|i| bits_of(&bytes, 8 * at + i * bits, bits)).collect();
        stored += (bits * count).div_ceil(8);
        at += (bits * count).div_ceil(32) * 4;
        part
    };
    let (d, r) = (rules.d, rules.r);
    let idx = take(rules.index_bits(), r * d / rules.width());
    let signs = take(8, if rules.signed() { r * d / 8 } else { 0 });
    let (sizes, grids) = match rules.form {
        Form::Half => ([16, 16, 16], 0),
        Form::Four => ([4, 4, 4], 3),
        Form::Linear => ([4, 16, 4], 1 + d.div_ceil(32)),
    };
    let raw = [(r, sizes[0]), (r, sizes[1]), (d, sizes[2])].map(|(count, size)| take(size, count));
    let words = take(16, 2 * grids);
    let bytes_of_all = stored;
    assert_eq!(at, bytes.len(), "a page of {rules:?}");
    let grids: Vec<(f64, f64)> = words
        .chunks(2)
        .enumerate()
        .map(|(number, pair)| {
            let scale = rules.form == Form::Linear && number == 0;
            let end = |raw| if scale { stored_scale(raw) } else { from_f16(raw) };
            (tame(end(pair[0] as u16)), tame(end(pair[1] as u16)))
        })
        .collect();
    let on_grid = |number: usize, code: usize| grids[number].0 + grids[number].1 * code as f64;
    let number = |which: usize, at: usize, raw: usize| match (rules.form, which) {
        (Form::Half, 0) => tame(stored_scale(raw as u16)),
        (Form::Half, _) | (Form::Linear, 1) => tame(from_f16(raw as u16)),
        (Form::Linear, 0) => on_grid(0, raw),
        (Form::Linear, _) => on_grid(1 + at / 32, raw),
        (Form::Four, 2) => on_grid(2, raw),
        (Form::Four, _) => power(on_grid(which, raw)),
    };
    let part = |which: usize| -> Vec<f64> {
        raw[which].iter().enumerate().map(|(at, v)| number(which, at, *v)).collect()
    };
    let parts = [part(0), part(1), part(2)];
    let mut codes = [Vec::new(), Vec::new(), Vec::new()];
    for ((codes, raw), size) in codes.iter_mut().zip(&raw).zip(sizes) {
        if size == 4 {
            codes.extend(raw.iter().map(|v| *v as u8));
        }
    }
    let signs = signs.into_iter().map(|v| v as u8).collect();
    Page { idx, signs, parts, codes, grids, bytes: bytes_of_all }
}

fn power(log: f64) -> f64 {
    if log < -126.0 { 0.0 } else { log.min(127.0).exp2() }
}

/// Centroids of a token with their signs, in the Hadamard domain, as they lie in the book.
fn centroids(rules: &Rules, page: &Page, book: &[f64], t: usize) -> Vec<f64> {
    let (width, pieces) = (rules.width(), rules.d / rules.width());
    let mut row: Vec<f64> = (t * pieces..(t + 1) * pieces)
        .flat_map(|piece| book[page.idx[piece] * width..][..width].to_vec())
        .collect();
    if rules.signed() {
        for (c, value) in row.iter_mut().enumerate() {
            let mask = page.signs[(t * rules.d + c) / 8];
            *value = if mask >> (c % 8) & 1 == 0 { -*value } else { *value };
        }
    }
    row
}

/// The key scale that is fixed from rows `[tokens, d]` in chunks of `r`, the last one being what is
/// left over: roots of the root mean squares of the channels, 8 tokens of the average channel counted
/// along, once every row is brought to norm sqrt(d) and the mean of its chunk is taken off.
pub fn key_scale(rows: &[f64], d: usize, r: usize) -> Vec<f64> {
    let tokens = (rows.len() / d).min(8 * r);
    let mut squares = vec![0.0; d];
    for chunk in rows[..tokens * d].chunks(r * d) {
        let scaled = chunk.chunks(d).map(|row| -> Vec<f64> {
            let row: Vec<f64> = row.iter().map(|v| tame(*v)).collect();
            let scale = root_mean_square(&row).max(1e-8);
            row.iter().map(|v| v / scale).collect()
        });
        let scaled: Vec<Vec<f64>> = scaled.collect();
        for (c, square) in squares.iter_mut().enumerate() {
            let mean = scaled.iter().map(|row| row[c]).sum::<f64>() / scaled.len() as f64;
            *square += scaled.iter().map(|row| (row[c] - mean).powi(2)).sum::<f64>();
        }
    }
    let count = tokens as f64;
    let average = squares.iter().sum::<f64>() / (d as f64 * count.max(1.0));
    if average <= 1e-12 {
        return vec![1.0; d];
    }
    squares.iter().map(|s| ((s + 8.0 * average) / ((count + 8.0) * average)).powf(0.25)).collect()
}

/// Restores a page to `[r, d]`. `channels` is the key scale, if there is one; `positions` those of the
/// rows, where there is an embedding.
pub fn decode(
    rules: &Rules,
    page: &Page,
    book: &[f64],
    channels: Option<&[f64]>,
    positions: &[u32],
) -> Vec<f64> {
    let h = hadamard(rules.d);
    let [s1, s2, o] = &page.parts;
    let mean = if rules.turned { rules.unmix(&h, o) } else { o.clone() };
    let mut out = Vec::new();
    for t in 0..rules.r {
        let mut row = centroids(rules, page, book, t);
        if rules.length == Length::Token {
            let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
            row.iter_mut().for_each(|v| *v *= (rules.d as f64).sqrt() / norm.max(1e-8));
        }
        let row = rules.unmix(&h, &row);
        let shift = rules.shift(&mean, positions, t);
        for c in 0..rules.d {
            let scale = channels.map_or(1.0, |channels| channels[c]);
            out.push(s1[t] * (s2[t] * row[c] * scale + shift[c]));
        }
    }
    out
}

/// How far from the best the choices of a page are, over all its tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// First scales: in steps of f16 beyond half a one, or logs beyond half a step of the grid.
    pub s1: f64,
    /// Means: in steps of f16 beyond half a one, or values beyond half a step of the grid.
    pub o: f64,
    /// Second scales, as the first ones, over the error that rounding leaves in the token.
    pub s2: f64,
    /// Codes: the error that the transformed token would need for the choice to be the best one,
    /// over the error that rounding leaves in the token.
    pub codes: f64,
    /// Grids: distance of the low ends and steps from those of the definition in steps of f16,
    /// less 1; of the second scales', beyond what the rounding of the tokens leaves in their logs.
    pub grids: f64,
}

fn raise(worst: &mut f64, value: f64) {
    *worst = worst.max(value);
}

fn root_mean_square(row: &[f64]) -> f64 {
    let top = row.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
    if top == 0.0 {
        return 0.0;
    }
    top * (row.iter().map(|x| (x / top).powi(2)).sum::<f64>() / row.len() as f64).sqrt()
}

/// Spacing of f16 numbers around a value.
fn spacing(value: f64) -> f64 {
    2f64.powi((value.abs().max(2f64.powi(-14)).log2().floor() as i32).max(-14) - 10)
}

fn log(scale: f64) -> f64 {
    if scale > 0.0 { scale.log2() } else { -128.0 }
}

/// Distance of a grid from the one that spans values, in steps of f16 beyond one, where the ends of
/// the values may be off by `noise`: the step of nearly equal values is far smaller than they are.
fn grid_fault(grid: (f64, f64), low: f64, high: f64, noise: f64) -> f64 {
    let first = from_f16(to_f16(low));
    let step = from_f16(to_f16((high - grid.0) / 15.0)).max(0.0);
    let lows = ((grid.0 - first).abs() - noise) / spacing(low);
    lows.max(((grid.1 - step).abs() - noise / 15.0) / spacing(step)) - 1.0
}

/// Distance of a value from that of its code beyond half a step; 0 beyond the ends of the grid.
fn code_fault(grid: (f64, f64), code: u8, value: f64) -> f64 {
    let held = value.clamp(grid.0, grid.0 + 15.0 * grid.1);
    (held - (grid.0 + grid.1 * f64::from(code))).abs() - 0.5 * grid.1
}

fn scale_ends(scales: &[f64]) -> (f64, f64) {
    let top = scales.iter().fold(0.0, |a: f64, s| a.max(*s));
    let low = scales.iter().fold(f64::INFINITY, |a, s| a.min(*s));
    if top > 0.0 { (log(low).max(top.log2() - 10.0), top.log2()) } else { (-128.0, -128.0) }
}

/// The ends of a linear grid of scales.
fn linear_ends(scales: &[f64]) -> (f64, f64) {
    let top = scales.iter().fold(0.0, |a: f64, s| a.max(*s)).min(1.5e38);
    let low = scales.iter().fold(f64::INFINITY, |a, s| a.min(*s));
    (low.clamp(top / 32.0, top), top)
}

/// Spacing of stored scales.
fn scale_spacing(scale: f64) -> f64 {
    if scale < 65520.0 { spacing(scale) } else { scale / 128.0 }
}

/// As [`grid_fault`], of a linear grid of scales; a step may be as far off as the rounding of the
/// scales makes it where these are nearly equal.
fn linear_fault(grid: (f64, f64), low: f64, high: f64) -> f64 {
    let step = ((high - grid.0) / 15.0).max(0.0);
    let lows = (grid.0 - low).abs() / scale_spacing(low);
    let apart = (grid.1 - step).abs() - high * 2f64.powi(-22) / 15.0;
    lows.max(apart / scale_spacing(step)) - 1.0
}

/// Holds a page against the rows `x` `[r, d]` that it stands for.
pub fn check(
    rules: &Rules,
    x: &[f64],
    page: &Page,
    book: &[f64],
    channels: Option<&[f64]>,
    positions: &[u32],
) -> Faults {
    let (d, width) = (rules.d, rules.width());
    let h = hadamard(d);
    let mut faults = Faults::default();
    let [s1, s2, o] = &page.parts;
    let mut rows: Vec<Vec<f64>> =
        x.chunks(d).map(|row| row.iter().map(|v| tame(*v)).collect()).collect();

    let own: Vec<f64> = rows.iter().map(|row| root_mean_square(row).max(1e-8)).collect();
    match rules.form {
        Form::Four => {
            let (low, high) = scale_ends(&own);
            raise(&mut faults.grids, grid_fault(page.grids[0], low, high, 0.0));
            for (scale, code) in own.iter().zip(&page.codes[0]) {
                raise(&mut faults.s1, code_fault(page.grids[0], *code, log(*scale)));
            }
        }
        Form::Linear => {
            let (low, high) = linear_ends(&own);
            raise(&mut faults.grids, linear_fault(page.grids[0], low, high));
            for (scale, code) in own.iter().zip(&page.codes[0]) {
                let fault = code_fault(page.grids[0], *code, *scale);
                raise(&mut faults.s1, fault / high);
            }
        }
        Form::Half => {
            for (scale, stored) in own.iter().zip(s1) {
                raise(&mut faults.s1, ((scale - stored).abs() / scale_spacing(*scale)) - 0.5);
            }
        }
    }
    let quantised = rules.form != Form::Half;
    for (row, scale) in rows.iter_mut().zip(if quantised { s1 } else { &own }) {
        row.iter_mut().for_each(|v| *v /= scale.max(1e-8));
    }

    let still: Vec<Vec<f64>> = rows
        .iter()
        .enumerate()
        .map(|(t, row)| match &rules.turn {
            Some(turn) => turn.row(row, positions[t], true),
            None => row.clone(),
        })
        .collect();
    let mean: Vec<f64> =
        (0..d).map(|c| still.iter().map(|row| row[c]).sum::<f64>() / rows.len() as f64).collect();
    let wanted = if rules.turned { rules.mix(&h, &mean) } else { mean.clone() };
    if quantised {
        let linear = rules.form == Form::Linear;
        let (first, size) = if linear { (1, 32) } else { (2, d) };
        let groups = wanted.chunks(size).zip(page.codes[2].chunks(size));
        for (grid, (wanted, codes)) in page.grids[first..].iter().zip(groups) {
            let low = wanted.iter().fold(f64::INFINITY, |a, v| a.min(*v));
            let high = wanted.iter().fold(f64::NEG_INFINITY, |a, v| a.max(*v));
            raise(&mut faults.grids, grid_fault(*grid, low, high, 0.0));
            for (value, code) in wanted.iter().zip(codes) {
                raise(&mut faults.o, code_fault(*grid, *code, *value));
            }
        }
    } else {
        // Sums are rounded as the rows are large, however far these cancel; the transform may bring
        // the rounding of all channels together in one.
        // A turn rounds both channels of a pair as the larger one is.
        let wide = |row: &Vec<f64>| rules.turn.as_ref().map_or(row.clone(), |turn| turn.sizes(row));
        let all: Vec<Vec<f64>> = rows.iter().map(wide).collect();
        let sizes = (0..d).map(|c| all.iter().map(|row| row[c].abs()).sum::<f64>());
        let sizes: Vec<f64> = sizes.map(|sum| sum / rows.len() as f64).collect();
        let norm = sizes.iter().map(|size| size * size).sum::<f64>().sqrt();
        for ((value, stored), size) in wanted.iter().zip(o).zip(&sizes) {
            let noise = if rules.turned { norm } else { *size } * 2f64.powi(-22);
            let excess = (value - stored).abs() - 0.5 * spacing(*value) - noise;
            raise(&mut faults.o, excess / spacing(*value));
        }
    }
    let used = if quantised { o } else { &wanted };
    let shift = if rules.turned { rules.unmix(&h, used) } else { used.clone() };
    let size = 1.0 + shift.iter().fold(0.0, |a: f64, v| a.max(v.abs()));

    let longest = if rules.plain { 4.0 } else { 4.0 * 8f64.sqrt() };
    let mut scales = Vec::new();
    let mut noise = Vec::new();
    for (t, row) in rows.iter_mut().enumerate() {
        let shift = rules.shift(&shift, positions, t);
        for c in 0..d {
            row[c] = (row[c] - shift[c]) / channels.map_or(1.0, |channels| channels[c]);
        }
        let second = root_mean_square(row).max(1e-8);
        let error = 1.0 + size / second;
        row.iter_mut().for_each(|v| *v /= second);
        let y = rules.mix(&h, row);
        let coded = centroids(rules, page, book, t);
        for (piece, target) in y.chunks(width).enumerate() {
            let chosen = &coded[piece * width..][..width];
            let best = nearest(rules, target, book);
            let apart: f64 = best.iter().zip(chosen).map(|(a, b)| (a - b).abs()).sum();
            let worse = badness(rules, target, chosen) - badness(rules, target, &best);
            if apart > 0.0 {
                raise(&mut faults.codes, worse / apart / error);
            }
        }
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (yy, yc, cc) = (product(&y, &y), product(&y, &coded), product(&coded, &coded));
        scales.push(match rules.length {
            Length::Token => second,
            Length::Unbiased if yc > 0.0 => second * (yy / yc).min(longest),
            Length::Norm if cc > 0.0 => second * (yy / cc).sqrt().min(longest),
            _ => 0.0,
        });
        // A quotient by y.c passes the rounding of both on by as much as y and c differ in direction.
        let apart = match rules.length {
            Length::Unbiased if yc > 0.0 => (yy * cc).sqrt() / yc,
            _ => 1.0,
        };
        noise.push(error * apart);
    }
    if rules.form == Form::Four {
        let (low, high) = scale_ends(&scales);
        let most = noise.iter().fold(0.0, |a: f64, v| a.max(*v));
        // Some roundings of a half of 2^-24 each, in logs to base 2.
        let blur = 2f64.powi(-21) * most;
        raise(&mut faults.grids, grid_fault(page.grids[1], low, high, blur));
        for ((scale, code), error) in scales.iter().zip(&page.codes[1]).zip(&noise) {
            raise(&mut faults.s2, code_fault(page.grids[1], *code, log(*scale)) / error);
        }
    } else {
        for ((scale, stored), error) in scales.iter().zip(s2).zip(&noise) {
            raise(&mut faults.s2, ((scale - stored).abs() / spacing(*scale) - 0.5) / error);
        }
    }
    faults
}

/// What the search makes as small as it can: half the squared distance, or the negative dot product
/// with unit rows.
fn badness(rules: &Rules, target: &[f64], row: &[f64]) -> f64 {
    let dot: f64 = target.iter().zip(row).map(|(a, b)| a * b).sum();
    if rules.plain { row.iter().map(|v| v * v).sum::<f64>() / 2.0 - dot } else { -dot }
}

/// The best row for a target, with the target's signs where those are stored.
fn nearest(rules: &Rules, target: &[f64], book: &[f64]) -> Vec<f64> {
    let with_signs = |row: &[f64]| -> Vec<f64> {
        let negative = |v: &f64| rules.signed() && *v < 0.0;
        row.iter().zip(target).map(|(r, v)| if negative(v) { -r } else { *r }).collect()
    };
    let mut best = with_signs(&book[..target.len()]);
    for row in book.chunks(target.len()).map(with_signs) {
        if badness(rules, target, &row) < badness(rules, target, &best) {
            best = row;
        }
    }
    best
}
