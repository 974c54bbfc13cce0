//! Answers with and without compression.

use anyhow::Result;

use crate::cache::{Cache, Place, Prompt, stream};
use crate::choice::Choice;
use crate::model::Model;

/// The most likely tokens after a prompt, at most `most` of them, up to one of `ends`.
pub fn generate(
    model: &Model,
    choice: &Choice,
    place: &Place,
    prompt: &Prompt,
    most: usize,
    ends: &[u32],
    done: &dyn Fn(u64),
) -> Result<Vec<u32>> {
    let mut cache = Cache::new(choice, model.shape(), place)?;
    prompt.put(&mut cache, None)?;
    let mut last = prompt.last.clone();
    let mut tokens = Vec::new();
    while tokens.len() < most {
        let logits = model.logits(&last)?;
        let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1));
        let Some((token, _)) = best.filter(|(token, _)| !ends.contains(token)) else { break };
        tokens.push(token);
        done(1);
        stream(model, &mut cache, &[token], |_, hidden| {
            last = hidden.to_vec();
            Ok(())
        })?;
    }
    Ok(tokens)
}
