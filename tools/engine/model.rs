//! In place of a model: keys, values and queries that depend on nothing but a seed, the text of a
//! sequence, the layer and the position.

use wgkv::half::f16;

/// Shape of the model.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub layers: usize,
    /// Query heads.
    pub query_heads: usize,
    /// KV heads; each serves as many query heads as there are for one.
    pub kv_heads: usize,
    pub head_dim: usize,
    pub seed: u64,
}

/// What a model makes of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Key = 1,
    Value,
    Query,
}

/// The tokens of a sequence: whatever was said, by position. A text may begin like another.
#[derive(Clone, Debug, Default)]
pub struct Text {
    pub tokens: Vec<u32>,
}

impl Text {
    /// Goes on with `count` tokens of a story.
    pub fn extend(&mut self, story: u32, count: u32) {
        let start = self.tokens.len() as u32;
        self.tokens.extend((start..start + count).map(|token| story << 16 | token));
    }
}

impl Model {
    /// Rows of one side of one layer for tokens `first..` of some texts, `[heads, tokens, head_dim]`
    /// of each, one after another.
    pub fn rows(&self, side: Side, layer: usize, parts: &[(&Text, usize, usize)]) -> Vec<f16> {
        let heads = if side == Side::Query { self.query_heads } else { self.kv_heads };
        let mut rows = Vec::new();
        for (text, first, count) in parts {
            for head in 0..heads {
                // Channels have a mean of their own, which packing makes use of.
                let mut means = Numbers::new(&[self.seed, layer as u64, head as u64, side as u64]);
                let means: Vec<f32> = (0..self.head_dim).map(|_| means.next()).collect();
                for token in &text.tokens[*first..first + count] {
                    let place = [self.seed, layer as u64, head as u64, side as u64];
                    let mut noise = Numbers::new(&[
                        place[0],
                        place[1],
                        place[2],
                        place[3],
                        1 + u64::from(*token),
                    ]);
                    rows.extend(means.iter().map(|mean| f16::from_f32(mean + noise.next())));
                }
            }
        }
        rows
    }
}

/// Numbers around 0 with a deviation near 1, the same on every machine.
struct Numbers(u64);

impl Numbers {
    fn new(seed: &[u64]) -> Self {
        let mix = |state: u64, part: &u64| {
            let mixed = (state ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ mixed >> 29
        };
        Self(seed.iter().fold(0x2545_f491_4f6c_dd1d, mix) | 1)
    }

    fn next(&mut self) -> f32 {
        let mut uniform = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        uniform() + uniform() + uniform()
    }
}
