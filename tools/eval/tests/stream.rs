//! A small random model: blocks of tokens against one token at a time.

use wgkv_eval::cache::{Cache, Place, Prompt, stream_with};
use wgkv_eval::choice::{Choice, Window};
use wgkv_eval::gpu::Gpu;
use wgkv_eval::loss::losses;
use wgkv_eval::model::{Activation, Local, Model, Pairs, Rows, Shape, Style};
use wgkv_eval::rule::Rule;

const SHAPE: Shape = Shape {
    layers: 2,
    width: 64,
    inner: 96,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    vocabulary: 50,
    rope_base: 10_000.0,
    pairs: Some(Pairs::Halves),
    epsilon: 1e-5,
};
/// The first layer sees less than the whole text, and more than stays raw.
const STYLE: Style = Style {
    pairs: Pairs::Halves,
    activation: Activation::Gelu,
    large_embedding: true,
    own_head: false,
    biases: true,
    head_norms: true,
    outer_norms: true,
    local: Some(Local { window: 30, every: 2, rope_base: 100.0 }),
};
const WINDOW: Window = Window { sinks: 2, recent: 3, chunk: 16 };

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|at| (at * at + 7 * at) % 50).collect()
}

/// Attention outputs of both layers, token after token.
fn outputs(codec: &str, block: usize) -> Vec<f32> {
    outputs_in(&Place::Cpu, codec, block)
}

fn outputs_in(place: &Place, codec: &str, block: usize) -> Vec<f32> {
    let model = Model::random_as(SHAPE, STYLE, 11).unwrap();
    let choice = Choice::parse(codec, WINDOW).unwrap();
    let mut cache = Cache::new(&choice, &SHAPE, place).unwrap();
    let mut found = vec![Vec::new(); SHAPE.layers];
    // Queries, keys and values come from one run, so that the bits of products of matrices, which may
    // depend on how many rows they have, play no part.
    let mut rows_of = Vec::new();
    let mut raw = Cache::new(&Choice::parse("f16", WINDOW).unwrap(), &SHAPE, &Place::Cpu).unwrap();
    let all = tokens(70);
    for token in 0..all.len() {
        let step = raw.open(wgkv_eval::cache::Kind::Answer, 1).unwrap();
        let mut layers = Vec::new();
        model
            .forward(&all[token..token + 1], token, |layer, rows| {
                raw.write(&step, layer, &rows.keys, &rows.values)?;
                layers.push([rows.queries.clone(), rows.keys.clone(), rows.values.clone()]);
                raw.attend(layer, &rows.queries, rows.window)
            })
            .unwrap();
        rows_of.push(layers);
    }
    let mut at = 0;
    stream_with(
        &model,
        &mut cache,
        &all,
        block,
        |cache, step, layer, rows| {
            let count = rows.queries.len() / SHAPE.heads / SHAPE.head_dim;
            let side = |side: usize, heads: usize| -> Vec<f32> {
                let mut out = Vec::new();
                for head in 0..heads {
                    for token in &rows_of[at..at + count] {
                        let row = &token[layer][side];
                        out.extend(&row[head * SHAPE.head_dim..(head + 1) * SHAPE.head_dim]);
                    }
                }
                out
            };
            cache.write(step, layer, &side(1, SHAPE.kv_heads), &side(2, SHAPE.kv_heads))?;
            let out = cache.attend(layer, &side(0, SHAPE.heads), rows.window)?;
            for token in 0..count {
                for head in out.chunks_exact(count * SHAPE.head_dim) {
                    found[layer].extend(&head[token * SHAPE.head_dim..][..SHAPE.head_dim]);
                }
            }
            if layer + 1 == SHAPE.layers {
                at += count;
            }
            Ok(out)
        },
        &mut |_, _| Ok(()),
    )
    .unwrap();
    found.concat()
}

#[test]
fn a_block_is_its_tokens_one_by_one() {
    let raw = outputs("f16", 1);
    for codec in [
        "f16",
        "compat-k2v2",
        "compat-k2v1@s0w0",
        "paper-k2v2",
        "tuned-k3v2-rope@s0w0",
        "int4-g16",
        "q8_0@s0",
        "decoded-tuned-k3v2-scaled",
    ] {
        let single = outputs(codec, 1);
        for block in [usize::MAX, 5] {
            let blocks = outputs(codec, block);
            let same = single.iter().zip(&blocks).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && single.len() == blocks.len(), "{codec}, blocks of {block}");
        }
        assert_eq!(single == raw, codec == "f16", "{codec} packs");
    }
}

/// What was quantised elsewhere is near what was not, and worse with fewer bits.
#[test]
fn fewer_bits_lose_more() {
    let raw = outputs("f16", usize::MAX);
    let error = |codec: &str| -> f32 {
        outputs(codec, usize::MAX).iter().zip(&raw).map(|(a, b)| (a - b) * (a - b)).sum()
    };
    let errors = ["q8_0", "int4-g16", "int2-g16"].map(error);
    assert!(errors[0] > 0.0 && errors[0] < errors[1] && errors[1] < errors[2], "{errors:?}");
}

