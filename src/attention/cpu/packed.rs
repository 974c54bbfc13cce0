//! Partial states over the packed pages of a row, read as they are.

use super::math::{dot, dot_tile, weigh_tile};
use super::merge::Partial;
use super::rotate::Block;
use super::{BLOCK, SPLIT, TILE, splits};
use crate::attention::plan::Plan;
use crate::attention::view::PackedView;
use crate::layout::{Family, Gain, MeanDomain, PIECE, PageLayout};
use crate::nsnquant::{Codec, Rope};
use crate::primitives::parallel::map;

/// Smallest norm that a token's centroids are divided by.
const MIN_NORM: f32 = 1e-8;

/// Sign bits of four channels, by the four bits of a sign mask.
const FLIPS: [[u32; 4]; 16] = {
    let mut flips = [[0; 4]; 16];
    let mut mask = 0;
    while mask < 16 {
        let mut channel = 0;
        while channel < 4 {
            flips[mask][channel] = ((!mask >> channel & 1) as u32) << 31;
            channel += 1;
        }
        mask += 1;
    }
    flips
};

/// The codecs of keys and values, with the squared norms of the centroids of their books.
pub(super) struct Codecs<'a> {
    keys: (&'a Codec, Book),
    values: (&'a Codec, Book),
}

struct Book {
    squares: Vec<f32>,
}

impl Book {
    fn new(codec: &Codec) -> Self {
        let rows = codec.book().values().chunks_exact(codec.book().width());
        Self { squares: rows.map(square_sum).collect() }
    }
}

impl<'a> Codecs<'a> {
    pub(super) fn new(keys: &'a Codec, values: &'a Codec) -> Self {
        Self { keys: (keys, Book::new(keys)), values: (values, Book::new(values)) }
    }
}

/// A packed page, with the positions of its tokens; those are not read where attention is not
/// causal and keys have no rotary embedding to be turned by.
#[derive(Clone, Copy)]
pub(super) struct Page<'a> {
    pub(super) keys: &'a [u32],
    pub(super) values: &'a [u32],
    pub(super) positions: &'a [u32],
}

/// Tokens of a tile, looked up and not yet scaled.
struct Tile {
    /// Centroids with their signs, in the Hadamard domain, `[tokens, head_dim]`.
    rows: Vec<f32>,
    s1: [f32; TILE],
    /// `s2` times the gain that the centroids still need.
    s2: [f32; TILE],
}

impl Tile {
    fn new(dim: usize) -> Self {
        Self { rows: vec![0.0; TILE * dim], s1: [0.0; TILE], s2: [0.0; TILE] }
    }

    fn read(
        &mut self,
        (codec, book): &(&Codec, Book),
        page: &[u32],
        tokens: core::ops::Range<usize>,
    ) {
        let dim = codec.layout().head_dim();
        let unit = codec.scheme().family == Family::Unit;
        for (at, token) in tokens.enumerate() {
            let out = &mut self.rows[at * dim..(at + 1) * dim];
            let gain = if unit {
                read_unit(codec, book, page, token, out)
            } else {
                codec.centroids(page, token, out)
            };
            self.s1[at] = codec.s1(page, token);
            self.s2[at] = codec.s2(page, token) * gain;
        }
    }
}

/// As [`Codec::centroids`], with unit books, the signs four at a time.
fn read_unit(codec: &Codec, book: &Book, page: &[u32], token: usize, out: &mut [f32]) -> f32 {
    let layout = codec.layout();
    let rows = codec.book().values();
    let mut square = 0.0;
    for (piece, out) in out.chunks_exact_mut(PIECE).enumerate() {
        let byte = token * layout.pieces() + piece;
        let index = usize::from(PageLayout::byte(page, 0, byte));
        let row = &rows[index * PIECE..(index + 1) * PIECE];
        square += book.squares[index];
        if layout.signs() {
            let mask = PageLayout::byte(page, layout.sign_offset(), byte);
            let low = FLIPS[usize::from(mask & 15)];
            let high = FLIPS[usize::from(mask >> 4)];
            for channel in 0..4 {
                let flipped = row[channel].to_bits() ^ low[channel];
                out[channel] = f32::from_bits(flipped);
            }
            for channel in 0..4 {
                let flipped = row[4 + channel].to_bits() ^ high[channel];
                out[4 + channel] = f32::from_bits(flipped);
            }
        } else {
            out.copy_from_slice(row);
        }
    }
    match codec.scheme().gain {
        Gain::TokenNorm => (layout.head_dim() as f32).sqrt() / square.sqrt().max(MIN_NORM),
        Gain::Unbiased | Gain::NormPreserving => 1.0,
    }
}

