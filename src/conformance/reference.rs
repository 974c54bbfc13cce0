//! The reference cases that come with the crate: `tests/data`.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use half::f16;
use serde_json::Value;

use super::draw::Data;
use crate::error::{Error, Result};
use crate::layout::{Bits, PageLayout};
use crate::nestedkv::ScoreConfig;
use crate::nsnquant::{Codebook, Codec};

/// Lists of head scores that budgets are known for.
pub(super) const BUDGETS: usize = 11;
/// Scored caches.
pub(super) const SCORES: usize = 13;
/// Packed caches.
pub(super) const CODES: usize = 16;

fn broken(what: &str) -> Error {
    Error::File { reason: format!("the reference data has no {what}") }
}

fn index() -> Result<&'static Value> {
    static INDEX: OnceLock<Option<Value>> = OnceLock::new();
    let text = include_str!("../../tests/data/index.json");
    INDEX.get_or_init(|| serde_json::from_str(text).ok()).as_ref().ok_or_else(|| broken("index"))
}

fn list(what: &str) -> Result<&'static [Value]> {
    index()?[what].as_array().map(Vec::as_slice).ok_or_else(|| broken(what))
}

/// A safetensors file in memory.
struct File {
    header: Value,
    data: &'static [u8],
}

impl File {
    fn new(bytes: &'static [u8]) -> Result<Self> {
        let split = || {
            let (size, rest) = bytes.split_first_chunk::<8>()?;
            let size = usize::try_from(u64::from_le_bytes(*size)).ok()?;
            let (header, data) = rest.split_at_checked(size)?;
            Some((serde_json::from_slice(header).ok()?, data))
        };
        let (header, data) = split().ok_or_else(|| broken("header"))?;
        Ok(Self { header, data })
    }

    /// Type, shape and bytes of a tensor.
    fn tensor(&self, name: &str) -> Result<(&str, Vec<usize>, &'static [u8])> {
        let find = || {
            let entry = self.header.get(name)?;
            let numbers = |key: &str| -> Option<Vec<usize>> {
                entry[key].as_array()?.iter().map(|n| Some(n.as_u64()? as usize)).collect()
            };
            let offsets = numbers("data_offsets")?;
            let bytes = self.data.get(*offsets.first()?..*offsets.get(1)?)?;
            Some((entry["dtype"].as_str()?, numbers("shape")?, bytes))
        };
        find().ok_or_else(|| broken(name))
    }

    /// Keys, values or rows.
    fn data(&self, name: &str) -> Result<(Data, Vec<usize>)> {
        let (dtype, shape, bytes) = self.tensor(name)?;
        let data = match dtype {
            "F32" => Data::F32(bytemuck::pod_collect_to_vec(bytes)),
            "F16" => Data::F16(bytemuck::pod_collect_to_vec(bytes)),
            _ => return Err(broken(name)),
        };
        Ok((data, shape))
    }

    /// A tensor of numbers.
    fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let (dtype, _, bytes) = self.tensor(name)?;
        Ok(match dtype {
            "F64" => bytemuck::pod_collect_to_vec(bytes),
            "F32" => widen(bytes, f64::from as fn(f32) -> f64),
            "F16" => widen(bytes, |bits: u16| f16::from_bits(bits).to_f64()),
            "I32" => widen(bytes, f64::from as fn(i32) -> f64),
            "U8" => bytes.iter().map(|byte| f64::from(*byte)).collect(),
            _ => return Err(broken(name)),
        })
    }
}

fn widen<T: bytemuck::Pod>(bytes: &[u8], widen: impl Fn(T) -> f64) -> Vec<f64> {
    bytemuck::pod_collect_to_vec::<u8, T>(bytes).into_iter().map(widen).collect()
}

/// Shares of heads that are known.
pub(super) struct Shares {
    pub heads: Vec<Vec<f32>>,
    pub total: u64,
    pub safeguard: f64,
    pub expected: Vec<u32>,
}

/// The shares known of one list of head scores.
pub(super) fn budgets(number: usize) -> Result<Vec<Shares>> {
    let file = File::new(include_bytes!("../../tests/data/nestedkv_budget_scores.safetensors"))?;
    let cases = list("head_budgets")?;
    let names: BTreeSet<&str> = cases.iter().filter_map(|case| case["list"].as_str()).collect();
    let name = names.into_iter().nth(number).ok_or_else(|| broken("such list"))?;
    let own = cases.iter().filter(|case| case["list"] == name);
    own.map(|case| {
        let heads = case["lengths"].as_array().map_or(0, Vec::len);
        let head = |head| -> Result<Vec<f32>> {
            let scores = file.numbers(&format!("{name}/head{head}"))?;
            Ok(scores.into_iter().map(|x| x as f32).collect())
        };
        let expected = case["expected"].as_array().ok_or_else(|| broken("budgets"))?;
        Ok(Shares {
            heads: (0..heads).map(head).collect::<Result<_>>()?,
            total: case["total_budget"].as_u64().ok_or_else(|| broken("total"))?,
            safeguard: case["alpha"].as_f64().ok_or_else(|| broken("safeguard"))?,
            expected: expected.iter().filter_map(|b| b.as_u64().map(|b| b as u32)).collect(),
        })
    })
    .collect()
}

/// A cache whose scores and selections are known.
pub(super) struct Score {
    pub name: &'static str,
    pub keys: Data,
    /// Rows, tokens, channels.
    pub shape: [usize; 3],
    pub config: ScoreConfig,
    pub finals: Vec<f64>,
    pub blend: Vec<f64>,
    /// `[3, rows, tokens]`.
    pub scales: Vec<f64>,
    /// Allowed for the score, the blend and the scales.
    pub tolerances: [f64; 3],
    /// Rounding decides the scores: they are within 0 to 1, no more can be said.
    pub ill: bool,
    pub kept: Vec<Kept>,
}

