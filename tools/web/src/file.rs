//! Keys, values and queries of a safetensors file.

use std::collections::BTreeMap;

use half::{bf16, f16};
use wgkv::files::{FileDtype, Header};
use wgkv::shape::Elements;

/// Elements of a file, in memory of their own so that they are aligned.
pub enum Data {
    /// Singles.
    F32(Vec<f32>),
    /// Halves.
    F16(Vec<f16>),
    /// Brain floats.
    Bf16(Vec<bf16>),
}

impl Data {
    /// The elements as the library takes them.
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(x) => Elements::F32(x),
            Self::F16(x) => Elements::F16(x),
            Self::Bf16(x) => Elements::Bf16(x),
        }
    }

    /// The token rows `rows` of `dim` channels, joined.
    pub fn rows(&self, rows: impl Iterator<Item = usize>, dim: usize) -> Self {
        fn take<T: Copy>(from: &[T], rows: impl Iterator<Item = usize>, dim: usize) -> Vec<T> {
            rows.flat_map(|row| from[row * dim..(row + 1) * dim].iter().copied()).collect()
        }
        match self {
            Self::F32(x) => Self::F32(take(x, rows, dim)),
            Self::F16(x) => Self::F16(take(x, rows, dim)),
            Self::Bf16(x) => Self::Bf16(take(x, rows, dim)),
        }
    }

    /// As f16; `None` where a finite value goes beyond it.
    pub fn halves(&self) -> Option<Vec<f16>> {
        let all = self.elements();
        (0..all.len())
            .map(|at| match self {
                Self::F16(x) => Some(x[at]),
                _ => {
                    let half = f16::from_f32(all.get(at));
                    (half.is_finite() || !all.get(at).is_finite()).then_some(half)
                }
            })
            .collect()
    }
}

/// A tensor `[B, H, N, D]`.
pub struct Tensor {
    /// Name in the file.
    pub name: String,
    /// Sequences, heads, tokens, channels.
    pub shape: [usize; 4],
    /// Content.
    pub data: Data,
}

/// A layer of a cache.
pub struct Layer {
    /// Its number.
    pub number: u32,
    /// Keys.
    pub keys: Tensor,
    /// Values.
    pub values: Tensor,
    /// Queries, if the file has any.
    pub queries: Option<Tensor>,
}

/// The layers of a file: `layers.<i>.k`, `.v` and maybe `.q`, or an mlx-lm prompt cache's `<i>.0` and
/// `<i>.1`.
pub fn layers(file: &[u8]) -> Result<Vec<Layer>, String> {
    let (header, start) = Header::read(file).map_err(|e| e.to_string())?;
    let mut found: BTreeMap<u32, [Option<&str>; 3]> = BTreeMap::new();
    for name in header.tensors.keys() {
        if let Some((number, part)) = place(name) {
            found.entry(number).or_default()[part] = Some(name);
        }
    }
    if found.is_empty() {
        return Err("the file holds no keys and values: they are tensors named layers.0.k and layers.0.v, \
                    or 0.0 and 0.1 as mlx-lm writes them, of shape [sequences, heads, tokens, channels]"
            .into());
    }
    let read = |name: &str| tensor(&header, &file[start..], name);
    let mut list = Vec::with_capacity(found.len());
    for (number, [k, v, q]) in found {
        let (Some(k), Some(v)) = (k, v) else {
            return Err(format!("layer {number} has keys or values, but not both"));
        };
        let (keys, values) = (read(k)?, read(v)?);
        if keys.shape[..3] != values.shape[..3] {
            return Err(format!(
                "layer {number}: keys are {:?} and values {:?}, expected the same sequences, heads and tokens",
                keys.shape, values.shape
            ));
        }
        if keys.shape.contains(&0) || values.shape.contains(&0) {
            return Err(format!("layer {number} is empty: {:?}", keys.shape));
        }
        list.push(Layer { number, keys, values, queries: q.map(read).transpose()? });
    }
    Ok(list)
}

/// Layer and part (keys, values, queries) that a tensor's name says.
fn place(name: &str) -> Option<(u32, usize)> {
    let (number, part) = match name.strip_prefix("layers.") {
        Some(rest) => {
            let (number, part) = rest.split_once('.')?;
            (number, ["k", "v", "q"].iter().position(|known| *known == part)?)
        }
        None => {
            let (number, part) = name.split_once('.')?;
            (number, ["0", "1"].iter().position(|known| *known == part)?)
        }
    };
    Some((number.parse().ok()?, part))
}

fn tensor(header: &Header, data: &[u8], name: &str) -> Result<Tensor, String> {
    let entry = header.tensors.get(name).ok_or_else(|| format!("{name} is not there"))?;
    let shape: [usize; 4] = entry.shape.as_slice().try_into().map_err(|_| {
        format!("{name} has shape {:?}, expected [sequences, heads, tokens, channels]", entry.shape)
    })?;
    let bytes = &data[entry.begin as usize..entry.end as usize];
    let data = match entry.dtype {
        FileDtype::F32 => Data::F32(bytemuck::pod_collect_to_vec(bytes)),
        FileDtype::F16 => Data::F16(bytemuck::pod_collect_to_vec(bytes)),
        FileDtype::BF16 => {
            Data::Bf16(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect())
        }
        _ => return Err(format!("{name} holds no F32, F16 or BF16 numbers")),
    };
    Ok(Tensor { name: name.into(), shape, data })
}
