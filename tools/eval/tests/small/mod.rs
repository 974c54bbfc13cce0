//! A small random model in a folder, as published ones are.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor, safetensors};
use serde_json::{Value as Json, json};

pub const LAYERS: usize = 2;
pub const WIDTH: usize = 48;
pub const INNER: usize = 40;
pub const HEADS: usize = 2;
pub const HEAD_DIM: usize = 32;
pub const VOCABULARY: usize = 20;

pub type Tensors = HashMap<String, Tensor>;

/// Tensors of a model, named as in most published files.
pub fn published(head_norms: bool, biases: bool) -> Tensors {
    let mut state = 7u64;
    let mut draw = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut tensors = Tensors::new();
    let mut add = |name: String, dims: &[usize]| {
        let middle = if name.contains("norm") { 1.0 } else { 0.0 };
        let elements = (0..dims.iter().product()).map(|_| middle + 0.5 * draw()).collect();
        tensors.insert(name, Tensor::from_vec::<_, f32>(elements, dims, &Device::Cpu).unwrap());
    };
    add("model.embed_tokens.weight".into(), &[VOCABULARY, WIDTH]);
    add("lm_head.weight".into(), &[VOCABULARY, WIDTH]);
    add("model.norm.weight".into(), &[WIDTH]);
    for layer in 0..LAYERS {
        let mut part =
            |name: &str, dims: &[usize]| add(format!("model.layers.{layer}.{name}"), dims);
        for (name, heads) in [("q", HEADS), ("k", 1), ("v", 1)] {
            part(&format!("self_attn.{name}_proj.weight"), &[heads * HEAD_DIM, WIDTH]);
            if biases {
                part(&format!("self_attn.{name}_proj.bias"), &[heads * HEAD_DIM]);
            }
            if head_norms && name != "v" {
                part(&format!("self_attn.{name}_norm.weight"), &[HEAD_DIM]);
            }
        }
        part("self_attn.o_proj.weight", &[WIDTH, HEADS * HEAD_DIM]);
        part("input_layernorm.weight", &[WIDTH]);
        part("post_attention_layernorm.weight", &[WIDTH]);
        part("mlp.gate_proj.weight", &[INNER, WIDTH]);
        part("mlp.up_proj.weight", &[INNER, WIDTH]);
        part("mlp.down_proj.weight", &[WIDTH, INNER]);
    }
    tensors
}

pub fn config(architecture: &str) -> Json {
    json!({
        "model_type": architecture, "hidden_size": WIDTH, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 1,
        "head_dim": HEAD_DIM, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, "rope_theta": 5000.0,
        "rope_scaling": null, "tie_word_embeddings": false, "eos_token_id": [1, 2],
    })
}

pub fn write_folder(path: &Path, config: &Json, tensors: &Tensors) {
    std::fs::write(path.join("config.json"), config.to_string()).unwrap();
    // In two files, as great models are.
    let (a, b): (Vec<_>, Vec<_>) = tensors.iter().partition(|(name, _)| name.contains("layers.0"));
    for (name, part) in [("model-1.safetensors", a), ("model-2.safetensors", b)] {
        let part: Tensors = part.into_iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        safetensors::save(&part, path.join(name)).unwrap();
    }
}

/// The way to cut texts into the words `w1` and so on, and how they begin.
pub fn write_words(path: &Path) {
    let vocabulary: serde_json::Map<String, Json> = std::iter::once(("<s>".into(), json!(0)))
        .chain((1..VOCABULARY).map(|word| (format!("w{word}"), json!(word))))
        .collect();
    let begin = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
    let special = json!({
        "id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    });
    let text = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
        "post_processor": {
            "type": "TemplateProcessing", "single": [begin, sequence], "pair": [sequence],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w1"},
    });
    std::fs::write(path.join("tokenizer.json"), text.to_string()).unwrap();
}
