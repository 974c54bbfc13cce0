//! The header of a safetensors file, read strictly: a name twice, a hole, an overlap, bytes that
//! belong to no tensor, a size that the shape does not give are all refused, since each of them
//! makes two readers see different data in one file.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use super::{looks_like, refuse, shown, told};
use crate::error::Result;
use crate::shape::Dtype;

/// Longest header that is read; 100,000 tensors fit.
pub const MAX_HEADER: u64 = 16 << 20;
/// Most dimensions of a tensor.
const MAX_RANK: usize = 16;

/// An element type as the file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDtype(&'static str, u64);

impl FileDtype {
    /// 32-bit floats.
    pub const F32: Self = Self("F32", 32);
    /// IEEE halves.
    pub const F16: Self = Self("F16", 16);
    /// Brain floats.
    pub const BF16: Self = Self("BF16", 16);
    /// Words.
    pub const U32: Self = Self("U32", 32);
    /// Bytes.
    pub const U8: Self = Self("U8", 8);
    /// Signed words.
    pub const I32: Self = Self("I32", 32);

    const ALL: [Self; 23] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::U32,
        Self::U8,
        Self("BOOL", 8),
        Self("I8", 8),
        Self("I16", 16),
        Self("U16", 16),
        Self::I32,
        Self("I64", 64),
        Self("U64", 64),
        Self("F64", 64),
        Self("C64", 64),
        Self("F8_E4M3", 8),
        Self("F8_E5M2", 8),
        Self("F8_E8M0", 8),
        Self("F8_E4M3FNUZ", 8),
        Self("F8_E5M2FNUZ", 8),
        Self("F6_E2M3", 6),
        Self("F6_E3M2", 6),
        Self("F4", 4),
        Self("F4_E2M1", 4),
    ];

    /// The type of a name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.0 == name)
    }

    /// The name in the file.
    pub const fn name(self) -> &'static str {
        self.0
    }

    /// Whether keys, values and queries may come in this type.
    pub fn is_float(self) -> bool {
        [Self::F32, Self::F16, Self::BF16].contains(&self)
    }

    /// Bits of one element.
    pub const fn bits(self) -> u64 {
        self.1
    }
}

impl From<Dtype> for FileDtype {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::BF16,
        }
    }
}

/// What the header says of one tensor.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Type of the elements.
    pub dtype: FileDtype,
    /// Dimensions, the slowest first.
    pub shape: Vec<usize>,
    /// First byte, counted from the end of the header.
    pub begin: u64,
    /// Byte after the last.
    pub end: u64,
}

/// A checked header.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// The tensors by name.
    pub tensors: BTreeMap<String, Entry>,
    /// What stands under `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

impl Header {
    /// Length in bytes of the JSON text of a file of `bytes` bytes that starts with `start`, of
    /// which 64 bytes are enough.
    ///
    /// # Errors
    /// [`crate::Error::File`] when this is no safetensors file.
    pub fn length(start: &[u8], bytes: u64) -> Result<u64> {
        let fault = match start.first_chunk::<8>() {
            None if start.is_empty() => "the file is empty, expected a safetensors file".into(),
            None => format!("the file holds {} bytes, too few for a safetensors file", start.len()),
            Some(length) => match u64::from_le_bytes(*length) {
                length if length > bytes.saturating_sub(8) => format!(
                    "the file claims a header of {length} bytes but holds {bytes} (truncated, or no \
                     safetensors file)"
                ),
                length if length > MAX_HEADER => {
                    format!("the file claims a header of {length} bytes, more than {MAX_HEADER}")
                }
                length => return Ok(length),
            },
        };
        Err(refuse(foreign(start).unwrap_or(fault)))
    }

    /// Reads the header of a file in memory. Returns the first byte of the data as well.
    ///
    /// # Errors
    /// [`crate::Error::File`], as [`Header::length`] and [`Header::parse`].
    pub fn read(file: &[u8]) -> Result<(Self, usize)> {
        let length = Self::length(file, file.len() as u64)?;
        let start = 8 + length as usize;
        match Self::parse(&file[8..start], (file.len() - start) as u64) {
            Ok(header) => Ok((header, start)),
            Err(fault) => Err(foreign(file).map_or(fault, refuse)),
        }
    }

    /// Reads the JSON text of a header in front of `data` bytes.
    ///
    /// # Errors
    /// [`crate::Error::File`] that names the tensor and what is wrong with it.
    pub fn parse(text: &[u8], data: u64) -> Result<Self> {
        Self::parsed(text, data).map_err(refuse)
    }

    fn parsed(text: &[u8], data: u64) -> Result<Self, String> {
        if text.first() != Some(&b'{') {
            return Err("the header does not start with '{'".into());
        }
        let raw: RawHeader = serde_json::from_slice(text)
            .map_err(|e| format!("the header is not valid: {}", told(e)))?;
        let mut header = Self { metadata: raw.metadata, ..Self::default() };
        for (name, entry) in raw.tensors {
            let entry = check(&entry, data).map_err(|why| format!("{}: {why}", shown(&name)))?;
            header.tensors.insert(name, entry);
        }
        header.check_coverage(data)?;
        Ok(header)
    }

