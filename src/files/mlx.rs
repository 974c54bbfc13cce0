//! Prompt caches of mlx-lm (`save_prompt_cache`, `load_prompt_cache` of `mlx_lm.models.cache`).
//!
//! Such a file holds the keys `<i>.0` and values `<i>.1` of each layer, `[B, H, N, D]`, and says in
//! its metadata what class each layer's cache is of. Since version 0.32 the tensors are as long as
//! the memory that mlx-lm had allocated, and `<i>.2` says how many tokens are in it; before, they
//! were cut to length. Where the classes and the user's own metadata stand has changed as well.
//!
//! The file knows no positions: token `n` has position `n`. So only what still holds all tokens can
//! be written. Of the classes, `KVCache` and `ConcatenateKVCache` are read: a `RotatingKVCache` has
//! its rows in another order, a `QuantizedKVCache` has no rows.

use std::collections::BTreeMap;

use super::data::Data;
use super::header::{FileDtype, Header};
use super::{refuse, shown};
use crate::error::{Error, Result};
use crate::shape::Dtype;

/// Versions of mlx-lm by the files that they read and write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MlxLm {
    /// mlx-lm up to 0.31: tensors as long as their tokens.
    V0_31,
    /// mlx-lm from 0.32 on: all of a cache's memory, and how many tokens are in it.
    #[default]
    V0_32,
}

/// Keys and values of one layer, `[B, H, N, D]`.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptLayer {
    /// Keys `[B, H, N, D of keys]`, the batch outermost.
    pub keys: Data,
    /// Values `[B, H, N, D of values]`.
    pub values: Data,
}

/// A prompt cache of mlx-lm in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptCache {
    /// Sequences of equal length.
    pub batch: usize,
    /// KV heads of a layer.
    pub heads: usize,
    /// Tokens of each sequence; token `n` has position `n`.
    pub tokens: usize,
    /// Channels of a key.
    pub head_dim_k: usize,
    /// Channels of a value.
    pub head_dim_v: usize,
    /// Keys and values of each layer, in order.
    pub layers: Vec<PromptLayer>,
    /// The user's own metadata.
    pub metadata: BTreeMap<String, String>,
}

impl PromptCache {
    /// Class of each layer's cache as a header says it, and in the way of which version; `None` for
    /// a file that is no prompt cache of mlx-lm.
    pub fn classes(header: &Header) -> Option<(MlxLm, Vec<&str>)> {
        let line = |list: usize, index: usize| {
            header.metadata.get(&format!("{list}.{index}")).map(String::as_str)
        };
        // The third list starts with an empty string where it says which tensors are scalars.
        let (version, list) = match line(2, 0)? {
            "" => (MlxLm::V0_32, 1),
            _ => (MlxLm::V0_31, 2),
        };
        let classes: Vec<&str> = (0..).map_while(|index| line(list, index)).collect();
        (!classes.is_empty()).then_some((version, classes))
    }

    /// Whether the rows of a cache of this class can be read.
    pub fn reads(class: &str) -> bool {
        matches!(class, "KVCache" | "ConcatenateKVCache")
    }

