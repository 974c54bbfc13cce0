//! Weights as they lie in files: a GGUF file, or a folder with `config.json` and safetensors.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{DType, Device, Tensor, safetensors};
use serde_json::Value as Json;

use crate::model::{Activation, Local, Pairs, Shape, Style};

/// Layers of which one sees all tokens, where a file of the architecture gemma3 does not say.
const GEMMA_EVERY: usize = 6;
/// Base of the rotary frequencies in its other layers.
const GEMMA_LOCAL_BASE: f32 = 10_000.0;

/// Name of an output layer that is not the embedding, outside GGUF files.
const HEAD: &str = "lm_head.weight";

enum Source {
    /// The file and the names of what was not read yet.
    Gguf { content: Box<Content>, file: File, left: HashSet<String> },
    /// What was not read yet.
    Folder { left: HashMap<String, Tensor> },
}

/// The weights of a model and what they are for.
pub struct Weights {
    /// Sizes.
    pub shape: Shape,
    /// The architecture.
    pub style: Style,
    source: Source,
}

impl Weights {
    /// Opens a GGUF file of the architectures llama, qwen2, qwen3 or gemma3, or a folder of the first three.
    ///
    /// # Errors
    /// For other files, and for what is not known here, such as scaled rotary frequencies.
    pub fn open(path: &Path) -> Result<Self> {
        let found = if path.is_dir() { Self::folder(path) } else { Self::gguf(path) };
        found.with_context(|| path.display().to_string())
    }

    fn gguf(path: &Path) -> Result<Self> {
        let mut file = File::open(path)?;
        let content = Content::read(&mut file)?;
        let name = text(&content, "general.architecture")?;
        let find = |key: &str| content.metadata.get(&format!("{name}.{key}"));
        let get = |key: &str| find(key).with_context(|| format!("the model has no {name}.{key}"));
        let count = |key: &str| -> Result<usize> { Ok(get(key)?.to_u32()? as usize) };
        let (width, heads) = (count("embedding_length")?, count("attention.head_count")?);
        let head_dim = match find("attention.key_length") {
            Some(channels) => channels.to_u32()? as usize,
            None => width / heads.max(1),
        };
        for key in ["attention.value_length", "rope.dimension_count"] {
            let channels = find(key).map_or(Ok(head_dim as u32), Value::to_u32)?;
            ensure!(channels as usize == head_dim, "{key} is {channels}, heads have {head_dim}");
        }
        let scaled = find("rope.scaling.type")
            .is_some_and(|kind| !matches!(kind, Value::String(kind) if kind == "none"));
        let scaled = scaled || content.tensor_infos.contains_key("rope_freqs.weight");
        ensure!(!scaled, "scaled rotary frequencies are not known");
        let mut style = style(&name)?;
        style.own_head = content.tensor_infos.contains_key("output.weight");
        if name == "llama" {
            style.pairs = Pairs::Neighbours;
        }
        if name == "gemma3" {
            let every = find("attention.sliding_window_pattern");
            style.local = Some(Local {
                window: get("attention.sliding_window")?.to_u32()?,
                every: every.map_or(Ok(GEMMA_EVERY as u32), Value::to_u32)?.max(1) as usize,
                rope_base: find("rope.freq_base_swa")
                    .map_or(Ok(GEMMA_LOCAL_BASE), Value::to_f32)?,
            });
        }
        let embedding = content.tensor_infos.get("token_embd.weight");
        let embedding = embedding.context("the model has no token_embd.weight")?;
        let shape = Shape {
            layers: count("block_count")?,
            width,
            inner: count("feed_forward_length")?,
            heads,
            kv_heads: count("attention.head_count_kv")?,
            head_dim,
            vocabulary: embedding.shape.dims2()?.0,
            rope_base: find("rope.freq_base").map_or(Ok(10_000.0), Value::to_f32)?,
            pairs: None,
            epsilon: get("attention.layer_norm_rms_epsilon")?.to_f32()?,
        };
        let left = content.tensor_infos.keys().cloned().collect();
        let source = Source::Gguf { content: Box::new(content), file, left };
        Ok(Self { shape, style, source })
    }

