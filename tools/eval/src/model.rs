//! A decoder on the CPU, without a cache of its own.

use std::path::Path;

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};

use crate::weights::Weights;

/// Sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Layers.
    pub layers: usize,
    /// Channels of a hidden state.
    pub width: usize,
    /// Channels between the two halves of a feed-forward part.
    pub inner: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Tokens that the model knows.
    pub vocabulary: usize,
    /// Base of the rotary frequencies, in layers that see all tokens.
    pub rope_base: f32,
    /// Which channels of keys turn together, where all layers have that base; a model says it.
    pub pairs: Option<Pairs>,
    /// What keeps a norm from 0.
    pub epsilon: f32,
}

/// What sets an architecture apart from others. The default is that of Llama with tied embeddings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Style {
    /// Which channels are turned together.
    pub pairs: Pairs,
    /// What the gate of a feed-forward part goes through.
    pub activation: Activation,
    /// Whether embeddings are multiplied by the root of the width.
    pub large_embedding: bool,
    /// Whether the output layer is not the embedding.
    pub own_head: bool,
    /// Whether queries, keys and values have biases.
    pub biases: bool,
    /// Whether each query and key is brought to a norm before its rotary embedding.
    pub head_norms: bool,
    /// Whether what attention and the feed-forward part add is brought to a norm.
    pub outer_norms: bool,
    /// Layers that see the newest tokens alone.
    pub local: Option<Local>,
}

/// Layers that see the newest tokens alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Local {
    /// Tokens that they see.
    pub window: u32,
    /// The last of so many layers sees all tokens.
    pub every: usize,
    /// Base of their rotary frequencies.
    pub rope_base: f32,
}

/// What the gate of a feed-forward part goes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    #[default]
    Silu,
    /// The normal distribution's, by tanh.
    Gelu,
}

/// Which channels of a head the rotary embedding turns together. It is the same model either way, with
/// the channels of queries and keys in another order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pairs {
    /// Neighbours: the order of GGUF files of the architecture llama.
    #[default]
    Neighbours,
    /// Channels half a head apart: the order in which most models are published.
    Halves,
}

/// What one layer asks of a cache: queries `[heads, tokens, head_dim]`, keys and values
/// `[kv_heads, tokens, head_dim]`, keys after their rotary embedding.
#[derive(Debug)]
pub struct Rows {
    /// Query rows.
    pub queries: Vec<f32>,
    /// Key rows.
    pub keys: Vec<f32>,
    /// Key rows before their rotary embedding.
    pub plain: Vec<f32>,
    /// Value rows.
    pub values: Vec<f32>,
    /// Tokens that the layer sees, the query's own one among them; all where none is given.
    pub window: Option<u32>,
}

#[derive(Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    queries: Matrix,
    keys: Matrix,
    values: Matrix,
    /// Of queries and of keys.
    head_norms: Option<[Vec<f32>; 2]>,
    output: Matrix,
    inner_norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    /// Behind attention and behind the feed-forward part.
    outer_norms: Option<[Vec<f32>; 2]>,
}

/// The weights.
#[derive(Debug)]
pub struct Model {
    shape: Shape,
    style: Style,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Matrix,
}

/// A matrix that multiplies rows from the right.
#[derive(Debug)]
struct Matrix {
    weights: Tensor,
    bias: Option<Vec<f32>>,
}

impl Matrix {
    /// From weights `[out, in]`.
    fn new(weights: &Tensor, bias: Option<Vec<f32>>) -> Result<Self> {
        Ok(Self { weights: weights.t()?, bias })
    }

    fn apply(&self, rows: &[f32]) -> Result<Vec<f32>> {
        let width = self.weights.dim(0)?;
        let rows = Tensor::from_slice(rows, (rows.len() / width, width), &Device::Cpu)?;
        let mut out = rows.matmul(&self.weights)?.flatten_all()?.to_vec1()?;
        if let Some(bias) = &self.bias {
            out.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
        }
        Ok(out)
    }
}

