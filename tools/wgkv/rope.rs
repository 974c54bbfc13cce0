//! The rotary embedding of keys, from the options.

use std::path::Path;

use wgkv::nsnquant::{Pairing, Rope};

use crate::args::{self, RopeArgs};
use crate::file::{Fail, said, shown, told};

/// Largest list of frequencies in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// What the options say of it.
#[derive(Clone, Debug)]
pub enum Choice {
    /// They say nothing.
    Unsaid,
    /// There is none.
    None,
    /// The base for all channels.
    Theta(Pairing, f64),
    /// Its frequencies.
    Own(Rope),
}

impl Choice {
    /// Checks the options.
    pub fn new(args: &RopeArgs) -> Result<Self, Fail> {
        let pairing = match args.rope_pairing {
            None | Some(args::Pairing::Halves) => Pairing::Halves,
            Some(args::Pairing::Interleaved) => Pairing::Interleaved,
        };
        let named = args.rope_theta.is_some() || args.rope_frequencies.is_some();
        if args.rope_pairing.is_some() && !named {
            let message = "--rope-pairing needs --rope-theta or --rope-frequencies beside it";
            return Err(Fail::input(message));
        }
        if let Some(theta) = args.rope_theta {
            // Any number of channels tells whether the base is one.
            Rope::with_theta(pairing, theta, 2).map_err(|e| Fail::from(e).at("--rope-theta"))?;
            return Ok(Self::Theta(pairing, theta));
        }
        match &args.rope_frequencies {
            Some(path) => {
                let name = shown(&path.display().to_string());
                let list = read(path).map_err(|why| Fail::input(why).at(&name))?;
                Ok(Self::Own(Rope::new(pairing, &list).map_err(|e| Fail::from(e).at(name))?))
            }
            None if args.no_rope => Ok(Self::None),
            None => Ok(Self::Unsaid),
        }
    }

    /// The embedding of keys of so many channels.
    pub fn rope(&self, head_dim: usize) -> Result<Option<Rope>, Fail> {
        match self {
            Self::Unsaid | Self::None => Ok(None),
            Self::Theta(pairing, theta) => Ok(Some(Rope::with_theta(*pairing, *theta, head_dim)?)),
            Self::Own(rope) => Ok(Some(rope.clone())),
        }
    }
}

/// Reads a JSON list of numbers.
fn read(path: &Path) -> Result<Vec<f32>, String> {
    let broken = |e: std::io::Error| format!("cannot be read: {}", said(&e));
    // A pipe would block in open, a device never ends: look before opening.
    let kind = std::fs::metadata(path).map_err(broken)?;
    if !kind.is_file() {
        return Err("is no regular file, expected a JSON list of numbers".into());
    }
    if kind.len() > MAX_BYTES {
        return Err(format!("holds {} bytes, more than {MAX_BYTES}", kind.len()));
    }
    let bytes = std::fs::read(path).map_err(broken)?;
    serde_json::from_slice(&bytes).map_err(|e| format!("is no JSON list of numbers: {}", told(e)))
}
