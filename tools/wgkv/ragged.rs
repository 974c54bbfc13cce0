//! Rows of a layer where each head may hold another number of tokens: what `evict` writes, and what
//! packing starts from.

use std::io::{Read, Seek};

use serde::{Deserialize, Serialize};
use wgkv::shape::{check_head_dim, check_offsets};

use crate::file::{Data, Fail, FileDtype, Output, Payload, Source, shown, told};
use crate::layers::{Names, Pair};

/// Name of the format in the metadata.
pub const FORMAT: &str = "wgkv-evicted";

/// Kept keys and values of a layer; row `b * heads + h`.
#[derive(Debug)]
pub struct Ragged {
    pub batch: usize,
    pub heads: usize,
    /// Tokens of each sequence before eviction.
    pub tokens: usize,
    /// `[rows + 1]`, in token rows.
    pub offsets: Vec<u32>,
    /// Position of each token row; none when nothing was evicted.
    pub positions: Option<Vec<u32>>,
    pub k: Data,
    pub v: Data,
    pub k_dim: usize,
    pub v_dim: usize,
    /// Names of the tensors, for messages.
    pub names: [String; 2],
}

/// What the metadata says of a layer.
#[derive(Debug, Deserialize, Serialize)]
struct Note {
    batch: usize,
    heads: usize,
    tokens: usize,
}

impl Ragged {
    /// Position of every token row.
    pub fn all_positions(&self) -> Vec<u32> {
        match &self.positions {
            Some(positions) => positions.clone(),
            None => self.offsets.windows(2).flat_map(|row| 0..row[1] - row[0]).collect(),
        }
    }

    /// A dense pair, nothing evicted.
    pub fn of_pair(pair: Pair) -> Result<Self, Fail> {
        let (rows, tokens) = (pair.k.rows(), pair.k.tokens);
        let offsets = (0..=rows)
            .map(|row| row.checked_mul(tokens).and_then(|n| u32::try_from(n).ok()))
            .collect::<Option<Vec<u32>>>()
            .ok_or_else(|| Fail::input("more than 4294967295 token rows").at(&pair.k.name))?;
        Ok(Self {
            batch: pair.k.batch,
            heads: pair.k.heads,
            tokens,
            offsets,
            positions: None,
            k_dim: pair.k.head_dim,
            v_dim: pair.v.head_dim,
            names: [pair.k.name, pair.v.name],
            k: pair.k.data,
            v: pair.v.data,
        })
    }

    /// Rows: sequences times heads.
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Reads a layer of an evicted file.
    pub fn read<R: Read + Seek>(
        source: &mut Source<R>,
        layer: u32,
        names: &Names,
    ) -> Result<Self, Fail> {
        let name = |tensor: &str| {
            names.get(tensor).cloned().unwrap_or_else(|| format!("layers.{layer}.{tensor}"))
        };
        let (offsets, positions) = (name("offsets"), name("positions"));
        let ([k, v], mut dims) = ([name("k"), name("v")], [0; 2]);
        let (_, at) = source.exactly::<u32>(&offsets, FileDtype::U32, 1)?;
        let (_, position_list) = source.exactly::<u32>(&positions, FileDtype::U32, 1)?;
        for (dim, tensor) in dims.iter_mut().zip([&k, &v]) {
            let shape = source.entry(tensor, 2)?.shape;
            check_head_dim("head dim", shape[1])
                .map_err(|e| Fail::from(e).at(shown(tensor)).at(source.name()))?;
            if shape[0] != position_list.len() {
                let message = format!(
                    "has {} token rows, but {} has {}",
                    shape[0],
                    shown(&positions),
                    position_list.len()
                );
                return Err(source.fail(tensor, message));
            }
            *dim = shape[1];
        }
        let rows = at.len().saturating_sub(1);
        if rows == 0 {
            return Err(source.fail(&offsets, "holds no rows"));
        }
        check_offsets("offsets", &at, rows, position_list.len())
            .map_err(|e| Fail::from(e).at(shown(&offsets)).at(source.name()))?;
        let last = position_list.iter().max().map_or(0, |&p| p as usize + 1);
        let key = format!("layers.{layer}");
        let note = match source.header().metadata.get(&key) {
            Some(text) => serde_json::from_str(text).map_err(|e| {
                source.fail(&key, format!("the metadata are not valid: {}", told(e)))
            })?,
            None => Note { batch: 1, heads: rows, tokens: last },
        };
        if note.batch.checked_mul(note.heads) != Some(rows)
            || note.tokens < last
            || u32::try_from(note.tokens).is_err()
        {
            let message = format!(
                "the metadata say {} x {} rows of {} tokens, the tensors {rows} of at least {last}",
                note.batch, note.heads, note.tokens
            );
            return Err(source.fail(&key, message));
        }
        check_positions(&at, &position_list).map_err(|why| source.fail(&positions, why))?;
        Ok(Self {
            batch: note.batch,
            heads: note.heads,
            tokens: note.tokens,
            offsets: at,
            positions: Some(position_list),
            k: source.floats(&k, 2)?.1,
            v: source.floats(&v, 2)?.1,
            k_dim: dims[0],
            v_dim: dims[1],
            names: [k, v],
        })
    }

    /// Adds the layer to an evicted file.
    pub fn write(self, layer: u32, output: &mut Output) -> Result<(), Fail> {
        let note = Note { batch: self.batch, heads: self.heads, tokens: self.tokens };
        output.note("format", FORMAT);
        output.note("version", "1");
        output.note(format!("layers.{layer}"), to_json(&note)?);
        let total = self.offsets.last().copied().unwrap_or(0) as usize;
        output.put(format!("layers.{layer}.k"), &[total, self.k_dim], Payload::from(self.k));
        output.put(format!("layers.{layer}.v"), &[total, self.v_dim], Payload::from(self.v));
        if let Some(positions) = self.positions {
            output.put(format!("layers.{layer}.positions"), &[total], Payload::U32(positions));
        }
        let count = self.offsets.len();
        output.put(format!("layers.{layer}.offsets"), &[count], Payload::U32(self.offsets));
        Ok(())
    }
}

impl From<Data> for Payload {
    fn from(data: Data) -> Self {
        match data {
            Data::F32(x) => Self::F32(x),
            Data::F16(x) => Self::F16(x),
            Data::Bf16(x) => Self::Bf16(x),
        }
    }
}

/// Positions ascend in each row.
pub fn check_positions(offsets: &[u32], positions: &[u32]) -> Result<(), String> {
    for (row, ends) in offsets.windows(2).enumerate() {
        let row_positions = &positions[ends[0] as usize..ends[1] as usize];
        if let Some(at) = row_positions.windows(2).position(|pair| pair[0] >= pair[1]) {
            return Err(format!(
                "row {row} has position {} after {}",
                row_positions[at + 1],
                row_positions[at]
            ));
        }
    }
    Ok(())
}

/// JSON text of a value that serialises without fail.
pub fn to_json(value: &impl Serialize) -> Result<String, Fail> {
    serde_json::to_string(value).map_err(|e| Fail::input(format!("metadata: {e}")))
}
