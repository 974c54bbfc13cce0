//! What a sweep measures: methods, shapes, and the least work that they stand for.

use clap::ValueEnum;
use serde_json::{Value, json};

use wgkv::layout::PageLayout;

/// A timed method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// NestedKV scores of keys
    Score,
    /// Threshold of the best tokens of every row
    Select,
    /// Positions above a threshold, in order
    Compact,
    /// Head budgets, thresholds and positions together
    Keep,
    /// Scores, selection, and copies of the rows that stay
    Evict,
    /// Packing of keys
    Encode,
    /// Attention on f16 keys and values
    AttendRaw,
    /// Attention on packed keys and values
    AttendPacked,
}

impl Method {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Score => "score",
            Self::Select => "select",
            Self::Compact => "compact",
            Self::Keep => "keep",
            Self::Evict => "evict",
            Self::Encode => "encode",
            Self::AttendRaw => "attend-raw",
            Self::AttendPacked => "attend-packed",
        }
    }
}

/// Sequences, heads, channels and tokens: all cases of a shape share their data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    pub batch: usize,
    pub heads: usize,
    pub dim: usize,
    pub tokens: usize,
}

impl Shape {
    /// Rows: sequences times KV heads.
    pub fn rows(&self) -> usize {
        self.batch * self.heads
    }

    /// Elements of the keys.
    pub fn elements(&self) -> usize {
        self.rows() * self.tokens * self.dim
    }
}

/// How a case packs.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    pub keys: PageLayout,
    pub values: PageLayout,
    pub profile: &'static str,
    /// Bits an element of the preset that it is of.
    pub preset: Option<f64>,
}

/// One line of the report. Where a method does not depend on a number, it is `None`.
#[derive(Clone, Debug)]
pub struct Case {
    pub method: Method,
    pub shape: Shape,
    pub group: Option<usize>,
    /// Pages of keys, of values, and what their choices are called.
    pub pages_of: Option<Packing>,
    pub adaptive: Option<bool>,
    /// Tokens that stay in a row.
    pub kept: Option<usize>,
}

impl Case {
    /// Bytes that have to move: inputs read, results written, once each; keys are read twice for
    /// scores, since a row's mean needs all of it.
    pub fn bytes(&self) -> u64 {
        let Shape { dim, tokens, .. } = self.shape;
        let rows = self.shape.rows();
        let keys = 2 * self.shape.elements();
        let scores = 4 * rows * tokens;
        let kept = rows * self.kept.unwrap_or(0);
        let ends = 2 * 2 * dim * rows * self.group.unwrap_or(0);
        let bytes = match self.method {
            Method::Score => 2 * keys + scores,
            Method::Select => scores + 16 * rows,
            Method::Compact => scores + 8 * kept,
            Method::Keep => scores + 8 * kept,
            Method::Evict => 2 * keys + scores + 8 * kept + 8 * kept * dim,
            Method::Encode => keys + self.pages() * self.words()[0] * 4,
            Method::AttendRaw => 2 * keys + ends,
            Method::AttendPacked => self.pages() * self.words().iter().sum::<usize>() * 4 + ends,
        };
        bytes as u64
    }

    /// Multiplications and additions that the method asks for: norms and five products a channel for
    /// scores; two Hadamard transforms and the products with all centroids for packing; logits and
    /// sums for attention.
    pub fn operations(&self) -> u64 {
        let elements = self.shape.elements();
        let operations = match (self.method, &self.pages_of) {
            (Method::Score | Method::Evict, _) => 12 * elements,
            (Method::Select | Method::Compact | Method::Keep, _) => {
                self.shape.rows() * self.shape.tokens
            }
            (Method::Encode, Some(packing)) => {
                let turns = 2 * (usize::BITS - self.shape.dim.leading_zeros()) as usize;
                let rows = 1usize << packing.keys.index_bits();
                elements * (turns + 2 * rows)
            }
            (Method::Encode, None) => 0,
            (Method::AttendRaw | Method::AttendPacked, _) => 4 * elements * self.group.unwrap_or(1),
        };
        operations as u64
    }

    /// Pages of keys.
    pub fn pages(&self) -> usize {
        let chunk = self.pages_of.map(|packing| packing.keys.chunk());
        chunk.map_or(0, |chunk| self.shape.rows() * (self.shape.tokens / chunk))
    }

    fn words(&self) -> [usize; 2] {
        self.pages_of.map_or([0; 2], |packing| [packing.keys.words(), packing.values.words()])
    }

    /// The fields that say what was measured.
    pub fn fields(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("method", json!(self.method.name())),
            ("batch", json!(self.shape.batch)),
            ("heads", json!(self.shape.heads)),
            ("group", json!(self.group)),
            ("dim", json!(self.shape.dim)),
            ("tokens", json!(self.shape.tokens)),
            ("profile", json!(self.pages_of.map(|packing| packing.profile))),
            ("preset", json!(self.pages_of.and_then(|packing| packing.preset))),
            ("bits", json!(self.pages_of.map(|packing| packing.keys.bits().get()))),
            ("value_bits", json!(self.pages_of.map(|packing| packing.values.bits().get()))),
            ("chunk", json!(self.pages_of.map(|packing| packing.keys.chunk()))),
            ("kept", json!(self.kept)),
            ("adaptive", json!(self.adaptive)),
        ]
    }

    /// What distinguishes a curve over tokens of a row from another.
    pub fn curve(&self) -> String {
        self.kind() + &format!(" {}x{}x{}", self.shape.batch, self.shape.heads, self.shape.dim)
    }

    /// What is done, whatever the shape.
    pub fn kind(&self) -> String {
        let mut name = self.method.name().to_string();
        if let Some(Packing { keys, values, profile, .. }) = &self.pages_of {
            let (k, v) = (keys.bits().get(), values.bits().get());
            let rates = if k == v { format!("{k}") } else { format!("{k}+{v}") };
            name += &format!(" {profile} {rates} bits r{}", keys.chunk());
        }
        if self.adaptive == Some(true) {
            name += " adaptive";
        }
        if let Some(group) = self.group {
            name += &format!(" x{group}");
        }
        name
    }
}