impl Model {
    /// Reads a GGUF file or a folder of safetensors; all weights become f32. Channels of heads are put
    /// into the order `pairs`, if any is given.
    ///
    /// # Errors
    /// For other files.
    pub fn read(path: &Path, pairs: Option<Pairs>) -> Result<Self> {
        let mut weights = Weights::open(path)?;
        let (shape, mut style) = (weights.shape, weights.style);
        let from = style.pairs;
        style.pairs = pairs.unwrap_or(from);
        let model = Self::build(shape, style, from, |name, dims| weights.tensor(name, dims))?;
        weights.finish()?;
        Ok(model)
    }

    /// A model of random weights, the same for the same seed.
    pub fn random(shape: Shape, seed: u64) -> Result<Self> {
        Self::random_as(shape, Style::default(), seed)
    }

    /// A model of random weights and any architecture. Its channels have the order of the default until
    /// they are put into that of `style`, so both orders make the same model.
    pub fn random_as(shape: Shape, style: Style, seed: u64) -> Result<Self> {
        let mut state = seed;
        let mut draw = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 40) as f32 / (1 << 23) as f32) - 1.0
        };
        Self::build(shape, style, Pairs::default(), |name, dims| {
            let size = (3.0 / dims[dims.len() - 1] as f32).sqrt();
            let mut element = || match (dims, name.ends_with("bias")) {
                ([_], false) => 1.0 + 0.25 * draw(),
                _ => size * draw(),
            };
            let elements: Vec<f32> = (0..dims.iter().product()).map(|_| element()).collect();
            Ok(Tensor::from_vec(elements, dims, &Device::Cpu)?)
        })
    }

    /// A model from tensors by their names in GGUF files and their shapes, with channels of heads in the
    /// order `from`.
    fn build(
        shape: Shape,
        style: Style,
        from: Pairs,
        mut get: impl FnMut(&str, &[usize]) -> Result<Tensor>,
    ) -> Result<Self> {
        let shape = Shape { pairs: style.local.is_none().then_some(style.pairs), ..shape };
        let Shape { width, inner, heads, kv_heads, head_dim, vocabulary, .. } = shape;
        let embedding = get("token_embd.weight", &[vocabulary, width])?;
        let mut layers = Vec::new();
        for layer in 0..shape.layers {
            let mut part = |name: &str, dims: &[usize]| get(&format!("blk.{layer}.{name}"), dims);
            let ordered = |rows: Tensor| match from == style.pairs {
                true => Ok(rows),
                false => reorder(&rows, head_dim, style.pairs),
            };
            let attention_norm = part("attn_norm.weight", &[width])?.to_vec1()?;
            let mut of_heads = |name: &str, heads: usize, turned: bool| -> Result<Matrix> {
                let place = |rows: Tensor| if turned { ordered(rows) } else { Ok(rows) };
                let out = heads * head_dim;
                let weights = place(part(&format!("{name}.weight"), &[out, width])?)?;
                let bias = match style.biases {
                    true => Some(place(part(&format!("{name}.bias"), &[out])?)?.to_vec1()?),
                    false => None,
                };
                Matrix::new(&weights, bias)
            };
            let queries = of_heads("attn_q", heads, true)?;
            let keys = of_heads("attn_k", kv_heads, true)?;
            let values = of_heads("attn_v", kv_heads, false)?;
            let head_norms = match style.head_norms {
                true => Some([
                    ordered(part("attn_q_norm.weight", &[head_dim])?)?.to_vec1()?,
                    ordered(part("attn_k_norm.weight", &[head_dim])?)?.to_vec1()?,
                ]),
                false => None,
            };
            let mut matrix = |name: &str, out: usize, width: usize| {
                Matrix::new(&part(&format!("{name}.weight"), &[out, width])?, None)
            };
            layers.push(Layer {
                attention_norm,
                queries,
                keys,
                values,
                head_norms,
                output: matrix("attn_output", width, heads * head_dim)?,
                gate: matrix("ffn_gate", inner, width)?,
                up: matrix("ffn_up", inner, width)?,
                down: matrix("ffn_down", width, inner)?,
                inner_norm: part("ffn_norm.weight", &[width])?.to_vec1()?,
                outer_norms: match style.outer_norms {
                    true => Some([
                        part("post_attention_norm.weight", &[width])?.to_vec1()?,
                        part("post_ffw_norm.weight", &[width])?.to_vec1()?,
                    ]),
                    false => None,
                },
            });
        }
        let norm = get("output_norm.weight", &[width])?.to_vec1()?;
        let head = match style.own_head {
            true => Matrix::new(&get("output.weight", &[vocabulary, width])?, None)?,
            false => Matrix::new(&embedding, None)?,
        };
        Ok(Self { shape, style, embedding, layers, norm, head })
    }

    /// Sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The architecture.
    pub fn style(&self) -> &Style {
        &self.style
    }

    /// Hidden states `[tokens, width]` of tokens that stand at `position` and after. `attend` is
    /// called layer after layer and gives the outputs of attention `[heads, tokens, head_dim]`.
    pub fn forward(
        &self,
        tokens: &[u32],
        position: usize,
        mut attend: impl FnMut(usize, &Rows) -> Result<Vec<f32>>,
    ) -> Result<Vec<f32>> {
        let Shape { heads, kv_heads, head_dim, epsilon, rope_base, .. } = self.shape;
        let pairs = self.style.pairs;
        let all = self.turns(position, tokens.len(), rope_base);
        let near =
            self.style.local.map(|local| self.turns(position, tokens.len(), local.rope_base));
        let mut hidden = self.embed(tokens)?;
        for (place, layer) in self.layers.iter().enumerate() {
            let x = norm(&hidden, &layer.attention_norm, epsilon);
            let mut queries = by_head(&layer.queries.apply(&x)?, heads, head_dim);
            let mut keys = by_head(&layer.keys.apply(&x)?, kv_heads, head_dim);
            if let Some(norms) = &layer.head_norms {
                queries = norm(&queries, &norms[0], epsilon);
                keys = norm(&keys, &norms[1], epsilon);
            }
            let values = by_head(&layer.values.apply(&x)?, kv_heads, head_dim);
            let window = self.window(place);
            let mut rows = Rows { queries, plain: keys.clone(), keys, values, window };
            let turns = near.as_ref().filter(|_| window.is_some()).unwrap_or(&all);
            turn(&mut rows.queries, turns, head_dim, pairs);
            turn(&mut rows.keys, turns, head_dim, pairs);
            let out = by_token(&attend(place, &rows)?, heads, head_dim);
            let mut out = layer.output.apply(&out)?;
            if let Some(norms) = &layer.outer_norms {
                out = norm(&out, &norms[0], epsilon);
            }
            add(&mut hidden, &out);
            let x = norm(&hidden, &layer.inner_norm, epsilon);
            let mut inner = layer.gate.apply(&x)?;
            for (gate, up) in inner.iter_mut().zip(layer.up.apply(&x)?) {
                *gate = up * self.style.activation.of(*gate);
            }
            let mut out = layer.down.apply(&inner)?;
            if let Some(norms) = &layer.outer_norms {
                out = norm(&out, &norms[1], epsilon);
            }
            add(&mut hidden, &out);
        }
        Ok(hidden)
    }

    /// Tokens that a layer sees, if not all.
    fn window(&self, layer: usize) -> Option<u32> {
        let local = self.style.local.filter(|local| !(layer + 1).is_multiple_of(local.every))?;
        Some(local.window)
    }

    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let tokens = Tensor::new(tokens, &Device::Cpu)?;
        let rows = self.embedding.index_select(&tokens, 0);
        let rows = rows.context("a token that the model does not know")?;
        let mut hidden: Vec<f32> = rows.flatten_all()?.to_vec1()?;
        if self.style.large_embedding {
            let scale = (self.shape.width as f32).sqrt();
            hidden.iter_mut().for_each(|x| *x *= scale);
        }
        Ok(hidden)
    }

    /// Logits `[rows, vocabulary]` of hidden states `[rows, width]`.
    pub fn logits(&self, hidden: &[f32]) -> Result<Vec<f32>> {
        self.head.apply(&norm(hidden, &self.norm, self.shape.epsilon))
    }

    /// Cosine and sine of each pair of channels, `[tokens, head_dim / 2]`.
    fn turns(&self, position: usize, tokens: usize, base: f32) -> Vec<(f32, f32)> {
        let pairs = self.shape.head_dim / 2;
        let base = f64::from(base);
        let frequency = |pair: usize| base.powf(-(pair as f64) / pairs as f64);
        (position..position + tokens)
            .flat_map(|at| (0..pairs).map(move |pair| at as f64 * frequency(pair)))
            .map(|angle| (angle.cos() as f32, angle.sin() as f32))
            .collect()
    }
}