    /// Reads a file that mlx-lm wrote, in the way of any version.
    ///
    /// # Errors
    /// [`Error::File`] for what is no prompt cache, for a class of cache that is not read, and for
    /// layers that differ in shape, naming the layer or tensor.
    pub fn read(file: &[u8]) -> Result<Self> {
        let (header, start) = Header::read(file)?;
        let data = &file[start..];
        let Some((version, classes)) = Self::classes(&header) else {
            let reason = "the file is no prompt cache of mlx-lm: its metadata name no classes";
            return Err(refuse(reason));
        };
        if let Some(layer) = classes.iter().position(|class| !Self::reads(class)) {
            let class = shown(classes[layer]);
            return Err(refuse(format!("layer {layer} is a {class}, only a KVCache is read")));
        }
        let mut cache: Option<Self> = None;
        let mut names = 0;
        for (layer, class) in classes.iter().enumerate() {
            let counted = version == MlxLm::V0_32 && *class == "KVCache";
            let told = if counted { Some(told(&header, data, layer)?) } else { None };
            names += 2 + usize::from(counted);
            let (k, keys) = tensor(&header, data, &format!("{layer}.0"), told)?;
            let (v, values) = tensor(&header, data, &format!("{layer}.1"), told)?;
            if v[..3] != k[..3] {
                return Err(refuse(format!("{layer}.1 has the shape {v:?}, {layer}.0 {k:?}")));
            }
            let shape = [k[0], k[1], k[2], k[3], v[3]];
            let cache = cache.get_or_insert_with(|| Self::new(shape));
            if shape != cache.shape() {
                let first = cache.shape();
                return Err(refuse(format!(
                    "layer {layer} has B, H, N and channels of keys and values {shape:?}, \
                     layer 0 {first:?}"
                )));
            }
            cache.layers.push(PromptLayer { keys, values });
        }
        if names != header.tensors.len() {
            let known = |name: &str| {
                let (layer, part) = name.split_once('.').unwrap_or((name, ""));
                let layer = layer.parse::<usize>().ok().filter(|n| n.to_string() == layer);
                let class = layer.and_then(|layer| classes.get(layer));
                let counted = version == MlxLm::V0_32 && class == Some(&"KVCache");
                class.is_some() && (matches!(part, "0" | "1") || counted && part == "2")
            };
            let name = header.tensors.keys().find(|name| !known(name));
            let name = name.map_or(String::new(), |name| shown(name));
            return Err(refuse(format!("{name} belongs to no layer of a KVCache")));
        }
        let mut cache = cache.ok_or_else(|| refuse("the file holds no layers"))?;
        let prefix = match version {
            MlxLm::V0_31 => "1.",
            MlxLm::V0_32 => "0.",
        };
        let own = header.metadata.iter().filter_map(|(key, value)| {
            key.strip_prefix(prefix).map(|key| (key.to_owned(), value.clone()))
        });
        cache.metadata = own.collect();
        Ok(cache)
    }

    /// A cache without layers.
    pub(super) fn new([batch, heads, tokens, head_dim_k, head_dim_v]: [usize; 5]) -> Self {
        let (layers, metadata) = (Vec::new(), BTreeMap::new());
        Self { batch, heads, tokens, head_dim_k, head_dim_v, layers, metadata }
    }

    fn shape(&self) -> [usize; 5] {
        [self.batch, self.heads, self.tokens, self.head_dim_k, self.head_dim_v]
    }

