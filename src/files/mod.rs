//! Files: sequences of a paged cache saved and loaded again ([`Saved`]), prompt caches of mlx-lm
//! ([`PromptCache`]), and the safetensors format that both are written in ([`Header`]).
//!
//! Whatever bytes a file holds, reading it ends in a value that holds together or in
//! [`Error::File`], which says what is wrong with it; nothing is allocated that the file does not
//! really hold.

mod cpu;
mod data;
mod gpu;
mod header;
mod mlx;
mod places;
mod saved;
mod sniff;
mod tables;

use crate::cache::pool::{Pool, PoolConfig, SequenceId};
use crate::error::{Error, Result};

pub use data::Data;
pub use header::{Entry, FileDtype, Header, MAX_HEADER};
pub use mlx::{MlxLm, PromptCache, PromptLayer};
pub use saved::Saved;
pub use sniff::looks_like;

#[cfg(target_endian = "big")]
compile_error!("tensors are read as they lie in the file, which is little-endian");

/// Checks that a prompt cache has the shape of a pool and holds as much as it says.
fn check_fits(config: &PoolConfig, cache: &PromptCache) -> Result<()> {
    let of_pool = [
        ("layers", cache.layers.len(), config.layers),
        ("heads", cache.heads, config.heads),
        ("head_dim_k", cache.head_dim_k, config.head_dim_k),
        ("head_dim_v", cache.head_dim_v, config.head_dim_v),
    ];
    for (argument, got, expected) in of_pool {
        if got != expected {
            return Err(Error::Mismatch { argument, got, expected, reference: "the pool" });
        }
    }
    let (got, max) = (cache.tokens as u64, u64::from(u32::MAX - 1));
    if got > max {
        return Err(Error::OutOfRange { argument: "tokens", got, min: 1, max });
    }
    for (argument, count) in [("batch", cache.batch), ("tokens", cache.tokens)] {
        if count == 0 {
            return Err(Error::Empty { argument });
        }
    }
    let rows = cache.batch.checked_mul(cache.heads).and_then(|n| n.checked_mul(cache.tokens));
    for layer in &cache.layers {
        let sides =
            [("keys", &layer.keys, cache.head_dim_k), ("values", &layer.values, cache.head_dim_v)];
        for (argument, data, dim) in sides {
            let expected = rows.and_then(|n| n.checked_mul(dim)).unwrap_or(usize::MAX);
            let got = data.elements().len();
            if got != expected {
                return Err(Error::Length { argument, got, expected });
            }
        }
    }
    Ok(())
}

/// Checks that sequences have all their rows and are of one length, and returns it: a prompt cache
/// of mlx-lm knows no positions.
fn check_whole(pool: &Pool, sequences: &[SequenceId]) -> Result<usize> {
    let Some(first) = sequences.first() else {
        return Err(Error::Empty { argument: "sequences" });
    };
    let tokens = pool.seen(*first)?;
    for (index, id) in sequences.iter().enumerate() {
        let seen = pool.seen(*id)?;
        if seen != tokens {
            let (got, expected) = (seen as usize, tokens as usize);
            let (argument, reference) = ("tokens of a sequence", "the first sequence");
            return Err(Error::Mismatch { argument, got, expected, reference });
        }
        for layer in 0..pool.config().layers {
            for head in 0..pool.config().heads {
                let got = pool.rows(*id, layer, head)?;
                if got != seen {
                    let argument = "a prompt cache of mlx-lm";
                    return Err(Error::NotWhole { argument, index, layer, head, got, seen });
                }
            }
        }
    }
    if tokens == 0 {
        return Err(Error::Empty { argument: "tokens" });
    }
    Ok(tokens as usize)
}

fn refuse(reason: impl Into<String>) -> Error {
    Error::File { reason: reason.into() }
}

/// A name out of a file, fit for a terminal: control characters escaped, long names cut.
pub fn shown(name: &str) -> String {
    escaped(name, 80)
}

/// What a parser says, which may quote the file: as [`shown`], but with room for a sentence.
fn told(error: impl core::fmt::Display) -> String {
    escaped(&error.to_string(), 200)
}

fn escaped(name: &str, longest: usize) -> String {
    let mut text = String::new();
    for c in name.chars().take(longest) {
        // Format characters can turn the line around as control characters can.
        if c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
        {
            text.extend(c.escape_unicode());
        } else {
            text.push(c);
        }
    }
    if name.chars().nth(longest).is_some() {
        text.push_str("...");
    }
    text
}
