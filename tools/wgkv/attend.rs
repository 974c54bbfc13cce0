//! `attend`, and attention over the caches of files.

use wgkv::attention::{AttendConfig, CacheView, PackedView, Queries};
use wgkv::shape::Elements;

use crate::args::{AttendArgs, Common};
use crate::engine::Engine;
use crate::file::{Data, Fail, Output, Payload, Source, shown};
use crate::layers::{Dense, Kind, layers, want};
use crate::packed::{Packed, open_packed};
use crate::quant::read_rows;
use crate::ragged::Ragged;
use crate::report::{finish, progress};

/// A cache of a layer that can be attended to.
pub enum Cache {
    Rows(Ragged),
    Packed(Box<Packed>),
}

impl Cache {
    fn batch(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.batch,
            Self::Packed(packed) => packed.note.batch,
        }
    }

    fn tokens(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.tokens,
            Self::Packed(packed) => packed.note.tokens,
        }
    }

    fn dims(&self) -> [usize; 2] {
        match self {
            Self::Rows(rows) => [rows.k_dim, rows.v_dim],
            Self::Packed(packed) => [packed.note.k_dim, packed.note.v_dim],
        }
    }
}

/// Attends with the queries of a layer; outputs `[B, Hq, Nq, D of the values]`.
pub fn attend(
    engine: &Engine,
    cache: &Cache,
    queries: &Dense,
    scale: Option<f32>,
    causal: bool,
) -> Result<Vec<f32>, Fail> {
    let [k_dim, v_dim] = cache.dims();
    if queries.batch != cache.batch() {
        return Err(Fail::input(format!(
            "has {} sequences, the cache has {}",
            queries.batch,
            cache.batch()
        )));
    }
    if queries.head_dim != k_dim {
        return Err(Fail::input(format!(
            "has head dim {}, the keys have {k_dim}",
            queries.head_dim
        )));
    }
    let causal = match (causal, cache.tokens().checked_sub(queries.tokens)) {
        (false, _) => None,
        (true, Some(first)) => Some(
            u32::try_from(first)
                .map_err(|_| Fail::input(format!("position {first} is beyond 4294967295")))?,
        ),
        (true, None) => {
            return Err(Fail::input(format!(
                "has {} query tokens, more than the {} tokens that the cache has seen",
                queries.tokens,
                cache.tokens()
            )));
        }
    };
    let config = AttendConfig { scale, causal, ..AttendConfig::default() };
    let queries = Queries {
        data: queries.data.elements(),
        batch: queries.batch,
        heads: queries.heads,
        tokens: queries.tokens,
        head_dim: queries.head_dim,
    };
    match cache {
        Cache::Rows(rows) => {
            let positions = match &rows.positions {
                Some(positions) => positions.clone(),
                None => rows.offsets.windows(2).flat_map(|row| 0..row[1] - row[0]).collect(),
            };
            let view = CacheView {
                kv_rows: rows.rows(),
                head_dim_k: k_dim,
                head_dim_v: v_dim,
                raw_offsets: &rows.offsets,
                raw_keys: rows.k.elements(),
                raw_values: rows.v.elements(),
                raw_positions: &positions,
                packed: None,
            };
            engine.attend(&view, &queries, &config)
        }
        Cache::Packed(packed) => {
            let all = packed.all_positions();
            let places = packed.places();
            let pick = |ranges: &mut dyn Iterator<Item = core::ops::Range<usize>>| {
                ranges.flat_map(|range| all[range].iter().copied()).collect::<Vec<u32>>()
            };
            let raw_positions =
                pick(&mut places.iter().flat_map(|p| [p.sinks.clone(), p.tail.clone()]));
            let page_positions = pick(&mut places.iter().map(|p| p.packed.clone()));
            let raw_offsets = packed.raw_offsets();
            let view = CacheView {
                kv_rows: packed.rows(),
                head_dim_k: k_dim,
                head_dim_v: v_dim,
                raw_offsets: &raw_offsets,
                raw_keys: packed.k.raw.elements(),
                raw_values: packed.v.raw.elements(),
                raw_positions: &raw_positions,
                packed: Some(PackedView {
                    key_scales: packed.k.scales.as_ref().map(|scales| scales.values.as_slice()),
                    keys: &packed.k.codec,
                    values: &packed.v.codec,
                    page_offsets: &packed.page_offsets,
                    key_pages: &packed.k.pages,
                    value_pages: &packed.v.pages,
                    page_positions: &page_positions,
                }),
            };
            engine.attend(&view, &queries, &config)
        }
    }
}

