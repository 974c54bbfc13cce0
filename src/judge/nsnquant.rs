//! NSNQuant, profile `compat`, from its definition (arXiv 2505.18231, sections 3.1 to 3.3).

use super::{from_bf16, from_f16, tame};

/// Channels that share an index.
const PIECE: usize = 8;

/// One chunk, taken apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Codebook index of each piece, `[r, d / 8]`.
    pub idx: Vec<u8>,
    /// Sign mask of each piece, `[r, d / 8]`; empty at 1 bit.
    pub signs: Vec<u8>,
    /// First scale, `[r]`.
    pub s1: Vec<f64>,
    /// Second scale, `[r]`.
    pub s2: Vec<f64>,
    /// Channel means, `[d]`.
    pub o: Vec<f64>,
}

/// What encoding a chunk goes through.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The codes, scales and means, not rounded.
    pub chunk: Chunk,
    /// Normalised rows before the rotation, `[r, d]`.
    pub normalised: Vec<f64>,
    /// Normalised rows after the rotation, `[r, d]`.
    pub rotated: Vec<f64>,
    /// Best dot product of each piece less the second best, over the norm of the piece:
    /// `[r, d / 8]`.
    pub margin: Vec<f64>,
}

fn residue(a: i64, q: i64) -> f64 {
    let a = a.rem_euclid(q);
    if a == 0 {
        0.0
    } else if (1..q).any(|x| x * x % q == a) {
        1.0
    } else {
        -1.0
    }
}

/// Paley's first construction, q a prime of the form 4k + 3: order q + 1.
fn paley_one(q: usize) -> Vec<Vec<f64>> {
    let mut h = vec![vec![1.0; q + 1]; q + 1];
    for row in 1..=q {
        h[row][0] = -1.0;
        for column in 1..=q {
            let chi = residue(row as i64 - column as i64, q as i64);
            h[row][column] = if row == column { 1.0 } else { chi };
        }
    }
    h
}

/// Paley's second construction, q a prime of the form 4k + 1: order 2 (q + 1), symmetric.
fn paley_two(q: usize) -> Vec<Vec<f64>> {
    let n = 2 * (q + 1);
    let mut h = vec![vec![0.0; n]; n];
    for row in 0..=q {
        for column in 0..=q {
            let block = if row == column {
                [[1.0, -1.0], [-1.0, -1.0]]
            } else {
                let c = if row == 0 || column == 0 {
                    1.0
                } else {
                    residue(row as i64 - column as i64, q as i64)
                };
                [[c, c], [c, -c]]
            };
            for (i, line) in block.iter().enumerate() {
                for (j, value) in line.iter().enumerate() {
                    h[2 * row + i][2 * column + j] = *value;
                }
            }
        }
    }
    h
}

/// The normalised Hadamard matrix of order `d`, `[d, d]`, row by row; `y = H x`.
///
/// # Panics
/// For an order that is not m * 2^k with m in {1, 12, 20, 28}.
pub fn hadamard(d: usize) -> Vec<f64> {
    let odd = d >> d.trailing_zeros();
    let (order, base) = match odd {
        1 => (1, vec![vec![1.0]]),
        3 => (12, paley_two(5)),
        5 => (20, paley_one(19)),
        7 => (28, paley_two(13)),
        _ => panic!("no Hadamard matrix of order {d}"),
    };
    assert_eq!(d % order, 0, "no Hadamard matrix of order {d}");
    let rest = d / order;
    let mut out = vec![0.0; d * d];
    for row in 0..d {
        for column in 0..d {
            let sylvester = ((row % rest) & (column % rest)).count_ones() % 2;
            let sign = if sylvester == 0 { 1.0 } else { -1.0 };
            out[row * d + column] = sign * base[row / rest][column / rest] / (d as f64).sqrt();
        }
    }
    out
}

