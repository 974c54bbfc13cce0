//! Names of what a cache may be.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use wgkv::cache::pool::PoolConfig;
use wgkv::layout::Bits;
use wgkv::nsnquant::{Gain, Pairing, Profile, Rope};
use wgkv::shape::Dtype;

use crate::fake::Fake;
use crate::model::{Pairs, Shape};

/// Bytes that a cache of this tool may take, all in all and at once.
const BUDGET: u64 = 1 << 34;
const SLAB: u64 = 1 << 20;

/// How rows behind the frontier are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// As they are, in f16.
    Raw,
    /// Packed by the library, keys and values at these rates.
    Packed {
        /// How, at these rates.
        profile: Profile,
        /// Of keys.
        keys: Bits,
        /// Of values.
        values: Bits,
        /// Whether keys are under a key scale.
        scaled: bool,
        /// Keys without their rotary embedding.
        still: bool,
    },
    /// Quantised and restored by another method.
    Fake(Fake),
}

/// Rows that stay raw, and the length of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First rows, raw for good.
    pub sinks: usize,
    /// Newest rows, always raw.
    pub recent: usize,
    /// Rows of a chunk.
    pub chunk: usize,
}

/// What a cache is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The name that it was asked for by.
    pub name: String,
    /// How rows are kept.
    pub codec: Codec,
    /// What stays raw.
    pub window: Window,
}

impl fmt::Display for Choice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Window { sinks, recent, chunk } = self.window;
        match self.codec {
            Codec::Raw => out.write_str(&self.name),
            _ => write!(out, "{} S{sinks} W{recent} r{chunk}", self.name),
        }
    }
}

impl Choice {
    /// Reads `NAME` or `NAME@OPTIONS`. Names are `f16`, `compat-k2v2`, `tuned-k3v2` (rates of keys and values),
    /// `paper-k2v2`, whose keys are packed without their rotary embedding, as those of the others are with
    /// `-rope` behind it, `int4-g64` (bits and group), `q4_0`, `q8_0`, and `decoded-tuned-k3v2`, which decodes
    /// before it attends, with choices behind it: `-scaled` where keys have a scale (packed ones too: before
    /// `-rope`), `-signs` where channels get
    /// random signs, `-knorm`, `-kunbiased`, `-vnorm`, `-vunbiased` for another gain, `-k90` and `-v90` for gains of 90% of
    /// that; options are `s`, `w` and `r` with a
    /// number each, as in `compat-k2v2@s4w16`.
    pub fn parse(text: &str, window: Window) -> Result<Self> {
        let (name, options) = text.split_once('@').unwrap_or((text, ""));
        let mut choice = Self { name: name.to_owned(), codec: codec(name)?, window };
        let mut rest = options;
        while let Some(kind) = rest.chars().next() {
            rest = &rest[kind.len_utf8()..];
            let digits = rest.chars().take_while(char::is_ascii_digit).count();
            let number = rest[..digits].parse();
            let number = number.with_context(|| format!("a number after {kind} in {text}"))?;
            match kind {
                's' => choice.window.sinks = number,
                'w' => choice.window.recent = number,
                'r' => choice.window.chunk = number,
                _ => bail!("options of {text} are s, w and r, not {kind}"),
            }
            rest = &rest[digits..];
        }
        Ok(choice)
    }

    /// The pool of such a cache for one text at a time.
    pub fn pool(&self, shape: &Shape) -> Result<PoolConfig> {
        let Window { sinks, recent, chunk } = self.window;
        if let Codec::Fake(fake) = self.codec {
            fake.check(chunk, shape.head_dim)?;
        }
        Ok(PoolConfig {
            key_scale: matches!(self.codec, Codec::Packed { scaled: true, .. }),
            layers: shape.layers,
            heads: shape.kv_heads,
            head_dim_k: shape.head_dim,
            head_dim_v: shape.head_dim,
            bits: match self.codec {
                Codec::Packed { keys, values, .. } => Some((keys, values)),
                Codec::Raw | Codec::Fake(_) => None,
            },
            profile: match self.codec {
                Codec::Packed { profile, .. } => profile,
                Codec::Raw | Codec::Fake(_) => Profile::default(),
            },
            rope: match self.codec {
                Codec::Packed { still: true, .. } => Some(rope(shape)?),
                _ => None,
            },
            signs: None,
            chunk,
            sinks,
            recent,
            raw: Dtype::F16,
            byte_budget: BUDGET,
            slab_bytes: SLAB,
        })
    }

    /// Bits an element of keys and values behind the frontier, scales and means counted.
    pub fn bits(&self, shape: &Shape) -> Result<[f64; 2]> {
        Ok(match self.codec {
            Codec::Raw => [16.0; 2],
            Codec::Fake(fake) => fake.bits(self.window.chunk, shape.head_dim)?,
            Codec::Packed { .. } => {
                let layout = self.pool(shape)?.layout()?;
                let pages = layout.packed().context("a packed layout")?;
                let elements = (self.window.chunk * shape.head_dim) as f64;
                [0, 1].map(|side| 8.0 * pages[side].data_bytes() as f64 / elements)
            }
        })
    }
}

