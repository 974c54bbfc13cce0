//! Which layers a file holds, under which names, and their dense tensors.

use std::collections::BTreeMap;
use std::io::{Read, Seek};

use wgkv::files::PromptCache;
use wgkv::shape::{Tensor, check_head_dim};

use crate::file::{Data, Fail, Header, Source, shown};
use crate::report::say;

/// What a file is, judged by the names in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Keys and values `[B, H, N, D]`.
    Dense,
    /// Kept rows of each head, ragged.
    Evicted,
    /// A packed cache.
    Packed,
    /// Codes out of `quantize --dump-codes`.
    Codes,
    /// Scores.
    Scores,
    /// Queries alone.
    Queries,
    /// Outputs of attention.
    Outputs,
    /// Lists of scores, one a head.
    Heads,
    /// Steps of a replay.
    Steps,
    /// Codebooks.
    Codebook,
    /// Sequences of a paged cache.
    Sequences,
    /// None of these.
    Unknown,
}

impl Kind {
    /// Judges a header.
    pub fn of(header: &Header) -> Self {
        let format = header.metadata.get("format").map(String::as_str);
        let layer = |names: &[&str]| {
            header
                .tensors
                .keys()
                .any(|name| layer_tensor(name).is_some_and(|(_, tensor)| names.contains(&tensor)))
        };
        if format == Some("wgkv-sequences") {
            Self::Sequences
        } else if format == Some("wgkv-packed") || layer(&["pages_offsets"]) {
            Self::Packed
        } else if layer(&["offsets"]) {
            Self::Evicted
        } else if layer(&["k", "v"]) {
            Self::Dense
        } else if layer(&["k.idx", "v.idx"]) {
            Self::Codes
        } else if layer(&["score"]) {
            Self::Scores
        } else if layer(&["q"]) {
            Self::Queries
        } else if layer(&["out"]) {
            Self::Outputs
        } else if header.tensors.keys().any(|name| numbered(name, "head.").is_some()) {
            Self::Heads
        } else if header.tensors.keys().any(|name| name.starts_with("step.")) {
            Self::Steps
        } else if header.tensors.contains_key("codebook_signed") {
            Self::Codebook
        } else {
            Self::Unknown
        }
    }

    /// In words, with an article.
    pub fn words(self) -> &'static str {
        match self {
            Self::Dense => "a dense cache (keys and values)",
            Self::Evicted => "an evicted cache",
            Self::Packed => "a packed cache",
            Self::Codes => "a dump of codes",
            Self::Scores => "a file of scores",
            Self::Queries => "a file of queries",
            Self::Outputs => "a file of attention outputs",
            Self::Heads => "a file of per-head scores",
            Self::Steps => "a file of replay steps",
            Self::Codebook => "a codebook",
            Self::Sequences => "sequences of a paged cache",
            Self::Unknown => "a safetensors file without layers",
        }
    }
}

/// Refuses a file of a kind that the verb does not read, and says what would help.
pub fn want<R: Read + Seek>(source: &Source<R>, kinds: &[Kind], needs: &str) -> Result<Kind, Fail> {
    let kind = Kind::of(source.header());
    if kinds.contains(&kind) {
        return Ok(kind);
    }
    let hint = match kind {
        Kind::Packed if kinds.contains(&Kind::Dense) => " (use dequantize first)",
        Kind::Evicted if kinds.contains(&Kind::Dense) => " (it has been evicted already)",
        _ => "",
    };
    let message = format!("is {}, expected {needs}{hint}", kind.words());
    Err(Fail::input(message).at(source.name()))
}

/// `layers.<i>.<tensor>` or mlx-lm's `<i>.0` and `<i>.1` taken apart.
pub fn layer_tensor(name: &str) -> Option<(u32, &str)> {
    if let Some(rest) = name.strip_prefix("layers.") {
        let (index, tensor) = rest.split_once('.')?;
        return Some((canonical(index)?, tensor));
    }
    let (index, part) = name.split_once('.')?;
    let tensor = match part {
        "0" => "k",
        "1" => "v",
        _ => return None,
    };
    Some((canonical(index)?, tensor))
}

/// The number behind `prefix`.
pub fn numbered(name: &str, prefix: &str) -> Option<u32> {
    canonical(name.strip_prefix(prefix)?)
}

/// A number as it would be printed: "01" is another name than "1".
fn canonical(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// Tensor names of one layer, by their short name.
pub type Names = BTreeMap<String, String>;

/// The layers of a file that `select` asks for (all of them without), in order.
pub fn layers<R: Read + Seek>(
    source: &Source<R>,
    select: Option<&[u32]>,
) -> Result<Vec<(u32, Names)>, Fail> {
    let mut found: BTreeMap<u32, Names> = BTreeMap::new();
    for name in source.header().tensors.keys() {
        if let Some((index, tensor)) = layer_tensor(name) {
            let names = found.entry(index).or_default();
            if let Some(other) = names.insert(tensor.to_string(), name.clone()) {
                return Err(source.fail(name, format!("and {} name the same thing", shown(&other))));
            }
        }
    }
    if let Some((_, classes)) = PromptCache::classes(source.header()) {
        // mlx-lm says of each cache what it is; a ring has its rows in another order.
        let other = classes.iter().enumerate().find(|(_, class)| !PromptCache::reads(class));
        if let Some((layer, class)) = other {
            let message = format!("comes from a {}, only a KVCache is read", shown(class));
            return Err(source.fail(&format!("{layer}.0"), message));
        }
    }
    if found.is_empty() {
        return Err(Fail::input("holds no layers.<i>.k or layers.<i>.v").at(source.name()));
    }
    let Some(select) = select else {
        return Ok(found.into_iter().collect());
    };
    let mut chosen = BTreeMap::new();
    for index in select {
        match found.get(index) {
            Some(names) => chosen.insert(*index, names.clone()),
            None => return Err(no_layer(source, *index, found.keys())),
        };
    }
    Ok(chosen.into_iter().collect())
}

/// The refusal of a layer that is not among those of the file, of which a few are named.
pub fn no_layer<'a, R: Read + Seek>(
    source: &Source<R>,
    layer: u32,
    there: impl ExactSizeIterator<Item = &'a u32>,
) -> Fail {
    const NAMED: usize = 16;
    let count = there.len();
    let mut named = there.take(NAMED).map(u32::to_string).collect::<Vec<_>>().join(", ");
    if count > NAMED {
        named.push_str(&format!(", ... ({count} in all)"));
    }
    let which = if count == 0 { "no layers".into() } else { format!("layers {named}") };
    let message = format!("is not in the file, which has {which}");
    source.fail(&format!("layers.{layer}"), message)
}