    /// Adds a tensor behind the others.
    pub fn push(&mut self, name: impl Into<String>, dtype: FileDtype, shape: &[usize]) {
        let begin = self.data_bytes();
        let count = shape.iter().map(|n| *n as u64).product::<u64>();
        let end = begin + count * dtype.bits() / 8;
        self.tensors.insert(name.into(), Entry { dtype, shape: shape.to_vec(), begin, end });
    }

    /// Bytes of all tensors.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.values().map(|entry| entry.end).max().unwrap_or(0)
    }

    /// What stands in a file before its tensors: the length of the text, then the text, padded so
    /// that the tensors start on a multiple of 8 bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut map = Map::new();
        if !self.metadata.is_empty() {
            map.insert("__metadata__".into(), json!(self.metadata));
        }
        let mut order: Vec<(&String, &Entry)> = self.tensors.iter().collect();
        order.sort_by_key(|(_, entry)| (entry.begin, entry.end));
        for (name, entry) in order {
            let entry = json!({
                "dtype": entry.dtype.name(),
                "shape": entry.shape,
                "data_offsets": [entry.begin, entry.end],
            });
            map.insert(name.clone(), entry);
        }
        let mut text = Value::Object(map).to_string();
        while !text.len().is_multiple_of(8) {
            text.push(' ');
        }
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    /// Every byte of the data belongs to exactly one tensor.
    fn check_coverage(&self, data: u64) -> Result<(), String> {
        let mut order: Vec<(&String, &Entry)> = self.tensors.iter().collect();
        order.sort_by_key(|(_, entry)| (entry.begin, entry.end));
        let mut end = 0;
        let mut before = "the header";
        for (name, entry) in order {
            if entry.begin < end {
                return Err(format!("{} shares bytes with {}", shown(name), shown(before)));
            }
            if entry.begin > end {
                return Err(format!(
                    "{} bytes before {} belong to no tensor",
                    entry.begin - end,
                    shown(name)
                ));
            }
            (end, before) = (entry.end, name);
        }
        if end != data {
            return Err(format!("{} bytes after the last tensor belong to none", data - end));
        }
        Ok(())
    }
}

/// What to say of a file that starts as one of another kind does.
fn foreign(start: &[u8]) -> Option<String> {
    let what = looks_like(&start[..start.len().min(64)])?;
    Some(format!("the file is no safetensors file, it looks like {what}"))
}

fn check(raw: &RawEntry, data: u64) -> Result<Entry, String> {
    let dtype =
        FileDtype::of(&raw.dtype).ok_or_else(|| format!("unknown dtype {}", shown(&raw.dtype)))?;
    let [begin, end] = raw.data_offsets;
    if begin > end {
        return Err(format!("data_offsets [{begin}, {end}] are reversed"));
    }
    if end > data {
        return Err(format!(
            "data_offsets [{begin}, {end}] reach past the file, which holds {data} bytes of data \
             (truncated file?)"
        ));
    }
    let shape = &raw.shape.0;
    let bits = shape.iter().try_fold(dtype.bits(), |product, &n| product.checked_mul(n));
    // A zero anywhere makes the product 0, whatever the other dimensions claim.
    let bits = if shape.contains(&0) { Some(0) } else { bits };
    match bits {
        Some(bits) if bits % 8 == 0 && bits / 8 == end - begin => {}
        _ => {
            return Err(format!(
                "{} of shape {shape:?} does not take the {} bytes that data_offsets give",
                dtype.name(),
                end - begin
            ));
        }
    }
    let shape = shape
        .iter()
        .map(|&n| usize::try_from(n))
        .collect::<Result<_, _>>()
        .map_err(|_| format!("shape {shape:?} is beyond this machine"))?;
    Ok(Entry { dtype, shape, begin, end })
}

struct RawHeader {
    tensors: BTreeMap<String, RawEntry>,
    metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Dimensions;
        impl<'de> Visitor<'de> for Dimensions {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_RANK} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(n) = list.next_element()? {
                    if shape.len() == MAX_RANK {
                        return Err(A::Error::custom("more than 16 dimensions"));
                    }
                    shape.push(n);
                }
                Ok(Shape(shape))
            }
        }
        from.deserialize_seq(Dimensions)
    }
}

struct Metadata(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let value = map.next_value::<String>()?;
                    if entries.insert(key.clone(), value).is_some() {
                        return Err(twice(&key));
                    }
                }
                Ok(Metadata(entries))
            }
        }
        from.deserialize_map(Entries)
    }
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut tensors = BTreeMap::new();
                let mut metadata = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key == "__metadata__" {
                        let value = map
                            .next_value::<Option<Metadata>>()
                            .map_err(|e| A::Error::custom(format_args!("__metadata__: {e}")))?;
                        if metadata.replace(value).is_some() {
                            return Err(twice(&key));
                        }
                    } else {
                        let entry = map
                            .next_value::<RawEntry>()
                            .map_err(|e| A::Error::custom(format_args!("{}: {e}", shown(&key))))?;
                        if tensors.insert(key.clone(), entry).is_some() {
                            return Err(twice(&key));
                        }
                    }
                }
                let metadata = metadata.flatten().map(|m| m.0).unwrap_or_default();
                Ok(RawHeader { tensors, metadata })
            }
        }
        from.deserialize_map(Tensors)
    }
}

fn twice<E: serde::de::Error>(key: &str) -> E {
    E::custom(format_args!("{} is named twice", shown(key)))
}
