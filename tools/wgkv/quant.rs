//! `quantize` and `dequantize`.

use half::f16;
use serde_json::json;
use wgkv::layout::Metadata;
use wgkv::nsnquant::{Codec, Codes};

use crate::args::{Common, DequantizeArgs, QuantizeArgs, Wide};
use crate::engine::Engine;
use crate::file::{Data, Fail, Output, Payload, Source};
use crate::layers::{Kind, Names, Pair, layers, want};
use crate::packed::{Packed, open_packed, write_codebook};
use crate::packing::{Spec, pack, restore, restore_f16};
use crate::ragged::Ragged;
use crate::report::{finish, progress, spread};

/// Reads a layer of a dense or evicted file.
pub fn read_rows(
    source: &mut Source,
    kind: Kind,
    layer: u32,
    names: &Names,
) -> Result<Ragged, Fail> {
    match kind {
        Kind::Evicted => Ragged::read(source, layer, names),
        _ => Ragged::of_pair(Pair::read(source, layer, names)?).map_err(|e| e.at(source.name())),
    }
}

/// `quantize`.
pub fn quantize(args: &QuantizeArgs, common: &Common) -> Result<(), Fail> {
    let spec = Spec::new(&args.packing, args.sinks.sinks, args.dump_codes)?;
    let mut source = Source::open(&args.input)?;
    let kind = want(&source, &[Kind::Dense, Kind::Evicted], "keys and values, or an evicted file")?;
    let list = layers(&source, common.layers.as_deref())?;
    for (layer, names) in &list {
        if kind == Kind::Dense {
            Pair::check(&source, *layer, names)?;
        }
    }
    let mut output = Output::create(&args.out.output, &[&args.input])?;
    let engine = Engine::open(common)?;
    let bar = progress(list.len(), "packing");
    let mut rows =
        vec![["layer", "packed a head", "raw a head", "bits"].map(String::from).to_vec()];
    let mut report = Vec::new();
    for (layer, names) in list {
        let ragged = read_rows(&mut source, kind, layer, &names)?;
        let packed = pack(&engine, &spec, &ragged).map_err(|e| e.at(source.name()))?;
        let counts: Vec<[u32; 2]> = packed
            .places()
            .iter()
            .map(|p| [p.packed.len() as u32, (p.sinks.len() + p.tail.len()) as u32])
            .collect();
        let of = |i: usize| counts.iter().map(|c| c[i]).collect::<Vec<u32>>();
        let tokens = of(0).iter().map(|&n| n as usize).sum();
        let (k_layout, v_layout) = (packed.k.codec.layout(), packed.v.codec.layout());
        let mut bits = wgkv::nsnquant::assigned_avg_bits(k_layout, v_layout, tokens);
        if let Some(scales) = &packed.k.scales
            && tokens > 0
        {
            let elements = tokens * (k_layout.head_dim() + v_layout.head_dim());
            bits += 16.0 * scales.values.len() as f64 / elements as f64;
        }
        rows.push(vec![layer.to_string(), spread(&of(0)), spread(&of(1)), format!("{bits:.3}")]);
        report.push(json!({
            "layer": layer, "packed": of(0), "raw": of(1), "assigned_avg_bits": bits,
        }));
        if args.dump_codes {
            dump(&packed, layer, &mut output).map_err(|e| e.at(source.name()))?;
        } else {
            packed.write(layer, &mut output)?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !args.dump_codes {
        write_codebook(&spec.codebook, spec.profile, &mut output);
    }
    let bytes = output.finish()?;
    finish(common, json!({"layers": report, "output_bytes": bytes}), &rows)
}

/// Adds the codes of a layer to a dump.
fn dump(packed: &Packed, layer: u32, output: &mut Output) -> Result<(), Fail> {
    let pages: Vec<u32> = packed.page_offsets.windows(2).map(|row| row[1] - row[0]).collect();
    let count = pages.first().copied().unwrap_or(0) as usize;
    if pages.iter().any(|&n| n as usize != count) {
        return Err(Fail::input("--dump-codes needs heads that keep the same number of rows")
            .at(format!("layers.{layer}")));
    }
    let note = &packed.note;
    let (batch, heads, tokens) = (note.batch, note.heads, count * note.chunk);
    if let Some(rope) = packed.k.codec.rope() {
        let list = rope.frequencies().to_vec();
        output.put(format!("layers.{layer}.k.rope"), &[list.len()], Payload::F32(list));
        output.note(format!("layers.{layer}.k.rope"), rope.pairing().name());
    }
    if let Some(seed) = note.signs {
        output.note(format!("layers.{layer}.signs"), seed.to_string());
    }
    if let Some(scales) = &packed.k.scales {
        let values = Payload::F16(scales.values.clone());
        output.put(format!("layers.{layer}.k.scale"), &[batch, heads, note.k_dim], values);
    }
    for (tensor, side) in [("k", &packed.k), ("v", &packed.v)] {
        let codec: &Codec = &side.codec;
        let (dim, pieces) = (codec.layout().head_dim(), codec.layout().pieces());
        let codes = Codes::unpack(codec, &side.pages)?;
        let name = |part: &str| format!("layers.{layer}.{tensor}.{part}");
        let metadata = codec.scheme().metadata;
        let stored = |bits: Vec<u16>, half: bool| {
            if !half {
                Payload::U8(bits.into_iter().map(|code| code as u8).collect())
            } else {
                Payload::F16(bits.into_iter().map(f16::from_bits).collect())
            }
        };
        let shape = [batch, heads, tokens, pieces];
        output.put(name("idx"), &shape, Payload::U8(codes.idx));
        if let Some(signs) = codes.signs {
            output.put(name("signs"), &shape, Payload::U8(signs));
        }
        output.put(name("s1"), &shape[..3], stored(codes.s1, metadata == Metadata::Half));
        output.put(name("s2"), &shape[..3], stored(codes.s2, metadata != Metadata::Four));
        output.put(
            name("o"),
            &[batch, heads, count, dim],
            stored(codes.o, metadata == Metadata::Half),
        );
        let grids = codec.layout().grids();
        if grids > 0 {
            output.put(name("grids"), &[batch, heads, count, grids], Payload::U32(codes.grids));
        }
    }
    Ok(())
}

/// `dequantize`.
pub fn dequantize(args: &DequantizeArgs, common: &Common) -> Result<(), Fail> {
    let mut source = Source::open(&args.input)?;
    want(&source, &[Kind::Packed], "a packed cache")?;
    let list = layers(&source, common.layers.as_deref())?;
    let codebook = open_packed(&mut source)?;
    let mut output = Output::create(&args.out.output, &[&args.input])?;
    let engine = Engine::open(common)?;
    let bar = progress(list.len(), "unpacking");
    let mut rows = vec![["layer", "token rows a head"].map(String::from).to_vec()];
    let mut report = Vec::new();
    for (layer, names) in list {
        let packed = Packed::read(&mut source, layer, &names, &codebook)?;
        let (places, positions) = (packed.places(), packed.all_positions());
        let mut sides = Vec::with_capacity(2);
        for (tensor, side) in [("k", &packed.k), ("v", &packed.v)] {
            let name = format!("layers.{layer}.{tensor}");
            let data = match args.dtype {
                Wide::F32 => restore(&engine, side, &places, &positions).map(Data::F32),
                Wide::F16 => restore_f16(&engine, side, &places, &positions, &name).map(Data::F16),
            };
            sides.push(data.map_err(|e| e.at(name).at(source.name()))?);
        }
        let lengths: Vec<u32> = packed.offsets.windows(2).map(|row| row[1] - row[0]).collect();
        rows.push(vec![layer.to_string(), spread(&lengths)]);
        report.push(json!({"layer": layer, "token_rows": lengths}));
        let note = packed.note;
        let [k, v] = <[Data; 2]>::try_from(sides).map_err(|_| Fail::input("a side is missing"))?;
        let name = |tensor: &str| format!("layers.{layer}.{tensor}");
        if packed.positions.is_some() {
            Ragged {
                batch: note.batch,
                heads: note.heads,
                tokens: note.tokens,
                offsets: packed.offsets,
                positions: packed.positions,
                k,
                v,
                k_dim: note.k_dim,
                v_dim: note.v_dim,
                names: [name("k"), name("v")],
            }
            .write(layer, &mut output)?;
        } else {
            let shape = |dim| [note.batch, note.heads, note.tokens, dim];
            output.put(name("k"), &shape(note.k_dim), Payload::from(k));
            output.put(name("v"), &shape(note.v_dim), Payload::from(v));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let bytes = output.finish()?;
    finish(common, json!({"layers": report, "output_bytes": bytes}), &rows)
}