/// A known selection.
pub(super) struct Kept {
    pub budget: u32,
    pub sinks: u32,
    /// Those of all rows, as many of each.
    pub positions: Vec<u32>,
    rows: usize,
}

impl Kept {
    /// Positions of a row.
    pub fn each(&self) -> usize {
        self.positions.len() / self.rows.max(1)
    }
}

/// A scored cache.
pub(super) fn score(number: usize) -> Result<Score> {
    let file = File::new(include_bytes!("../../tests/data/nestedkv_cases.safetensors"))?;
    let case = list("nestedkv")?.get(number).ok_or_else(|| broken("such case"))?;
    let name = case["case"].as_str().ok_or_else(|| broken("name"))?;
    let tensor = |part: &str| format!("{name}/{part}");
    let (keys, shape) = file.data(&tensor("keys"))?;
    let shape = <[usize; 3]>::try_from(shape).map_err(|_| broken("shape of keys"))?;
    let hyper = &case["hyper"];
    let number = |value: &Value| value.as_f64().ok_or_else(|| broken("constant"));
    let config = ScoreConfig {
        window: number(&hyper["window"])? as u32,
        beta: number(&hyper["beta"])? as f32,
        tau: number(&hyper["tau"])? as f32,
        kappa: number(&hyper["kappa"])? as f32,
        prior: [
            number(&hyper["prior"][0])? as f32,
            number(&hyper["prior"][1])? as f32,
            number(&hyper["prior"][2])? as f32,
        ],
        rectify: false,
    };
    let ill = case["ill_conditioned"] == true;
    let tolerance = |part: &str| match ill {
        true => Ok(0.0),
        false => number(&case["tolerance_abs_vs_truth"][part]),
    };
    let kept = case["kept"].as_array().ok_or_else(|| broken("selections"))?;
    let selection = |kept: &Value| -> Result<Kept> {
        let tensor = kept["truth_tensor"].as_str().ok_or_else(|| broken("selection"))?;
        Ok(Kept {
            budget: number(&kept["budget"])? as u32,
            sinks: number(&kept["n_sink"])? as u32,
            positions: file.numbers(tensor)?.into_iter().map(|p| p as u32).collect(),
            rows: shape[0],
        })
    };
    Ok(Score {
        name,
        keys,
        shape,
        config,
        finals: file.numbers(&tensor("truth_final"))?,
        blend: file.numbers(&tensor("truth_blend"))?,
        scales: file.numbers(&tensor("truth_scales"))?,
        tolerances: [tolerance("final")?, tolerance("blend")?, tolerance("scales")?],
        ill,
        kept: kept.iter().map(selection).collect::<Result<_>>()?,
    })
}

/// A chunk of each of some heads, and the page that it becomes.
pub(super) struct Codes {
    pub name: &'static str,
    pub codec: Codec,
    pub heads: usize,
    pub rows: Data,
    /// Rounding decides second scales and codes.
    pub ill: bool,
    /// A scale is beyond f16, where the reference has infinities.
    pub overflow: bool,
    pub s1: Vec<u16>,
    pub s1_wide: Vec<f64>,
    pub s2: Vec<u16>,
    pub o: Vec<u16>,
    pub idx: Vec<u8>,
    /// How far the best index is from the second best.
    pub margin: Vec<f64>,
    pub signs: Option<Vec<u8>>,
    pub hadamard: Vec<f64>,
    pub restored: Vec<f64>,
}

/// A packed cache.
pub(super) fn codes(number: usize) -> Result<Codes> {
    let file = File::new(include_bytes!("../../tests/data/nsn_cases.safetensors"))?;
    let books = File::new(include_bytes!("../../tests/data/nsn_codebooks.safetensors"))?;
    let book = |name: &str| -> Result<Vec<f32>> {
        Ok(books.numbers(name)?.into_iter().map(|x| x as f32).collect())
    };
    let book = Codebook::new(&book("codebook_signed")?, &book("codebook_magnitude")?)?;
    let case = list("nsnquant")?.get(number).ok_or_else(|| broken("such case"))?;
    let name = case["case"].as_str().ok_or_else(|| broken("name"))?;
    let count = |key: &str| case[key].as_u64().ok_or_else(|| broken(key));
    let bits = Bits::new("bits", count("bits")? as u32)?;
    let layout = PageLayout::new("data", count("d")? as usize, bits, count("T")? as usize)?;
    let numbers = |part: &str| file.numbers(&format!("{name}/{part}"));
    let halves = |part: &str| -> Result<Vec<u16>> {
        Ok(numbers(part)?.into_iter().map(|v| f16::from_f64(v).to_bits()).collect())
    };
    let bytes = |part: &str| -> Result<Vec<u8>> {
        Ok(numbers(part)?.into_iter().map(|v| v as u8).collect())
    };
    Ok(Codes {
        name,
        codec: Codec::new(layout, Arc::new(book))?,
        heads: count("H")? as usize,
        rows: file.data(&format!("{name}/x"))?.0,
        ill: case["ill_conditioned"] == true,
        overflow: case["finite"] == false,
        s1: halves("s1")?,
        s1_wide: numbers("s1")?,
        s2: halves("s2")?,
        o: halves("o")?,
        idx: bytes("idx")?,
        margin: numbers("idx_rel_margin")?,
        signs: if bits == Bits::Two { Some(bytes("signs")?) } else { None },
        hadamard: numbers("hadamard")?,
        restored: numbers("restored")?,
    })
}