    /// The bytes of a file that mlx-lm of a version reads.
    ///
    /// The user's metadata come after mlx-lm's own way: a dot in a key makes a dictionary in a
    /// dictionary of it.
    ///
    /// # Errors
    /// [`Error::Empty`] for a cache without layers or with a dimension of 0; [`Error::Length`] for
    /// keys or values that do not fill their shape.
    pub fn to_bytes(&self, version: MlxLm) -> Result<Vec<u8>> {
        let [batch, heads, tokens, ..] = self.shape();
        let dimensions = [
            ("layers", self.layers.len()),
            ("batch", batch),
            ("heads", heads),
            ("tokens", tokens),
            ("head_dim_k", self.head_dim_k),
            ("head_dim_v", self.head_dim_v),
        ];
        if let Some((argument, _)) = dimensions.iter().find(|(_, count)| *count == 0) {
            return Err(Error::Empty { argument });
        }
        let mut header = Header::default();
        let mut note = |key: String, value: &str| header.metadata.insert(key, value.to_owned());
        let (own, classes) = match version {
            MlxLm::V0_31 => (1, 2),
            MlxLm::V0_32 => (0, 1),
        };
        for (key, value) in &self.metadata {
            note(format!("{own}.{key}"), value);
        }
        for layer in 0..self.layers.len() {
            note(format!("{classes}.{layer}"), "KVCache");
        }
        match version {
            MlxLm::V0_31 => {
                for layer in 0..self.layers.len() {
                    note(format!("0.{layer}"), "");
                }
            }
            MlxLm::V0_32 => {
                note("2.0".into(), "");
                for layer in 0..self.layers.len() {
                    note(format!("2.{}.0", layer + 1), &format!("{layer}.2"));
                    note(format!("2.{}.1", layer + 1), "scalar");
                }
            }
        }
        let count = u32::try_from(tokens).ok().filter(|count| *count <= i32::MAX as u32);
        let max = i32::MAX as u64;
        let count = count.ok_or(Error::OutOfRange {
            argument: "tokens",
            got: tokens as u64,
            min: 1,
            max,
        })?;
        let mut parts: Vec<&[u8]> = Vec::new();
        let count = count.to_le_bytes();
        for (index, layer) in self.layers.iter().enumerate() {
            let sides = [
                ("keys", &layer.keys, self.head_dim_k),
                ("values", &layer.values, self.head_dim_v),
            ];
            for (side, (argument, data, head_dim)) in sides.into_iter().enumerate() {
                let shape = [batch, heads, tokens, head_dim];
                let expected = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
                let (got, expected) = (data.elements().len(), expected.unwrap_or(usize::MAX));
                if got != expected {
                    return Err(Error::Length { argument, got, expected });
                }
                header.push(format!("{index}.{side}"), data.elements().dtype().into(), &shape);
                parts.push(data.elements().bytes());
            }
            if version == MlxLm::V0_32 {
                header.push(format!("{index}.2"), FileDtype::I32, &[]);
                parts.push(&count);
            }
        }
        let mut bytes = header.to_bytes();
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        Ok(bytes)
    }
}

/// Tokens that a layer says it holds.
fn told(header: &Header, data: &[u8], layer: usize) -> Result<usize> {
    let name = format!("{layer}.2");
    let Some(entry) = header.tensors.get(&name) else {
        return Err(refuse(format!("{name} is missing")));
    };
    let bytes = &data[entry.begin as usize..entry.end as usize];
    if entry.dtype != FileDtype::I32 || bytes.len() != 4 {
        let (dtype, shape) = (entry.dtype.name(), &entry.shape);
        return Err(refuse(format!("{name} is {dtype} of shape {shape:?}, expected one I32")));
    }
    match i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) {
        0 => Err(refuse(format!("layer {layer} holds no tokens"))),
        count => usize::try_from(count)
            .map_err(|_| refuse(format!("{name} is {count}, expected a number of tokens"))),
    }
}

/// Shape and elements of a tensor, cut to as many tokens as were told.
fn tensor(
    header: &Header,
    data: &[u8],
    name: &str,
    told: Option<usize>,
) -> Result<([usize; 4], Data)> {
    let Some(entry) = header.tensors.get(name) else {
        return Err(refuse(format!("{name} is missing")));
    };
    let [batch, heads, held, head_dim] = entry.shape[..] else {
        let shape = &entry.shape;
        return Err(refuse(format!("{name} has the shape {shape:?}, expected [B, H, N, D]")));
    };
    if let Some(axis) = entry.shape.iter().position(|n| *n == 0) {
        let (axis, shape) = (["B", "H", "N", "D"][axis], &entry.shape);
        return Err(refuse(format!("{name} has the shape {shape:?}: {axis} is 0")));
    }
    let dtypes = [Dtype::F32, Dtype::F16, Dtype::Bf16];
    let Some(dtype) = dtypes.into_iter().find(|dtype| FileDtype::from(*dtype) == entry.dtype)
    else {
        let dtype = entry.dtype.name();
        return Err(refuse(format!("{name} is {dtype}, expected F32, F16 or BF16")));
    };
    let tokens = told.unwrap_or(held);
    if tokens > held {
        return Err(refuse(format!("{name} has room for {held} tokens of {tokens}")));
    }
    let bytes = &data[entry.begin as usize..entry.end as usize];
    let data = Data::new(dtype, bytes).cut(held * head_dim, tokens * head_dim);
    Ok(([batch, heads, tokens, head_dim], data))
}