/// `H x` for one row.
pub fn rotate(h: &[f64], x: &[f64]) -> Vec<f64> {
    h.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

/// `H^T y` for one row.
pub fn rotate_back(h: &[f64], y: &[f64]) -> Vec<f64> {
    let d = y.len();
    (0..d).map(|c| (0..d).map(|r| h[r * d + c] * y[r]).sum()).collect()
}

fn scale_of(row: &[f64]) -> f64 {
    // Taken out of the squares, so that neither huge nor tiny rows leave the range.
    let top = row.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
    if top == 0.0 {
        return 1e-8;
    }
    let sum: f64 = row.iter().map(|x| (x / top).powi(2)).sum();
    (top * sum.sqrt() / (row.len() as f64).sqrt()).max(1e-8)
}

/// Encodes one chunk `x` `[r, d]` with a codebook `[256, 8]`, signed for 1 bit and of magnitudes
/// for 2.
pub fn encode(x: &[f64], d: usize, bits: u32, codebook: &[f64]) -> Encoded {
    let h = hadamard(d);
    let mut rows: Vec<Vec<f64>> =
        x.chunks(d).map(|row| row.iter().map(|v| tame(*v)).collect()).collect();
    let mut chunk = Chunk::default();
    for row in &mut rows {
        let s1 = scale_of(row);
        row.iter_mut().for_each(|v| *v /= s1);
        chunk.s1.push(s1);
    }
    chunk.o = (0..d).map(|c| rows.iter().map(|r| r[c]).sum::<f64>() / rows.len() as f64).collect();
    for row in &mut rows {
        row.iter_mut().zip(&chunk.o).for_each(|(v, o)| *v -= o);
        let s2 = scale_of(row);
        row.iter_mut().for_each(|v| *v /= s2);
        chunk.s2.push(s2);
    }
    let rotated: Vec<f64> = rows.iter().flat_map(|row| rotate(&h, row)).collect();
    let mut margin = Vec::new();
    for piece in rotated.chunks(PIECE) {
        let target: Vec<f64> =
            if bits == 2 { piece.iter().map(|v| v.abs()).collect() } else { piece.to_vec() };
        let dots: Vec<f64> = codebook
            .chunks(PIECE)
            .map(|c| c.iter().zip(&target).map(|(a, b)| a * b).sum())
            .collect();
        let mut best = 0;
        for (index, dot) in dots.iter().enumerate() {
            if *dot > dots[best] {
                best = index;
            }
        }
        let second = dots
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != best)
            .fold(f64::NEG_INFINITY, |a, (_, dot)| a.max(*dot));
        let norm = target.iter().map(|v| v * v).sum::<f64>().sqrt();
        margin.push(if norm > 0.0 { (dots[best] - second) / norm } else { 0.0 });
        chunk.idx.push(best as u8);
        if bits == 2 {
            chunk.signs.push(
                (0..PIECE).map(|e| u8::from(piece[e] >= 0.0) << e).fold(0, |mask, bit| mask | bit),
            );
        }
    }
    Encoded { chunk, normalised: rows.concat(), rotated, margin }
}

/// Centroids of token `t`, rescaled to norm sqrt d, still rotated: `[d]`.
pub fn centroids(chunk: &Chunk, d: usize, codebook: &[f64], t: usize) -> Vec<f64> {
    let pieces = d / PIECE;
    let mut row = Vec::with_capacity(d);
    for piece in t * pieces..(t + 1) * pieces {
        let entry = usize::from(chunk.idx[piece]) * PIECE;
        for e in 0..PIECE {
            let negative = chunk.signs.get(piece).is_some_and(|mask| mask >> e & 1 == 0);
            row.push(if negative { -codebook[entry + e] } else { codebook[entry + e] });
        }
    }
    let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
    row.iter().map(|v| v * (d as f64).sqrt() / norm.max(1e-8)).collect()
}

/// Decodes one chunk to `[r, d]`.
pub fn decode(chunk: &Chunk, d: usize, codebook: &[f64]) -> Vec<f64> {
    let h = hadamard(d);
    (0..chunk.s1.len())
        .flat_map(|t| {
            let y = rotate_back(&h, &centroids(chunk, d, codebook, t));
            (0..d).map(|c| chunk.s1[t] * (chunk.s2[t] * y[c] + chunk.o[c])).collect::<Vec<f64>>()
        })
        .collect()
}

/// The value of a stored row scale: a half, or a bfloat16 where the sign bit is set.
pub fn stored_scale(bits: u16) -> f64 {
    if bits & 0x8000 == 0 { from_f16(bits) } else { from_bf16(bits & 0x7fff) }
}

/// Takes a packed page apart: index plane, sign plane (2 bits only), `s1`, `s2` (16 bits a token),
/// `o` (16 bits a channel), little-endian, each from a whole word on.
///
/// # Panics
/// For a page of another length.
pub fn unpack(page: &[u32], d: usize, bits: u32, r: usize) -> Chunk {
    let bytes: Vec<u8> = page.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut at = 0;
    let mut take = |count: usize| {
        let part = bytes[at..at + count].to_vec();
        at += count.next_multiple_of(4);
        part
    };
    let halves = |part: Vec<u8>| -> Vec<u16> {
        part.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
    };
    let idx = take(r * d / PIECE);
    let signs = if bits == 2 { take(r * d / PIECE) } else { Vec::new() };
    let s1 = halves(take(2 * r)).into_iter().map(stored_scale).collect();
    let s2 = halves(take(2 * r)).into_iter().map(from_f16).collect();
    let o = halves(take(2 * d)).into_iter().map(from_f16).collect();
    assert_eq!(at, bytes.len(), "a page of {r} tokens of {d} channels at {bits} bits");
    Chunk { idx, signs, s1, s2, o }
}
