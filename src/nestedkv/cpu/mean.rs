//! Step 2: mean of the normalised keys of every row.

/// Blocks that add up before their sum is added to the row's, so that the result does not depend on
/// how the blocks are spread over threads.
pub const BLOCKS_PER_TASK: usize = 16;

/// Mean of `tokens` keys from the sums of their tasks, `[dim]` each.
pub fn mean<'a>(sums: impl IntoIterator<Item = &'a [f32]>, dim: usize, tokens: usize) -> Vec<f32> {
    let mut mean = vec![0.0f32; dim];
    for sum in sums {
        for (m, s) in mean.iter_mut().zip(sum) {
            *m += s;
        }
    }
    for m in &mut mean {
        *m /= tokens as f32;
    }
    mean
}