/// A layer with a window sees what a plain sum over the newest tokens gives, packed or not.
#[test]
fn a_window_is_the_newest_tokens() {
    let model = Model::random_as(SHAPE, STYLE, 3).unwrap();
    let Shape { heads, kv_heads, head_dim, .. } = SHAPE;
    let tokens = tokens(60);
    for (codec, most) in [("f16", 2e-3), ("tuned-k4v4", 0.5)] {
        let choice = Choice::parse(codec, WINDOW).unwrap();
        let mut cache = Cache::new(&choice, &SHAPE, &Place::Cpu).unwrap();
        let (mut keys, mut values) = (vec![Vec::new(); 4], vec![Vec::new(); 4]);
        let mut far = 0.0f32;
        for (at, token) in tokens.iter().enumerate() {
            let step = cache.open(wgkv_eval::cache::Kind::Answer, 1).unwrap();
            let attend = |layer: usize, rows: &Rows| {
                cache.write(&step, layer, &rows.keys, &rows.values)?;
                let out = cache.attend(layer, &rows.queries, rows.window)?;
                let first = if layer == 0 { (at + 1).saturating_sub(30) } else { 0 };
                for head in 0..heads {
                    let group = head / (heads / kv_heads);
                    let row = |rows: &[f32], head: usize| -> Vec<f32> {
                        rows[head * head_dim..(head + 1) * head_dim].to_vec()
                    };
                    let place = layer * kv_heads + group;
                    if head % (heads / kv_heads) == 0 {
                        keys[place].push(row(&rows.keys, group));
                        values[place].push(row(&rows.values, group));
                    }
                    let query = row(&rows.queries, head);
                    let weight = |key: &Vec<f32>| {
                        let dot: f32 = key.iter().zip(&query).map(|(a, b)| a * b).sum();
                        (dot / (head_dim as f32).sqrt()).exp()
                    };
                    let weights: Vec<f32> = keys[place][first..].iter().map(weight).collect();
                    let sum: f32 = weights.iter().sum();
                    for channel in 0..head_dim {
                        let rows = values[place][first..].iter().zip(&weights);
                        let value: f32 = rows.map(|(row, weight)| row[channel] * weight).sum();
                        far = far.max((value / sum - out[head * head_dim + channel]).abs());
                    }
                }
                Ok(out)
            };
            model.forward(&[*token], at, attend).unwrap();
            cache.close().unwrap();
        }
        assert!(far < most && (far > 2e-3) == (codec != "f16"), "{codec}: {far}");
    }
}

/// The order of channels that are turned together is no part of a model.
#[test]
fn both_orders_make_one_model() {
    let [a, b] = [Pairs::Halves, Pairs::Neighbours].map(|pairs| {
        let model = Model::random_as(SHAPE, Style { pairs, ..STYLE }, 3).unwrap();
        let choice = Choice::parse("f16", WINDOW).unwrap();
        let tokens = tokens(40);
        losses(&model, &choice, &Place::Cpu, &tokens, None, None, &(20..40), &|_| {}).unwrap()
    });
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3), "{a:?} {b:?}");
}

/// A prompt of the whole text but the scored end is what raw rows give.
#[test]
fn a_prompt_attends_to_raw_rows() {
    let model = Model::random(SHAPE, 5).unwrap();
    let tokens = tokens(60);
    let loss = |codec: &str, prompt: usize| {
        let choice = Choice::parse(codec, WINDOW).unwrap();
        let prompt = match prompt {
            0 => None,
            count => Some(Prompt::read(&model, &tokens[..count], &Place::Cpu, &|_| {}).unwrap()),
        };
        let scored = 50..51;
        losses(&model, &choice, &Place::Cpu, &tokens, prompt.as_ref(), None, &scored, &|_| {})
            .unwrap()
    };
    let raw = loss("f16", 0);
    assert!((raw[0] - loss("compat-k1v1", 50)[0]).abs() < 1e-4);
    assert!((raw[0] - loss("f16", 40)[0]).abs() < 1e-4);
    assert!((raw[0] - loss("compat-k1v1", 0)[0]).abs() > 1e-4);
}

/// A window goes by the positions of tokens: where it ends, rows may be dropped.
#[test]
fn rows_outside_a_window_play_no_part() {
    let local = Local { window: 30, every: SHAPE.layers + 1, rope_base: 100.0 };
    let model = Model::random_as(SHAPE, Style { local: Some(local), ..STYLE }, 5).unwrap();
    let tokens = tokens(60);
    let prompt = Prompt::read(&model, &tokens[..50], &Place::Cpu, &|_| {}).unwrap();
    let choice = Choice::parse("f16", WINDOW).unwrap();
    let loss = |keep: f64| {
        let rule = Rule::parse("recent", keep, WINDOW.sinks).unwrap();
        let (prompt, scored) = (Some(&prompt), 52..60);
        losses(&model, &choice, &Place::Cpu, &tokens, prompt, Some(&rule), &scored, &|_| {})
            .unwrap()
    };
    let all = loss(1.0);
    let far =
        |keep: f64| all.iter().zip(loss(keep)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Sums go in another order where there are fewer rows.
    assert!(far(0.64) < 1e-5, "{}", far(0.64));
    assert!(far(0.5) > 1e-3, "{}", far(0.5));
}

/// The library's attention over packed rows is that over decoded rows.
#[test]
fn packed_rows_are_what_they_decode_to() {
    for rates in ["compat-k2v2", "compat-k1v2@s0w0", "tuned-k3v2", "tuned-k1v4@s0w0"] {
        let [packed, decoded] =
            [rates.to_owned(), format!("decoded-{rates}")].map(|codec| outputs(&codec, usize::MAX));
        let far = packed.iter().zip(&decoded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 2e-3, "{rates}: {far}");
    }
}

/// Needs a GPU adapter; a software one will do.
#[test]
fn a_device_gives_what_the_host_gives() {
    let place = Place::Gpu(std::sync::Arc::new(Gpu::open("").unwrap()));
    for codec in ["f16", "compat-k2v2", "tuned-k3v2", "int4-g16"] {
        let [host, device] =
            [&Place::Cpu, &place].map(|place| outputs_in(place, codec, usize::MAX));
        let far = host.iter().zip(&device).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(host.len() == device.len() && far < 2e-3, "{codec}: {far}");
    }
}
