//! Step 2, block and window: sums of normalised keys, as integers.

use core::ops::{AddAssign, SubAssign};

use crate::nestedkv::plan::GRID;

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

/// Adds `x` to `sum`.
pub fn add<S: Sum>(sum: &mut [S], x: &[i32]) {
    for (s, &x) in sum.iter_mut().zip(x) {
        *s += S::from(x);
    }
}

/// The latest keys of a row on the grid, as many as a window and a block need, and the sum of the
/// trailing window.
#[derive(Debug)]
pub struct Window<S> {
    dim: usize,
    window: usize,
    slots: usize,
    keys: Vec<i32>,
    sum: Vec<S>,
}

impl<S: Sum> Window<S> {
    /// Room for windows of `window` tokens and blocks of `block`.
    pub fn new(dim: usize, window: usize, block: usize) -> Self {
        let slots = window + block;
        Self { dim, window, slots, keys: vec![0; slots * dim], sum: vec![S::default(); dim] }
    }

    fn slot(&self, token: usize) -> core::ops::Range<usize> {
        let at = token % self.slots * self.dim;
        at..at + self.dim
    }

    /// Takes the normalised key of `token` in and returns it on the grid.
    pub fn push(&mut self, token: usize, key: &[f32]) -> &[i32] {
        let slot = self.slot(token);
        let on_grid = &mut self.keys[slot];
        for (to, &x) in on_grid.iter_mut().zip(key) {
            *to = to_grid(x);
        }
        on_grid
    }

    /// Adds `token`, a key taken in, to the sum; for the first window, which leaves no token behind.
    pub fn enter(&mut self, token: usize) {
        let slot = self.slot(token);
        add(&mut self.sum, &self.keys[slot]);
    }

    /// Moves the sum from the window that ends before `token`, a key taken in, to the one that ends
    /// with it.
    pub fn advance(&mut self, token: usize) -> &[S] {
        let new = self.slot(token);
        if token >= self.window {
            let old = self.slot(token - self.window);
            let (new, old) = (&self.keys[new], &self.keys[old]);
            for ((s, &new), &old) in self.sum.iter_mut().zip(new).zip(old) {
                *s += S::from(new - old);
            }
        } else {
            add(&mut self.sum, &self.keys[new]);
        }
        &self.sum
    }
}