impl Activation {
    fn of(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Gelu => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
        }
    }
}

/// Rows of heads that have the other order, in the order `to`.
fn reorder(rows: &Tensor, head_dim: usize, to: Pairs) -> Result<Tensor> {
    let half = head_dim / 2;
    let place = |channel: usize| match to {
        Pairs::Halves if channel < half => 2 * channel,
        Pairs::Halves => 2 * (channel - half) + 1,
        Pairs::Neighbours => channel / 2 + channel % 2 * half,
    };
    let places = (0..rows.dim(0)?).map(|row| row / head_dim * head_dim + place(row % head_dim));
    let places: Vec<u32> = places.map(|place| place as u32).collect();
    Ok(rows.index_select(&Tensor::new(places, &Device::Cpu)?, 0)?)
}

/// The rotary embedding.
fn turn(rows: &mut [f32], turns: &[(f32, f32)], head_dim: usize, pairs: Pairs) {
    let half = head_dim / 2;
    for head in rows.chunks_exact_mut(2 * turns.len()) {
        for (row, turns) in head.chunks_exact_mut(head_dim).zip(turns.chunks_exact(half)) {
            for (pair, (cos, sin)) in turns.iter().enumerate() {
                let (i, j) = match pairs {
                    Pairs::Neighbours => (2 * pair, 2 * pair + 1),
                    Pairs::Halves => (pair, pair + half),
                };
                let (a, b) = (row[i], row[j]);
                (row[i], row[j]) = (a * cos - b * sin, a * sin + b * cos);
            }
        }
    }
}

fn norm(rows: &[f32], weights: &[f32], epsilon: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len());
    for row in rows.chunks_exact(weights.len()) {
        let square = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
        let scale = 1.0 / (square + epsilon).sqrt();
        out.extend(row.iter().zip(weights).map(|(x, weight)| x * scale * weight));
    }
    out
}

fn add(to: &mut [f32], what: &[f32]) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to += what);
}

/// `[tokens, heads, head_dim]` to `[heads, tokens, head_dim]`.
fn by_head(rows: &[f32], heads: usize, head_dim: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len());
    for head in 0..heads {
        for token in rows.chunks_exact(heads * head_dim) {
            out.extend_from_slice(&token[head * head_dim..(head + 1) * head_dim]);
        }
    }
    out
}

/// `[heads, tokens, head_dim]` to `[tokens, heads, head_dim]`.
fn by_token(rows: &[f32], heads: usize, head_dim: usize) -> Vec<f32> {
    let tokens = rows.len() / (heads * head_dim);
    let mut out = Vec::with_capacity(rows.len());
    for token in 0..tokens {
        for head in rows.chunks_exact(tokens * head_dim) {
            out.extend_from_slice(&head[token * head_dim..(token + 1) * head_dim]);
        }
    }
    out
}