/// A tensor `[batch, heads, tokens, head_dim]`.
#[derive(Debug)]
pub struct Dense {
    /// Its name in the file.
    pub name: String,
    pub batch: usize,
    pub heads: usize,
    pub tokens: usize,
    pub head_dim: usize,
    pub data: Data,
}

impl Dense {
    /// Judges a tensor of a layer by the header alone: its name in the file and its shape.
    pub fn check<R: Read + Seek>(
        source: &Source<R>,
        layer: u32,
        names: &Names,
        tensor: &str,
    ) -> Result<(String, [usize; 4]), Fail> {
        let Some(name) = names.get(tensor) else {
            return Err(source.fail(&format!("layers.{layer}.{tensor}"), "is missing"));
        };
        let entry = source.entry(name, 4)?;
        if !entry.dtype.is_float() {
            let message = format!("has dtype {}, expected F32, F16 or BF16", entry.dtype.name());
            return Err(source.fail(name, message));
        }
        let shape = entry.shape;
        if let Some(axis) = shape.iter().position(|&n| n == 0) {
            let message = format!("has shape {shape:?}: {} is 0", ["B", "H", "N", "D"][axis]);
            return Err(source.fail(name, message));
        }
        check_head_dim("head dim", shape[3])
            .map_err(|e| Fail::from(e).at(shown(name)).at(source.name()))?;
        let tokens = match source.told(layer).filter(|_| !name.starts_with("layers.")) {
            Some(0) => return Err(source.fail(name, "holds no tokens")),
            Some(told) if told > shape[2] => {
                let message = format!("has room for {} tokens of {told}", shape[2]);
                return Err(source.fail(name, message));
            }
            told => told.unwrap_or(shape[2]),
        };
        Ok((name.clone(), [shape[0], shape[1], tokens, shape[3]]))
    }

    /// Reads a tensor of a layer; an error when it is missing.
    pub fn read<R: Read + Seek>(
        source: &mut Source<R>,
        layer: u32,
        names: &Names,
        tensor: &str,
    ) -> Result<Self, Fail> {
        let (name, [batch, heads, tokens, head_dim]) = Self::check(source, layer, names, tensor)?;
        let (shape, data) = source.floats(&name, 4)?;
        let data = data.cut(shape[2] * head_dim, tokens * head_dim);
        let bad = data.nonfinite();
        if bad > 0 {
            say(&format!(
                "{}: {}: {bad} elements are NaN or infinite and count as 0",
                source.name(),
                shown(&name)
            ));
        }
        Ok(Self { name, batch, heads, tokens, head_dim, data })
    }

    /// Rows: sequences times heads.
    pub fn rows(&self) -> usize {
        self.batch * self.heads
    }

    /// The tensor as the library takes it.
    pub fn tensor(&self) -> Result<Tensor<'_>, Fail> {
        Ok(Tensor::new("tensor", self.data.elements(), self.rows(), self.tokens, self.head_dim)?)
    }
}

/// Keys and values of a layer.
#[derive(Debug)]
pub struct Pair {
    pub k: Dense,
    pub v: Dense,
}

impl Pair {
    /// Judges both by the header alone; an error when one is missing or they differ in more than
    /// the head dimension.
    pub fn check<R: Read + Seek>(
        source: &Source<R>,
        layer: u32,
        names: &Names,
    ) -> Result<(), Fail> {
        // A missing partner is the first thing to say.
        for tensor in ["k", "v"] {
            if !names.contains_key(tensor) {
                return Err(source.fail(&format!("layers.{layer}.{tensor}"), "is missing"));
            }
        }
        let (k_name, k) = Dense::check(source, layer, names, "k")?;
        let (v_name, v) = Dense::check(source, layer, names, "v")?;
        if k[..3] != v[..3] {
            let message = format!("has shape {v:?}, but {} has {k:?}", shown(&k_name));
            return Err(source.fail(&v_name, message));
        }
        Ok(())
    }

    /// Reads both, as [`Pair::check`] allows.
    pub fn read<R: Read + Seek>(
        source: &mut Source<R>,
        layer: u32,
        names: &Names,
    ) -> Result<Self, Fail> {
        Self::check(source, layer, names)?;
        Ok(Self {
            k: Dense::read(source, layer, names, "k")?,
            v: Dense::read(source, layer, names, "v")?,
        })
    }
}
