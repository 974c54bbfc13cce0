//! Small random models, written into files as others write them, and read.

mod small;

use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use serde_json::{Value as Json, json};
use wgkv_eval::cache::{Cache, Kind, Place};
use wgkv_eval::choice::{Choice, Window};
use wgkv_eval::model::{Model, Pairs, Rows};
use wgkv_eval::words::Words;

use small::{
    HEAD_DIM, HEADS, INNER, LAYERS, Tensors, VOCABULARY, WIDTH, config, published, write_folder,
    write_words,
};

/// Names in GGUF files.
fn short(name: &str) -> String {
    [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ]
    .iter()
    .fold(name.to_owned(), |name, (long, short)| name.replace(long, short))
}

/// Metadata of a GGUF file.
fn metadata(architecture: &str) -> Vec<(String, Value)> {
    let key = |key: &str| format!("{architecture}.{key}");
    let number = |number: usize| Value::U32(number as u32);
    vec![
        ("general.architecture".into(), Value::String(architecture.into())),
        (key("block_count"), number(LAYERS)),
        (key("embedding_length"), number(WIDTH)),
        (key("feed_forward_length"), number(INNER)),
        (key("attention.head_count"), number(HEADS)),
        (key("attention.head_count_kv"), number(1)),
        (key("attention.key_length"), number(HEAD_DIM)),
        (key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5)),
        (key("rope.freq_base"), Value::F32(5000.0)),
    ]
}

fn write_gguf(path: &Path, metadata: &[(String, Value)], tensors: &Tensors) {
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let quantised = |tensor| QTensor::quantize(tensor, GgmlDType::F32).unwrap();
    let tensors: Vec<_> = tensors.iter().map(|(k, v)| (short(k), quantised(v))).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

/// The way in which files of the architecture llama get the channels of queries and keys into another
/// order: halves `[heads, 2, head_dim / 2]` become neighbours `[heads, head_dim / 2, 2]`.
fn permute(tensors: &mut Tensors) {
    for (name, tensor) in tensors {
        if name.contains("q_proj") || name.contains("k_proj") {
            let heads = tensor.dim(0).unwrap() / HEAD_DIM;
            let halves = tensor.reshape((heads, 2, HEAD_DIM / 2, WIDTH)).unwrap();
            let neighbours = halves.transpose(1, 2).unwrap();
            *tensor = neighbours.reshape((heads * HEAD_DIM, WIDTH)).unwrap();
        }
    }
}

/// Logits of some tokens, and what each layer asked of the cache.
fn run(model: &Model) -> (Vec<f32>, Vec<Rows>) {
    let choice = Choice::parse("f16", Window { sinks: 0, recent: 0, chunk: 16 }).unwrap();
    let mut cache = Cache::new(&choice, model.shape(), &Place::Cpu).unwrap();
    let tokens: Vec<u32> = (0..40).map(|at| (at * at + 3 * at) % VOCABULARY as u32).collect();
    let step = cache.open(Kind::Answer, tokens.len()).unwrap();
    let mut asked = Vec::new();
    let hidden = model.forward(&tokens, 0, |layer, rows| {
        cache.write(&step, layer, &rows.keys, &rows.values)?;
        let out = cache.attend(layer, &rows.queries, rows.window)?;
        asked.push(Rows {
            queries: rows.queries.clone(),
            keys: rows.keys.clone(),
            plain: rows.plain.clone(),
            values: rows.values.clone(),
            window: rows.window,
        });
        Ok(out)
    });
    (model.logits(&hidden.unwrap()).unwrap(), asked)
}

#[track_caller]
fn near(a: &[f32], b: &[f32]) {
    let far = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(a.len() == b.len() && far < 2e-3, "{far}");
}

/// One model in a folder, in a GGUF file with its own order of channels, and in that order's place.
#[test]
fn a_folder_and_a_file_make_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let mut tensors = published(false, false);
    write_folder(folder.path(), &config("llama"), &tensors);
    permute(&mut tensors);
    let file = folder.path().join("model.gguf");
    write_gguf(&file, &metadata("llama"), &tensors);
    let (logits, asked) = run(&Model::read(folder.path(), None).unwrap());
    assert!(logits.iter().any(|x| x.abs() > 0.1));
    let (others, neighbours) = run(&Model::read(&file, None).unwrap());
    near(&logits, &others);
    let (others, halves) = run(&Model::read(&file, Some(Pairs::Halves)).unwrap());
    near(&logits, &others);
    near(&asked[0].keys, &halves[0].keys);
    near(&asked[0].queries, &halves[0].queries);
    assert_ne!(asked[0].keys, neighbours[0].keys);
}

/// Without an output layer of its own, and with one that a folder says is not used.
#[test]
fn the_embedding_may_be_the_output_layer() {
    let folder = tempfile::tempdir().unwrap();
    let (mut config, mut tensors) = (config("llama"), published(false, false));
    let logits = |config: &Json, tensors: &Tensors| {
        write_folder(folder.path(), config, tensors);
        run(&Model::read(folder.path(), None).unwrap()).0
    };
    let own = logits(&config, &tensors);
    config["tie_word_embeddings"] = json!(true);
    let tied = logits(&config, &tensors);
    tensors.remove("lm_head.weight");
    config["tie_word_embeddings"] = Json::Null;
    near(&tied, &logits(&config, &tensors));
    assert_ne!(own, tied);
}

