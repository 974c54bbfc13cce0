//! Step 2, block and window: means of normalised keys.

use crate::nestedkv::plan::{DIRECT_WINDOW, PIECE_TOKENS};

/// Adds `x` to `sum`.
pub fn add(sum: &mut [f32], x: &[f32]) {
    for (s, x) in sum.iter_mut().zip(x) {
        *s += x;
    }
}

/// Subtracts `x` from `sum`.
pub fn subtract(sum: &mut [f32], x: &[f32]) {
    for (s, x) in sum.iter_mut().zip(x) {
        *s -= x;
    }
}

/// The latest normalised keys of a row, as many as a window and a block need, and the sum of the
/// trailing window.
#[derive(Debug)]
pub struct Window {
    dim: usize,
    window: usize,
    mask: usize,
    keys: Vec<f32>,
    sum: Vec<f32>,
    /// Sums of pieces from the first token on; empty where the window is summed token by token.
    pieces: Vec<f32>,
}

impl Window {
    /// Room for windows of `window` tokens and blocks of `block`, in a row of `tokens`.
    pub fn new(dim: usize, window: usize, block: usize, tokens: usize) -> Self {
        let window = window.min(tokens);
        let slots = (window + block).next_power_of_two();
        let pieces = if window > DIRECT_WINDOW { tokens.div_ceil(PIECE_TOKENS) } else { 0 };
        Self {
            dim,
            window,
            mask: slots - 1,
            keys: vec![0.0; slots * dim],
            sum: vec![0.0; dim],
            pieces: vec![0.0; pieces * dim],
        }
    }

    /// The place of the normalised key of `token`, to be filled.
    pub fn key_mut(&mut self, token: usize) -> &mut [f32] {
        let at = (token & self.mask) * self.dim;
        &mut self.keys[at..at + self.dim]
    }

    /// The normalised key of `token`.
    pub fn key(&self, token: usize) -> &[f32] {
        let at = (token & self.mask) * self.dim;
        &self.keys[at..at + self.dim]
    }

    /// Takes note of a filled key; to be called token by token.
    pub fn note(&mut self, token: usize) {
        if !self.pieces.is_empty() {
            let piece = token / PIECE_TOKENS * self.dim;
            let at = (token & self.mask) * self.dim;
            add(&mut self.pieces[piece..piece + self.dim], &self.keys[at..at + self.dim]);
        }
    }

    /// Sum of the window.
    pub fn sum(&self) -> &[f32] {
        &self.sum
    }

    /// Sums the window that ends with `token` from the start.
    pub fn restart(&mut self, token: usize) {
        self.sum.fill(0.0);
        let mut next = (token + 1).saturating_sub(self.window);
        while next <= token {
            let whole = next.is_multiple_of(PIECE_TOKENS) && next + PIECE_TOKENS <= token + 1;
            if whole && !self.pieces.is_empty() {
                let piece = next / PIECE_TOKENS * self.dim;
                add(&mut self.sum, &self.pieces[piece..piece + self.dim]);
                next += PIECE_TOKENS;
            } else {
                let at = (next & self.mask) * self.dim;
                add(&mut self.sum, &self.keys[at..at + self.dim]);
                next += 1;
            }
        }
    }

    /// Moves the sum from the window that ends before `token` to the one that ends with it.
    pub fn advance(&mut self, token: usize) {
        let at = (token & self.mask) * self.dim;
        add(&mut self.sum, &self.keys[at..at + self.dim]);
        if token >= self.window {
            let at = ((token - self.window) & self.mask) * self.dim;
            subtract(&mut self.sum, &self.keys[at..at + self.dim]);
        }
    }
}
