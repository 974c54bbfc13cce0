//! What a sweep measures: methods, shapes, and the least work that they stand for.

use clap::ValueEnum;
use serde_json::{Value, json};

use wgkv::layout::{PageLayout, Preset};

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
    /// Attention on packed keys and values, rows side by side
    AttendPacked,
    /// Attention on the pages of a pool: sinks, packed chunks and the newest tokens
    AttendPaged,
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
            Self::AttendPaged => "attend-paged",
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
    /// What a pool of these pages keeps raw, and how it packs the rest.
    pub rules: Preset,
    /// Bits an element, if the rules are a preset as it is.
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
    /// Whether heads are long and short by turns, 4 to 1, with as many tokens in all.
    pub ragged: Option<bool>,
    /// Whether the pages were filled a token at a time and not by a prompt.
    pub stepped: Option<bool>,
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
            Method::AttendPaged => {
                self.lengths().into_iter().map(|n| self.held(n)).sum::<usize>() + ends
            }
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
            (Method::AttendRaw | Method::AttendPacked | Method::AttendPaged, _) => {
                4 * elements * self.group.unwrap_or(1)
            }
        };
        operations as u64
    }

    /// Pages of keys.
    pub fn pages(&self) -> usize {
        let chunk = self.pages_of.map(|packing| packing.keys.chunk());
        chunk.map_or(0, |chunk| self.shape.rows() * (self.shape.tokens / chunk))
    }

    /// Tokens of every row of a pool.
    pub fn lengths(&self) -> Vec<usize> {
        let (rows, tokens) = (self.shape.rows(), self.shape.tokens);
        let sinks = self.pages_of.map_or(0, |packing| packing.rules.sinks);
        let short = (2 * tokens / 5).max(sinks.min(tokens));
        let ragged = |row: usize| match (row % 2, row + 1 == rows) {
            (0, true) => tokens,
            (0, false) => 2 * tokens - short,
            _ => short,
        };
        (0..rows).map(|row| if self.ragged == Some(true) { ragged(row) } else { tokens }).collect()
    }

    /// Bytes of keys and values that a pool holds of a row of so many tokens.
    fn held(&self, tokens: usize) -> usize {
        let Some(Packing { keys, rules, .. }) = self.pages_of else { return 0 };
        let packed = tokens.saturating_sub(rules.sinks + rules.recent) / keys.chunk();
        let raw = tokens - packed * keys.chunk();
        let scale = if rules.key_scale && packed > 0 { 2 * self.shape.dim } else { 0 };
        4 * packed * self.words().iter().sum::<usize>() + 4 * raw * self.shape.dim + scale
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
            ("profile", json!(self.pages_of.map(|packing| packing.rules.profile.name()))),
            ("preset", json!(self.pages_of.and_then(|packing| packing.preset))),
            ("bits", json!(self.pages_of.map(|packing| packing.keys.bits().get()))),
            ("value_bits", json!(self.pages_of.map(|packing| packing.values.bits().get()))),
            ("chunk", json!(self.pages_of.map(|packing| packing.keys.chunk()))),
            ("kept", json!(self.kept)),
            ("adaptive", json!(self.adaptive)),
            ("ragged", json!(self.ragged)),
            ("stepped", json!(self.stepped)),
        ]
    }

    /// What distinguishes a curve over tokens of a row from another.
    pub fn curve(&self) -> String {
        self.kind() + &format!(" {}x{}x{}", self.shape.batch, self.shape.heads, self.shape.dim)
    }

    /// What is done, whatever the shape.
    pub fn kind(&self) -> String {
        let mut name = self.method.name().to_string();
        if let Some(Packing { keys, values, rules, .. }) = &self.pages_of {
            let profile = rules.profile.name();
            let (k, v) = (keys.bits().get(), values.bits().get());
            let rates = if k == v { format!("{k}") } else { format!("{k}+{v}") };
            name += &format!(" {profile} {rates} bits r{}", keys.chunk());
        }
        if self.adaptive == Some(true) {
            name += " adaptive";
        }
        if self.ragged == Some(true) {
            name += " ragged";
        }
        if self.stepped == Some(true) {
            name += " stepped";
        }
        if let Some(group) = self.group {
            name += &format!(" x{group}");
        }
        name
    }
}