/// Biases and norms of heads, in both kinds of files, and the other order of channels.
#[test]
fn other_architectures_are_read() {
    for (architecture, head_norms, biases) in [("qwen2", false, true), ("qwen3", true, false)] {
        let folder = tempfile::tempdir().unwrap();
        let tensors = published(head_norms, biases);
        write_folder(folder.path(), &config(architecture), &tensors);
        let file = folder.path().join("model.gguf");
        write_gguf(&file, &metadata(architecture), &tensors);
        let (logits, asked) = run(&Model::read(folder.path(), None).unwrap());
        let (others, same) = run(&Model::read(&file, None).unwrap());
        near(&logits, &others);
        near(&asked[1].keys, &same[1].keys);
        let (others, _) = run(&Model::read(&file, Some(Pairs::Neighbours)).unwrap());
        near(&logits, &others);
    }
}

/// A file of the architecture gemma3: which layers see a window, and norms.
#[test]
fn windows_are_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let mut tensors = published(true, false);
    tensors.remove("lm_head.weight");
    let ones = |count: usize| Tensor::ones(count, candle_core::DType::F32, &Device::Cpu).unwrap();
    for layer in 0..LAYERS {
        for name in ["post_attention_norm", "post_ffw_norm"] {
            tensors.insert(format!("blk.{layer}.{name}.weight"), ones(WIDTH));
        }
        tensors.insert(format!("blk.{layer}.attn_k_norm.weight"), ones(HEAD_DIM));
        tensors.remove(&format!("model.layers.{layer}.self_attn.k_norm.weight"));
    }
    let mut metadata = metadata("gemma3");
    let key = |key: &str| format!("gemma3.attention.{key}");
    metadata.push((key("sliding_window"), Value::U32(9)));
    write_gguf(&file, &metadata, &tensors);
    let windows = |file: &Path| -> Vec<_> {
        run(&Model::read(file, None).unwrap()).1.iter().map(|rows| rows.window).collect()
    };
    assert_eq!(windows(&file), [Some(9), Some(9)]);
    metadata.push((key("sliding_window_pattern"), Value::U32(2)));
    write_gguf(&file, &metadata, &tensors);
    assert_eq!(windows(&file), [Some(9), None]);
    let (_, asked) = run(&Model::read(&file, None).unwrap());
    for key in asked[1].keys.chunks_exact(HEAD_DIM) {
        let square = key.iter().map(|x| x * x).sum::<f32>() / HEAD_DIM as f32;
        assert!((square - 1.0).abs() < 1e-3, "{square}");
    }
}

#[test]
fn what_is_not_known_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let read = |config: &Json, tensors: &Tensors| {
        write_folder(path, config, tensors);
        Model::read(path, None).map(drop)
    };
    let (good, tensors) = (config("llama"), published(false, false));
    assert!(Model::read(path, None).is_err());
    read(&good, &tensors).unwrap();
    for (key, value) in [
        ("model_type", json!("mamba")),
        ("model_type", json!("gemma3")),
        ("model_type", json!("qwen3")),
        ("attention_bias", json!(true)),
        ("use_sliding_window", json!(true)),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4})),
        ("rope_parameters", json!({"rope_type": "llama3", "rope_theta": 1e4})),
        ("hidden_size", json!(64)),
        ("num_hidden_layers", json!(3)),
        ("head_dim", json!("wide")),
    ] {
        let mut bad = good.clone();
        bad[key] = value;
        assert!(read(&bad, &tensors).is_err(), "{bad}");
    }
    let mut more = tensors.clone();
    let bias = Tensor::ones(WIDTH, candle_core::DType::F32, &Device::Cpu).unwrap();
    more.insert("model.layers.1.mlp.down_proj.bias".into(), bias);
    assert!(read(&good, &more).is_err());
    let file = path.join("model.gguf");
    write_gguf(&file, &metadata("llama"), &more);
    assert!(Model::read(&file, None).is_err());
    write_gguf(&file, &metadata("llama"), &tensors);
    Model::read(&file, None).unwrap();
    let mut scaled = metadata("llama");
    scaled.push(("llama.rope.scaling.type".into(), Value::String("linear".into())));
    write_gguf(&file, &scaled, &tensors);
    assert!(Model::read(&file, None).is_err());
    write_gguf(&file, &metadata("gemma3"), &tensors);
    assert!(Model::read(&file, None).is_err());
}

/// A folder's own way to cut texts, and how it ends and asks.
#[test]
fn words_of_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, json: Json| {
        std::fs::write(folder.path().join(name), json.to_string()).unwrap();
    };
    assert!(Words::read(folder.path()).is_err());
    write("config.json", config("llama"));
    write_words(folder.path());
    let words = Words::read(folder.path()).unwrap();
    assert_eq!(words.encode("w2 w1 w2").unwrap(), [0, 2, 1, 2]);
    assert_eq!(words.decode(&[0, 2, 1]).unwrap(), "w2 w1");
    assert_eq!((words.before().unwrap(), words.ends()), (1, &[1, 2][..]));
    assert_eq!(words.chat("w2"), "w2");
    write("tokenizer_config.json", json!({"chat_template": "{{'<|im_start|>'}}"}));
    assert!(
        Words::read(folder.path()).unwrap().chat("b").contains("<|im_start|>user\nb<|im_end|>")
    );
}
