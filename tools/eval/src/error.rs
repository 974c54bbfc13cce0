//! What packing does to the outputs of attention.

use std::ops::Range;

use anyhow::Result;
use rayon::prelude::*;

use crate::cache::{Cache, Place, stream_with};
use crate::choice::Choice;
use crate::model::Model;

/// Errors of attention outputs by layer and query head: the norm of the difference to the outputs
/// over raw rows, over the norm of those, of all tokens `scored` together. The model goes on with the
/// raw outputs, so errors do not add up over layers.
pub fn attention_errors(
    model: &Model,
    choice: &Choice,
    place: &Place,
    tokens: &[u32],
    scored: &Range<usize>,
    done: &dyn Fn(u64),
) -> Result<Vec<Vec<f64>>> {
    let shape = *model.shape();
    let mut raw = Cache::new(&Choice::parse("f16", choice.window)?, &shape, place)?;
    let mut cache = Cache::new(choice, &shape, place)?;
    let mut sums = vec![vec![[0.0f64; 2]; shape.heads]; shape.layers];
    // A step of the raw cache, one for all layers of a block.
    let mut open = None;
    let rest = &tokens[..scored.end];
    stream_with(
        model,
        &mut cache,
        rest,
        usize::MAX,
        |cache, step, layer, rows| {
            let count = rows.queries.len() / shape.heads / shape.head_dim;
            if layer == 0 {
                open = Some((raw.seen()?, raw.open(crate::cache::Kind::Answer, count)?));
            }
            cache.write(step, layer, &rows.keys, &rows.values)?;
            let got = cache.attend(layer, &rows.queries, rows.window)?;
            let Some((first, step)) = &open else { return Ok(got) };
            raw.write(step, layer, &rows.keys, &rows.values)?;
            let expected = raw.attend(layer, &rows.queries, rows.window)?;
            let size = count * shape.head_dim;
            let skip = scored.start.saturating_sub(*first).min(count) * shape.head_dim;
            let heads = got.par_chunks_exact(size).zip(expected.par_chunks_exact(size));
            sums[layer].par_iter_mut().zip(heads).for_each(|(sums, (got, expected))| {
                for (got, expected) in got[skip..].iter().zip(&expected[skip..]) {
                    sums[0] += f64::from(got - expected).powi(2);
                    sums[1] += f64::from(*expected).powi(2);
                }
            });
            Ok(expected)
        },
        &mut |block, _| {
            done(block.len() as u64);
            Ok(())
        },
    )?;
    let error = |[error, size]: &[f64; 2]| (error / size).sqrt();
    Ok(sums.iter().map(|heads| heads.iter().map(error).collect()).collect())
}