    fn folder(path: &Path) -> Result<Self> {
        let config: Json = serde_json::from_slice(&std::fs::read(path.join("config.json"))?)?;
        let find = |key: &str| config.get(key).filter(|value| !value.is_null());
        let count = |key: &str| -> Result<usize> {
            let count = find(key).and_then(Json::as_u64);
            Ok(count.with_context(|| format!("config.json has no number {key}"))? as usize)
        };
        let or = |key: &str, other: usize| if find(key).is_some() { count(key) } else { Ok(other) };
        let name =
            find("model_type").and_then(Json::as_str).context("config.json: no model_type")?;
        ensure!(name != "gemma3", "models of the architecture gemma3 are read from GGUF files");
        let mut style = style(name)?;
        style.biases |= find("attention_bias").and_then(Json::as_bool) == Some(true);
        let windowed = find("use_sliding_window").and_then(Json::as_bool) == Some(true);
        ensure!(!windowed, "sliding windows are not known in folders");
        // Newer files have the base beside the kind of scaling.
        let rope = find("rope_parameters").or(find("rope_scaling"));
        if let Some(kind) = rope.and_then(|rope| rope.get("rope_type").or(rope.get("type"))) {
            ensure!(kind == "default", "rotary frequencies scaled as {kind} are not known");
        }
        let base = find("rope_theta").or(rope.and_then(|rope| rope.get("rope_theta")));
        let (width, heads) = (count("hidden_size")?, count("num_attention_heads")?);
        let epsilon = find("rms_norm_eps").and_then(Json::as_f64);
        let shape = Shape {
            layers: count("num_hidden_layers")?,
            width,
            inner: count("intermediate_size")?,
            heads,
            kv_heads: or("num_key_value_heads", heads)?,
            head_dim: or("head_dim", width / heads.max(1))?,
            vocabulary: count("vocab_size")?,
            rope_base: base.and_then(Json::as_f64).unwrap_or(10_000.0) as f32,
            pairs: None,
            epsilon: epsilon.context("config.json has no number rms_norm_eps")? as f32,
        };
        let mut left = HashMap::new();
        for entry in std::fs::read_dir(path)? {
            let file = entry?.path();
            if file.extension().is_some_and(|end| end == "safetensors") {
                left.extend(safetensors::load(&file, &Device::Cpu)?);
            }
        }
        if find("tie_word_embeddings").and_then(Json::as_bool) == Some(true) {
            left.remove(HEAD);
        }
        style.own_head = left.contains_key(HEAD);
        // Older files have the frequencies that the base gives.
        left.retain(|name, _| !name.ends_with("rotary_emb.inv_freq"));
        Ok(Self { shape, style, source: Source::Folder { left } })
    }

    /// A tensor as f32 by its name in GGUF files.
    ///
    /// # Errors
    /// Where there is none, or one of another shape.
    pub fn tensor(&mut self, name: &str, dims: &[usize]) -> Result<Tensor> {
        let tensor = match &mut self.source {
            Source::Gguf { content, file, left } => {
                left.remove(name);
                content.tensor(file, name, &Device::Cpu)?.dequantize(&Device::Cpu)?
            }
            Source::Folder { left } => {
                let name = published(name)?;
                let tensor = left.remove(&name);
                tensor.with_context(|| format!("the model has no {name}"))?.to_dtype(DType::F32)?
            }
        };
        ensure!(tensor.dims() == dims, "{name} is {:?}, not {dims:?}", tensor.dims());
        Ok(tensor)
    }

    /// Ends reading: what nobody asked for would be missed.
    ///
    /// # Errors
    /// Where a tensor is left.
    pub fn finish(&self) -> Result<()> {
        let left = match &self.source {
            Source::Gguf { left, .. } => left.iter().next(),
            Source::Folder { left } => left.keys().next(),
        };
        match left {
            Some(name) => bail!("what to do with {name} is not known"),
            None => Ok(()),
        }
    }
}

/// A string of a GGUF file.
pub(crate) fn text(content: &Content, key: &str) -> Result<String> {
    let value = content.metadata.get(key).with_context(|| format!("the model has no {key}"))?;
    Ok(value.to_string()?.clone())
}

/// What an architecture is, but for what differs between files.
fn style(name: &str) -> Result<Style> {
    let plain = Style { pairs: Pairs::Halves, ..Style::default() };
    Ok(match name {
        "llama" => plain,
        "qwen2" => Style { biases: true, ..plain },
        "qwen3" => Style { head_norms: true, ..plain },
        "gemma3" => Style {
            activation: Activation::Gelu,
            large_embedding: true,
            head_norms: true,
            outer_norms: true,
            ..plain
        },
        other => bail!("models of the architecture {other} are not known"),
    })
}

/// The name that a tensor has outside GGUF files.
fn published(name: &str) -> Result<String> {
    let parts: Vec<&str> = name.split('.').collect();
    Ok(match parts[..] {
        ["token_embd", end] => format!("model.embed_tokens.{end}"),
        ["output_norm", end] => format!("model.norm.{end}"),
        ["output", end] => format!("lm_head.{end}"),
        ["blk", layer, part, end] => {
            let part = match part {
                "attn_norm" => "input_layernorm",
                "attn_q" => "self_attn.q_proj",
                "attn_k" => "self_attn.k_proj",
                "attn_v" => "self_attn.v_proj",
                "attn_output" => "self_attn.o_proj",
                "attn_q_norm" => "self_attn.q_norm",
                "attn_k_norm" => "self_attn.k_norm",
                "ffn_norm" => "post_attention_layernorm",
                "ffn_gate" => "mlp.gate_proj",
                "ffn_up" => "mlp.up_proj",
                "ffn_down" => "mlp.down_proj",
                _ => bail!("no tensor {name} outside GGUF files"),
            };
            format!("model.layers.{layer}.{part}.{end}")
        }
        _ => bail!("no tensor {name} outside GGUF files"),
    })
}
