//! Files: sequences of a paged cache saved and loaded again ([`Saved`]), prompt caches of mlx-lm
//! ([`PromptCache`]), and the safetensors format that both are written in ([`Header`]).
//!
//! Whatever bytes a file holds, reading it ends in a value that holds together or in
//! [`Error::File`], which says what is wrong with it; nothing is allocated that the file does not
//! really hold.

mod data;
mod header;
mod mlx;
mod places;
mod saved;
mod sniff;
mod tables;

use crate::error::Error;

pub use data::Data;
pub use header::{Entry, FileDtype, Header, MAX_HEADER};
pub use mlx::{MlxLm, PromptCache, PromptLayer};
pub use saved::Saved;
pub use sniff::looks_like;

#[cfg(target_endian = "big")]
compile_error!("tensors are read as they lie in the file, which is little-endian");

fn refuse(reason: impl Into<String>) -> Error {
    Error::File { reason: reason.into() }
}

/// A name out of a file, fit for a terminal: control characters escaped, long names cut.
pub fn shown(name: &str) -> String {
    const LONGEST: usize = 80;
    let mut text = String::new();
    for c in name.chars().take(LONGEST) {
        // Format characters can turn the line around as control characters can.
        if c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
        {
            text.extend(c.escape_unicode());
        } else {
            text.push(c);
        }
    }
    if name.chars().nth(LONGEST).is_some() {
        text.push_str("...");
    }
    text
}
