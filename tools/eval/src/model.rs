//! A model of the Llama type on the CPU, without a cache of its own.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{Device, Tensor};

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
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// What keeps a norm from 0.
    pub epsilon: f32,
}

/// Which channels of a head the rotary embedding turns together. It is the same model either way, with
/// the channels of queries and keys in another order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pairs {
    /// Neighbours: the order of GGUF files.
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
}

#[derive(Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    queries: Matrix,
    keys: Matrix,
    values: Matrix,
    output: Matrix,
    inner_norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

/// The weights.
#[derive(Debug)]
pub struct Model {
    shape: Shape,
    pairs: Pairs,
    embedding: Vec<f32>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Matrix,
}

/// A matrix that multiplies rows from the right.
#[derive(Debug)]
struct Matrix(Tensor);

impl Matrix {
    /// From weights `[out, in]`.
    fn new(weights: Tensor) -> Result<Self> {
        Ok(Self(weights.t()?))
    }

    fn apply(&self, rows: &[f32]) -> Result<Vec<f32>> {
        let width = self.0.dim(0)?;
        let rows = Tensor::from_slice(rows, (rows.len() / width, width), &Device::Cpu)?;
        Ok(rows.matmul(&self.0)?.flatten_all()?.to_vec1()?)
    }
}

impl Model {
    /// Reads a GGUF file of the architecture `llama`; quantised weights become f32.
    ///
    /// # Errors
    /// For other files.
    pub fn read(path: &Path, pairs: Pairs) -> Result<Self> {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        let content = Content::read(&mut file)?;
        let get = |key: &str| {
            let key = format!("llama.{key}");
            content.metadata.get(&key).with_context(|| format!("the model has no {key}"))
        };
        let count = |key: &str| -> Result<usize> { Ok(get(key)?.to_u32()? as usize) };
        match content.metadata.get("general.architecture") {
            Some(Value::String(name)) if name == "llama" => {}
            other => bail!("a model of the architecture llama is needed, not {other:?}"),
        }
        let (width, heads) = (count("embedding_length")?, count("attention.head_count")?);
        let mut shape = Shape {
            layers: count("block_count")?,
            width,
            inner: count("feed_forward_length")?,
            heads,
            kv_heads: count("attention.head_count_kv")?,
            head_dim: width / heads,
            vocabulary: 0,
            rope_base: get("rope.freq_base").map_or(Ok(10_000.0), Value::to_f32)?,
            epsilon: get("attention.layer_norm_rms_epsilon")?.to_f32()?,
        };
        let turned = count("rope.dimension_count")?;
        ensure!(turned == shape.head_dim, "{turned} turned channels of {}", shape.head_dim);
        let mut tensor = |name: &str| -> Result<Tensor> {
            Ok(content.tensor(&mut file, name, &Device::Cpu)?.dequantize(&Device::Cpu)?)
        };
        let embedding = tensor("token_embd.weight")?;
        shape.vocabulary = embedding.dim(0)?;
        let head = if content.tensor_infos.contains_key("output.weight") {
            tensor("output.weight")?
        } else {
            embedding.clone()
        };
        let order = |heads: usize| -> Result<Tensor> {
            let (dim, pairs) = (shape.head_dim as u32, shape.head_dim as u32 / 2);
            let place = |channel: u32| {
                if channel < pairs { 2 * channel } else { 2 * (channel - pairs) + 1 }
            };
            let rows = (0..heads as u32).flat_map(|head| (0..dim).map(move |c| (head * dim, c)));
            let rows: Vec<u32> = rows.map(|(first, channel)| first + place(channel)).collect();
            Ok(Tensor::new(rows, &Device::Cpu)?)
        };
        let turned = |weights: Tensor, heads: usize| -> Result<Matrix> {
            Matrix::new(match pairs {
                Pairs::Neighbours => weights,
                Pairs::Halves => weights.index_select(&order(heads)?, 0)?,
            })
        };
        let mut layers = Vec::new();
        for layer in 0..shape.layers {
            let mut part = |name: &str| tensor(&format!("blk.{layer}.{name}.weight"));
            layers.push(Layer {
                attention_norm: part("attn_norm")?.to_vec1()?,
                queries: turned(part("attn_q")?, shape.heads)?,
                keys: turned(part("attn_k")?, shape.kv_heads)?,
                values: Matrix::new(part("attn_v")?)?,
                output: Matrix::new(part("attn_output")?)?,
                inner_norm: part("ffn_norm")?.to_vec1()?,
                gate: Matrix::new(part("ffn_gate")?)?,
                up: Matrix::new(part("ffn_up")?)?,
                down: Matrix::new(part("ffn_down")?)?,
            });
        }
        let norm = tensor("output_norm.weight")?.to_vec1()?;
        let embedding = embedding.flatten_all()?.to_vec1()?;
        Ok(Self { shape, pairs, embedding, layers, norm, head: Matrix::new(head)? })
    }

