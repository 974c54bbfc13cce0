//! Losses of tokens, and what they say together.

use std::ops::Range;

use anyhow::Result;
use rayon::prelude::*;

use crate::cache::{Cache, Place, Prompt, stream};
use crate::choice::Choice;
use crate::model::Model;
use crate::rule::Rule;

/// Tokens whose logits are held at once: a vocabulary may have hundreds of thousands.
const BLOCK: usize = 64;

/// Losses, `-ln p`, of the tokens `scored` of a text. The prompt attends to raw rows and is packed at
/// its end; every later token attends to the cache, and a chunk is packed once its last token has
/// attended. Without a prompt that is so from the first token on. A rule drops rows of the prompt.
pub fn losses(
    model: &Model,
    choice: &Choice,
    place: &Place,
    tokens: &[u32],
    prompt: Option<&Prompt>,
    rule: Option<&Rule>,
    scored: &Range<usize>,
    done: &dyn Fn(u64),
) -> Result<Vec<f32>> {
    let mut cache = Cache::new(choice, model.shape(), place)?;
    let mut found = Vec::new();
    let mut first = 0;
    if let Some(prompt) = prompt {
        prompt.put(&mut cache, rule)?;
        first = prompt.tokens;
        score(model, tokens, first - 1, &prompt.last, scored, &mut found)?;
        done(first as u64);
    }
    // What the last token says is about none of them.
    let rest = &tokens[first..scored.end - 1];
    stream(model, &mut cache, rest, |block, hidden| {
        done(block.len() as u64);
        score(model, tokens, first + block.start, hidden, scored, &mut found)
    })?;
    Ok(found)
}

/// Adds the losses of the tokens after those of `hidden`, the first of which is token `at`.
fn score(
    model: &Model,
    tokens: &[u32],
    at: usize,
    hidden: &[f32],
    scored: &Range<usize>,
    found: &mut Vec<f32>,
) -> Result<()> {
    let width = model.shape().width;
    let count = hidden.len() / width;
    let first = scored.start.saturating_sub(at + 1).min(count);
    let end = (scored.end.saturating_sub(at + 1)).min(count).max(first);
    if first == end {
        return Ok(());
    }
    let targets = &tokens[at + 1 + first..at + 1 + end];
    let hidden = hidden[first * width..end * width].chunks(BLOCK * width);
    for (hidden, targets) in hidden.zip(targets.chunks(BLOCK)) {
        let logits = model.logits(hidden)?;
        let rows = logits.par_chunks_exact(model.shape().vocabulary);
        let losses: Vec<f32> = rows
            .zip(targets)
            .map(|(row, target)| {
                let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = row.iter().map(|x| f64::from((x - top).exp())).sum();
                (sum.ln() + f64::from(top) - f64::from(row[*target as usize])) as f32
            })
            .collect();
        found.extend(losses);
    }
    Ok(())
}

/// The perplexity of losses.
pub fn perplexity(losses: &[f32]) -> f64 {
    mean(losses.iter().map(|x| f64::from(*x))).exp()
}

/// By how much perplexity is above that of a reference, in percent, with the standard error of the
/// paired losses of tokens; over several texts the geometric mean. A pair is a text's losses and those
/// of the reference.
pub fn increase(pairs: &[(&[f32], &[f32])]) -> (f64, f64) {
    let (total, error) =
        average(pairs.iter().map(|(losses, reference)| {
            losses.iter().zip(*reference).map(|(a, b)| f64::from(a - b))
        }));
    let ratio = total.exp();
    (100.0 * (ratio - 1.0), 100.0 * ratio * error)
}

/// The mean over texts of the means of their tokens, with its standard error.
pub fn average<T: Iterator<Item = f64>>(texts: impl IntoIterator<Item = T>) -> (f64, f64) {
    let (mut total, mut variance, mut count) = (0.0, 0.0, 0.0f64);
    for text in texts {
        let values: Vec<f64> = text.collect();
        let middle = mean(values.iter().copied());
        let square = values.iter().map(|x| (x - middle) * (x - middle)).sum::<f64>();
        let tokens = values.len() as f64;
        total += middle;
        variance += square / (tokens - 1.0).max(1.0) / tokens;
        count += 1.0;
    }
    (total / count, variance.sqrt() / count)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), x| (sum + x, count + 1));
    sum / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increases_are_geometric_means() {
        let reference = [[1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, 1.0]];
        let losses = [[1.1, 2.1, 3.1, 4.1], [0.3, 1.3, 0.3, 1.3]];
        let pairs = [0, 1].map(|text| (&losses[text][..], &reference[text][..]));
        let (percent, error) = increase(&pairs);
        assert!((percent - 100.0 * (0.2f64.exp() - 1.0)).abs() < 1e-4, "{percent}");
        assert!(error < 1e-3, "{error}");
        assert!((perplexity(&reference[0]) - 2.5f64.exp()).abs() < 1e-9);
    }
}