fn means(codec: &Codec, page: &[u32], out: &mut [f32]) {
    for (channel, out) in out.iter_mut().enumerate() {
        *out = codec.o(page, channel);
    }
}

/// Whether the means of a codec are in the Hadamard domain.
fn turned(codec: &Codec) -> bool {
    codec.scheme().mean == MeanDomain::Hadamard
}

fn square_sum(c: &[f32]) -> f32 {
    match c.len() {
        8 => square_sum(&c[..4]) + square_sum(&c[4..]),
        4 => square_sum(&c[..2]) + square_sum(&c[2..]),
        _ => c.iter().map(|c| c * c).sum(),
    }
}

/// Logits of the mean of a page turned to the positions of its tokens: for each pair of channels that
/// turns two coefficients of each query, for cosine and sine.
struct Turning {
    coefficients: Vec<[[f32; 2]; BLOCK]>,
}

impl Turning {
    /// Makes the coefficients of queries `[count, dim]` with a mean; what does not turn is added to
    /// `shared`.
    fn start(&mut self, rope: &Rope, queries: &[f32], mean: &[f32], shared: &mut [f32]) {
        let dim = mean.len();
        self.coefficients.resize(rope.frequencies().len(), [[0.0; 2]; BLOCK]);
        for (pair, coefficients) in self.coefficients.iter_mut().enumerate() {
            let (a, b) = rope.channels(pair);
            for (own, query) in coefficients.iter_mut().zip(queries.chunks_exact(dim)) {
                *own = [
                    query[a] * mean[a] + query[b] * mean[b],
                    query[b] * mean[a] - query[a] * mean[b],
                ];
            }
        }
        let turned = 2 * self.coefficients.len();
        for (shared, query) in shared.iter_mut().zip(queries.chunks_exact(dim)) {
            *shared = query[turned..].iter().zip(&mean[turned..]).map(|(q, o)| q * o).sum();
        }
    }

    /// Adds the logits at a position.
    fn add(&self, rope: &Rope, position: u32, logits: &mut [f32; BLOCK]) {
        for (pair, coefficients) in self.coefficients.iter().enumerate() {
            let (cos, sin) = rope.turn_of(pair, position);
            for (logit, [even, odd]) in logits.iter_mut().zip(coefficients) {
                *logit += even * cos + odd * sin;
            }
        }
    }
}

/// One partial state for each split of the pages of a row.
pub(super) fn partials(
    plan: &Plan,
    packed: &PackedView<'_>,
    codecs: &Codecs<'_>,
    row: usize,
    block: &Block<'_>,
) -> Vec<Partial> {
    let range = packed.page_offsets[row] as usize..packed.page_offsets[row + 1] as usize;
    let (keys, values) = (packed.keys.layout(), packed.values.layout());
    let chunk = keys.chunk();
    map(splits(range, (SPLIT / chunk).max(1)), |pages| {
        let mut worker = Worker::new(plan, codecs, block);
        for page in pages {
            let part = |words: usize| page * words..(page + 1) * words;
            worker.page(Page {
                keys: &packed.key_pages[part(keys.words())],
                values: &packed.value_pages[part(values.words())],
                positions: packed.page_positions.get(part(chunk)).unwrap_or(&[]),
            });
        }
        worker.partial
    })
}