/// The rotary embedding of a model's keys.
fn rope(shape: &Shape) -> Result<Rope> {
    let pairing = match shape.pairs {
        Some(Pairs::Neighbours) => Pairing::Interleaved,
        Some(Pairs::Halves) => Pairing::Halves,
        None => bail!("a cache takes off one rotary embedding, the layers of this model have two"),
    };
    Ok(Rope::with_theta(pairing, shape.rope_base.into(), shape.head_dim)?)
}

fn codec(name: &str) -> Result<Codec> {
    let profile = |text: &str| -> Option<(Profile, [Bits; 2])> {
        let (profile, rates) = text.split_once('-')?;
        let profile = match profile {
            "compat" => Profile::Compat,
            "tuned" => Profile::Tuned,
            "paper" => Profile::Paper,
            _ => return None,
        };
        Some((profile, rates_of(rates)?))
    };
    let (plain, rope) = match name.strip_suffix("-rope") {
        Some(plain) => (plain, true),
        None => (name, false),
    };
    let (plain, scaled) = match plain.strip_suffix("-scaled") {
        Some(plain) => (plain, true),
        None => (plain, false),
    };
    if let Some((profile, [keys, values])) = profile(plain) {
        let still = rope || profile == Profile::Paper;
        return Ok(Codec::Packed { profile, keys, values, scaled, still });
    }
    if let Some(inner) = name.strip_prefix("decoded-") {
        let mut parts = inner.split('-');
        let inner = [parts.next(), parts.next()].map(Option::unwrap_or_default).join("-");
        let (profile, rates) =
            profile(&inner).with_context(|| format!("a profile with rates in {name}"))?;
        let mut schemes = [profile.key_scheme(rates[0]), profile.scheme(rates[1])];
        let (mut scaled, mut gains) = (false, [100; 2]);
        let percent = |side: char, part: &str| part.strip_prefix(side)?.parse::<u32>().ok();
        for part in parts {
            if let Some(gain) = percent('k', part) {
                gains[0] = gain;
                continue;
            }
            if let Some(gain) = percent('v', part) {
                gains[1] = gain;
                continue;
            }
            match part {
                "scaled" => scaled = true,
                "signs" => schemes.iter_mut().for_each(|scheme| scheme.signs = Some(1)),
                "kunbiased" => schemes[0].gain = Gain::Unbiased,
                "vunbiased" => schemes[1].gain = Gain::Unbiased,
                "knorm" => schemes[0].gain = Gain::NormPreserving,
                "vnorm" => schemes[1].gain = Gain::NormPreserving,
                _ => bail!("{part} in {name}: scaled, signs, kunbiased, vunbiased, knorm or vnorm"),
            }
        }
        return Ok(Codec::Fake(Fake::Decoded { schemes, scaled, gains }));
    }
    if let Some((bits, group)) = name.strip_prefix("int").and_then(|name| name.split_once("-g")) {
        let (bits, group) = (bits.parse()?, group.parse()?);
        ensure!((1..=8).contains(&bits) && group > 0, "{name}: bits from 1 to 8, group above 0");
        return Ok(Codec::Fake(Fake::Grid { bits, group }));
    }
    Ok(match name {
        "f16" => Codec::Raw,
        "q4_0" => Codec::Fake(Fake::Block { bits: 4 }),
        "q8_0" => Codec::Fake(Fake::Block { bits: 8 }),
        _ => bail!("no codec {name}: f16, tuned-k3v2, compat-k2v2, int4-g64, q4_0 or q8_0, say"),
    })
}

/// Rates written as `k3v2`.
fn rates_of(text: &str) -> Option<[Bits; 2]> {
    let (keys, values) = text.strip_prefix('k')?.split_once('v')?;
    let rate = |digits: &str| {
        let bits: usize = digits.parse().ok()?;
        Bits::ALL.into_iter().find(|rate| rate.get() == bits)
    };
    Some([rate(keys)?, rate(values)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_cache_is() {
        let window = Window { sinks: 4, recent: 16, chunk: 64 };
        let choice = Choice::parse("compat-k2v1@s0w0", window).unwrap();
        let (profile, keys, values) = (Profile::Compat, Bits::Two, Bits::One);
        let (scaled, still) = (false, false);
        assert_eq!(choice.codec, Codec::Packed { profile, keys, values, scaled, still });
        assert_eq!(choice.window, Window { sinks: 0, recent: 0, chunk: 64 });
        let choice = Choice::parse("compat-k2v1-scaled", window).unwrap();
        let scaled = true;
        assert_eq!(choice.codec, Codec::Packed { profile, keys, values, scaled, still });
        for name in ["paper-k2v2", "tuned-k3v2-rope", "tuned-k3v2-scaled-rope"] {
            let choice = Choice::parse(name, window).unwrap();
            assert!(matches!(choice.codec, Codec::Packed { still: true, .. }), "{name}");
        }
        let choice = Choice::parse("int4-g32@r128", window).unwrap();
        assert_eq!(choice.codec, Codec::Fake(Fake::Grid { bits: 4, group: 32 }));
        assert_eq!(choice.window, Window { chunk: 128, ..window });
        for bad in [
            "",
            "f32",
            "compat-2",
            "compat-k5v2",
            "best-k2v2",
            "decoded-int4-g64",
            "int4",
            "int9-g64",
            "f16@x1",
            "f16@s",
            "f16@é1",
        ] {
            assert!(Choice::parse(bad, window).is_err(), "{bad}");
        }
    }
}
