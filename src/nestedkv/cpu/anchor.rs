//! Step 2, block and window: sums of normalised keys, as integers.

use core::ops::{AddAssign, SubAssign};

use super::norm::LIFT;
use crate::nestedkv::plan::GRID;
use crate::primitives::math::dot_by;

/// An integer that sums of keys on the grid run in: exact, whatever the order.
pub trait Sum: Copy + Default + From<i32> + AddAssign + SubAssign + Send {
    /// The nearest f32.
    fn to_f32(self) -> f32;
}

impl Sum for i32 {
    fn to_f32(self) -> f32 {
        self as f32
    }
}

impl Sum for i64 {
    fn to_f32(self) -> f32 {
        self as f32
    }
}

/// A channel of a normalised key as a multiple of `1 / GRID`, rounded to nearest even.
pub fn to_grid(x: f32) -> i32 {
    // In this binade the unit of f32 is 1, so the addition rounds and the low bits are the integer.
    const BINADE: f32 = 12_582_912.0;
    (x * GRID + BINADE).to_bits() as i32 - BINADE.to_bits() as i32
}

/// The latest keys of a row on the grid, as many as a window and a block need, and the sum of the
/// trailing window.
#[derive(Debug)]
pub struct Window<S> {
    dim: usize,
    window: usize,
    slots: usize,
    keys: Vec<i32>,
    /// What stands for a key before the first.
    zeros: Vec<i32>,
    sum: Vec<S>,
}

impl<S: Sum> Window<S> {
    /// Room for windows of `window` tokens and blocks of `block`.
    pub fn new(dim: usize, window: usize, block: usize) -> Self {
        let slots = window + block;
        let (keys, zeros) = (vec![0; slots * dim], vec![0; dim]);
        Self { dim, window, slots, keys, zeros, sum: vec![S::default(); dim] }
    }

    fn slot(&self, token: usize) -> core::ops::Range<usize> {
        let at = token % self.slots * self.dim;
        at..at + self.dim
    }

    /// Brings the key of `token` to norm 1 by its factor, in place, takes it in, and adds it to `sum`.
    pub fn push(&mut self, token: usize, key: &mut [f32], factor: f32, sum: &mut [S]) {
        let slot = self.slot(token);
        for ((x, to), s) in key.iter_mut().zip(&mut self.keys[slot]).zip(sum) {
            *x = (*x * (1.0 / LIFT)) * factor;
            let on_grid = to_grid(*x);
            *to = on_grid;
            *s += S::from(on_grid);
        }
    }

    /// Takes in a key of the first window, before any [`Self::advance`].
    pub fn enter(&mut self, token: usize, key: &mut [f32], factor: f32) {
        let mut sum = core::mem::take(&mut self.sum);
        self.push(token, key, factor, &mut sum);
        self.sum = sum;
    }

    /// Sum of the window.
    pub fn sum(&self) -> &[S] {
        &self.sum
    }

    /// Moves the sum from the window that ends before `token`, a key taken in, to the one that ends
    /// with it. Returns the dot products of the normalised `key` with `mean`, with the new sum, and with
    /// itself on the grid, each in 8 lanes, 64 channels at a time.
    pub fn advance(&mut self, token: usize, key: &[f32], mean: &[f32]) -> [f32; 3] {
        let new = self.slot(token);
        let new = &self.keys[new];
        let old = match token.checked_sub(self.window) {
            Some(oldest) => &self.keys[self.slot(oldest)],
            None => &self.zeros[..],
        };
        for ((s, new), old) in self.sum.iter_mut().zip(new).zip(old) {
            *s += S::from(new - old);
        }
        [
            dot_by(key, mean, |m| m),
            dot_by(key, &self.sum, S::to_f32),
            dot_by(key, new, |q| q as f32),
        ]
    }
}