    /// A model of random weights, the same for the same seed.
    pub fn random(shape: Shape, seed: u64) -> Result<Self> {
        let mut state = seed;
        let mut draw = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 40) as f32 / (1 << 23) as f32) - 1.0
        };
        let mut matrix = |out: usize, width: usize| -> Result<Tensor> {
            let size = (3.0 / width as f32).sqrt();
            let weights: Vec<f32> = (0..out * width).map(|_| size * draw()).collect();
            Ok(Tensor::from_vec(weights, (out, width), &Device::Cpu)?)
        };
        let Shape { width, inner, heads, kv_heads, head_dim, .. } = shape;
        let embedding = matrix(shape.vocabulary, width)?;
        let mut layers = Vec::new();
        for _ in 0..shape.layers {
            layers.push(Layer {
                attention_norm: vec![1.0; width],
                queries: Matrix::new(matrix(heads * head_dim, width)?)?,
                keys: Matrix::new(matrix(kv_heads * head_dim, width)?)?,
                values: Matrix::new(matrix(kv_heads * head_dim, width)?)?,
                output: Matrix::new(matrix(width, heads * head_dim)?)?,
                inner_norm: vec![1.0; width],
                gate: Matrix::new(matrix(inner, width)?)?,
                up: Matrix::new(matrix(inner, width)?)?,
                down: Matrix::new(matrix(width, inner)?)?,
            });
        }
        let head = Matrix::new(embedding.clone())?;
        let embedding = embedding.flatten_all()?.to_vec1()?;
        let pairs = Pairs::default();
        Ok(Self { shape, pairs, embedding, layers, norm: vec![1.0; width], head })
    }

    /// Sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Hidden states `[tokens, width]` of tokens that stand at `position` and after. `attend` is
    /// called layer after layer and gives the outputs of attention `[heads, tokens, head_dim]`.
    pub fn forward(
        &self,
        tokens: &[u32],
        position: usize,
        mut attend: impl FnMut(usize, &Rows) -> Result<Vec<f32>>,
    ) -> Result<Vec<f32>> {
        let Shape { width, heads, kv_heads, head_dim, epsilon, .. } = self.shape;
        let turns = self.turns(position, tokens.len());
        let mut hidden = Vec::with_capacity(tokens.len() * width);
        for &token in tokens {
            let first = token as usize * width;
            let row = self.embedding.get(first..first + width);
            hidden.extend_from_slice(row.with_context(|| format!("no token {token}"))?);
        }
        for (place, layer) in self.layers.iter().enumerate() {
            let x = norm(&hidden, &layer.attention_norm, epsilon);
            let plain = by_head(&layer.keys.apply(&x)?, kv_heads, head_dim);
            let mut rows = Rows {
                queries: by_head(&layer.queries.apply(&x)?, heads, head_dim),
                keys: plain.clone(),
                plain,
                values: by_head(&layer.values.apply(&x)?, kv_heads, head_dim),
            };
            turn(&mut rows.queries, &turns, head_dim, self.pairs);
            turn(&mut rows.keys, &turns, head_dim, self.pairs);
            let out = by_token(&attend(place, &rows)?, heads, head_dim);
            add(&mut hidden, &layer.output.apply(&out)?);
            let x = norm(&hidden, &layer.inner_norm, epsilon);
            let mut inner = layer.gate.apply(&x)?;
            for (gate, up) in inner.iter_mut().zip(layer.up.apply(&x)?) {
                *gate *= up / (1.0 + (-*gate).exp());
            }
            add(&mut hidden, &layer.down.apply(&inner)?);
        }
        Ok(hidden)
    }

    /// Logits `[rows, vocabulary]` of hidden states `[rows, width]`.
    pub fn logits(&self, hidden: &[f32]) -> Result<Vec<f32>> {
        self.head.apply(&norm(hidden, &self.norm, self.shape.epsilon))
    }

    /// Cosine and sine of each pair of channels, `[tokens, head_dim / 2]`.
    fn turns(&self, position: usize, tokens: usize) -> Vec<(f32, f32)> {
        let pairs = self.shape.head_dim / 2;
        let base = f64::from(self.shape.rope_base);
        let frequency = |pair: usize| base.powf(-(pair as f64) / pairs as f64);
        (position..position + tokens)
            .flat_map(|at| (0..pairs).map(move |pair| at as f64 * frequency(pair)))
            .map(|angle| (angle.cos() as f32, angle.sin() as f32))
            .collect()
    }
}

/// The rotary embedding. The rows of GGUF files of this architecture are permuted so that neighbours
/// make a pair.
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