/// Takes in packed pages.
pub(super) struct Worker<'a> {
    plan: &'a Plan,
    codecs: &'a Codecs<'a>,
    block: &'a Block<'a>,
    pub(super) partial: Partial,
    keys: Tile,
    values: Tile,
    /// Means of the page at hand.
    means: Vec<f32>,
    turning: Turning,
}

impl<'a> Worker<'a> {
    pub(super) fn new(plan: &'a Plan, codecs: &'a Codecs<'a>, block: &'a Block<'a>) -> Self {
        Self {
            plan,
            codecs,
            block,
            partial: Partial::new(block.scales.len(), plan.head_dim_v, true),
            keys: Tile::new(plan.head_dim_k),
            values: Tile::new(plan.head_dim_v),
            means: vec![0.0; plan.head_dim_k.max(plan.head_dim_v)],
            turning: Turning { coefficients: Vec::new() },
        }
    }

    pub(super) fn page(&mut self, page: Page<'_>) {
        let (dim_k, dim_v) = (self.plan.head_dim_k, self.plan.head_dim_v);
        let count = self.block.scales.len();
        let (keys, values) = (&self.codecs.keys, &self.codecs.values);
        let mut shared = [0.0; BLOCK];
        let rope = keys.0.rope();
        if let Some(rope) = rope {
            let mean = &mut self.means[..dim_k];
            keys.0.mean(page.keys, mean);
            self.turning.start(rope, self.block.plain, mean, &mut shared[..count]);
        } else {
            means(keys.0, page.keys, &mut self.means[..dim_k]);
            for (query, shared) in shared[..count].iter_mut().enumerate() {
                let own = if turned(keys.0) { self.block.rotated } else { self.block.plain };
                *shared = dot(&own[query * dim_k..(query + 1) * dim_k], &self.means[..dim_k]);
            }
        }
        means(values.0, page.values, &mut self.means[..dim_v]);
        let mut logits = [[0.0; TILE]; BLOCK];
        for tile in splits(0..keys.0.layout().chunk(), TILE) {
            let tokens = tile.len();
            self.keys.read(keys, page.keys, tile.clone());
            let rows = &self.keys.rows[..tokens * dim_k];
            dot_tile(self.block.shown, count, rows, dim_k, &mut logits);
            let positions = page.positions.get(tile.clone()).unwrap_or(&[]);
            for at in 0..tokens {
                let mut shared = shared;
                if let Some(rope) = rope {
                    self.turning.add(rope, positions[at], &mut shared);
                }
                for (logits, shared) in logits[..count].iter_mut().zip(shared) {
                    logits[at] = self.keys.s1[at] * (self.keys.s2[at] * logits[at] + shared);
                }
            }
            self.block.logits(self.plan, &mut logits, positions, tokens);
            if self.partial.weigh(&mut logits, tokens) {
                self.values.read(values, page.values, tile);
                self.add(&mut logits, tokens);
            }
        }
    }

    /// Adds the values of a tile, given the weights of its tokens.
    fn add(&mut self, weights: &mut [[f32; TILE]; BLOCK], tokens: usize) {
        let dim = self.plan.head_dim_v;
        let count = self.block.scales.len();
        for (query, weights) in weights[..count].iter_mut().enumerate() {
            let mut total = 0.0;
            for (at, weight) in weights[..tokens].iter_mut().enumerate() {
                let scaled = *weight * self.values.s1[at];
                total += scaled;
                *weight = scaled * self.values.s2[at];
            }
            let sums = match turned(self.codecs.values.0) {
                true => &mut self.partial.rotated,
                false => &mut self.partial.plain,
            };
            let sums = &mut sums[query * dim..(query + 1) * dim];
            for (sum, mean) in sums.iter_mut().zip(&self.means) {
                *sum += total * mean;
            }
        }
        let rows = &self.values.rows[..tokens * dim];
        weigh_tile(&mut self.partial.rotated, weights, count, rows, dim);
    }
}