/// `attend`.
pub fn run(args: &AttendArgs, common: &Common) -> Result<(), Fail> {
    AttendConfig { scale: args.scale, ..AttendConfig::default() }
        .scale_for(8)
        .map_err(|e| Fail::from(e).at("--scale"))?;
    let mut queries = Source::open(&args.queries)?;
    let query_kinds = [Kind::Queries, Kind::Dense, Kind::Evicted, Kind::Packed];
    want(&queries, &query_kinds, "queries layers.<i>.q")?;
    let cache_path = args.cache.as_ref().unwrap_or(&args.queries);
    let mut cache = Source::open(cache_path)?;
    let kinds = [Kind::Dense, Kind::Evicted, Kind::Packed];
    let kind = want(&cache, &kinds, "a dense, evicted or packed cache")?;
    let with_queries: Vec<_> = layers(&queries, common.layers.as_deref())?
        .into_iter()
        .filter(|(_, names)| common.layers.is_some() || names.contains_key("q"))
        .collect();
    if with_queries.is_empty() {
        return Err(Fail::input("holds no layers.<i>.q").at(queries.name()));
    }
    let codebook = match kind {
        Kind::Packed => Some(open_packed(&mut cache)?),
        _ => None,
    };
    let mut output = Output::create(&args.out.output, &[&args.queries, cache_path])?;
    let engine = Engine::open(common)?;
    let bar = progress(with_queries.len(), "attending");
    let mut rows =
        vec![["layer", "sequences", "query heads", "queries"].map(String::from).to_vec()];
    let mut report = Vec::new();
    for (layer, names) in with_queries {
        let q = Dense::read(&mut queries, layer, &names, "q")?;
        let cache_names = layers(&cache, Some(&[layer]))?.remove(0).1;
        let held = match &codebook {
            Some(codebook) => {
                let packed = Packed::read(&mut cache, layer, &cache_names, codebook)?;
                Cache::Packed(Box::new(packed))
            }
            None => Cache::Rows(read_rows(&mut cache, kind, layer, &cache_names)?),
        };
        let out = attend(&engine, &held, &q, args.scale, args.causal)
            .map_err(|e| e.at(shown(&q.name)).at(queries.name()))?;
        let shape = [q.batch, q.heads, q.tokens, held.dims()[1]];
        output.put(format!("layers.{layer}.out"), &shape, Payload::F32(out));
        rows.push([layer as usize, q.batch, q.heads, q.tokens].map(|n| n.to_string()).to_vec());
        report.push(serde_json::json!({
            "layer": layer, "batch": q.batch, "heads": q.heads, "tokens": q.tokens,
        }));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let bytes = output.finish()?;
    finish(common, serde_json::json!({"layers": report, "output_bytes": bytes}), &rows)
}

/// Takes the rows that stay out of a dense tensor, in the type that it came in.
pub fn take_rows(dense: &Dense, offsets: &[u32], positions: &[u32]) -> Data {
    fn take<T: Copy>(from: &[T], starts: &[usize], dim: usize) -> Vec<T> {
        starts.iter().flat_map(|&start| from[start..start + dim].iter().copied()).collect()
    }
    let dim = dense.head_dim;
    let starts: Vec<usize> = offsets
        .windows(2)
        .enumerate()
        .flat_map(|(row, ends)| {
            positions[ends[0] as usize..ends[1] as usize]
                .iter()
                .map(move |&p| (row * dense.tokens + p as usize) * dim)
        })
        .collect();
    match dense.data.elements() {
        Elements::F32(x) => Data::F32(take(x, &starts, dim)),
        Elements::F16(x) => Data::F16(take(x, &starts, dim)),
        Elements::Bf16(x) => Data::Bf16(take(x, &starts, dim)),
    }
}
