//! `replay`: appends, trims and forks on a packed cache, step by step.

mod ops;

use std::collections::BTreeMap;

use half::{bf16, f16};
use serde_json::{Map, Value, json};
use wgkv::Error;
use wgkv::cache::{CacheConfig, Counters, cpu, gpu};
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::shape::{Dtype, Tensor};

use crate::args::{Common, ReplayArgs};
use crate::engine::{Engine, Gpu};
use crate::file::{Data, Fail, Output, Payload, Source, shown};
use crate::layers::{self, Dense, Kind, Pair};
use crate::packing::Spec;
use crate::report;
use ops::{MAIN, Op};

/// Runs the verb.
pub fn run(args: &ReplayArgs, common: &Common) -> Result<(), Fail> {
    let spec = Spec::new(&args.packing, args.sinks.sinks, false)?;
    let mut source = Source::open(&args.input)?;
    layers::want(&source, &[Kind::Dense], "keys and values")?;
    let found = layers::layers(&source, common.layers.as_deref())?;
    let [(layer, names)] = &*found else {
        let message = format!("holds {} layers, choose one with --layers", found.len());
        return Err(Fail::input(message).at(source.name()));
    };
    let pair = Pair::read(&mut source, *layer, names)?;
    let token_bytes = 2 * pair.k.rows() as u64 * (pair.k.head_dim + pair.v.head_dim) as u64;
    let ops = ops::read(&args.ops, pair.k.tokens, token_bytes)?;
    let rows = Rows::new(&source.name(), pair)?;
    let mut output = Output::create(&args.out.output, &[&args.input, &args.ops])?;
    let config = rows.config(&spec)?;
    let engine = Engine::open(common)?;

    let bar = report::progress(ops.len(), "replaying");
    let mut replay = Replay::new(&engine, config, &rows)?;
    let mut lines = Vec::with_capacity(ops.len());
    for (step, op) in ops.iter().enumerate() {
        let shown = replay.step(step, op)?;
        for ((side, data), head_dim) in
            ["k", "v"].into_iter().zip([shown.keys, shown.values]).zip(rows.head_dims)
        {
            let shape = [rows.batch, rows.heads, shown.counters.len, head_dim];
            output.put(format!("step.{step}.{side}"), &shape, Payload::F16(data));
        }
        lines.push(line(step, op, &shown.counters));
        bar.inc(1);
    }
    bar.finish_and_clear();
    if rows.dtype == Dtype::Bf16 {
        report::say("values beyond f16 are written as +-65504");
    }
    output.finish()?;
    if common.json {
        lines.iter().try_for_each(|line| report::print(&Value::from(line.clone()).to_string()))
    } else {
        table(&lines).iter().try_for_each(|line| report::print(line))
    }
}

/// Keys and values of a layer in the type in which the cache holds its raw rows.
struct Rows {
    batch: usize,
    heads: usize,
    tokens: usize,
    head_dims: [usize; 2],
    dtype: Dtype,
    data: [Data; 2],
}

impl Rows {
    /// Tokens wait as f16. Where bf16 keys or values are beyond its range they wait as bf16; f32 that
    /// is beyond is refused.
    fn new(file: &str, pair: Pair) -> Result<Self, Fail> {
        let Pair { k, v } = pair;
        let (batch, heads, tokens) = (k.batch, k.heads, k.tokens);
        let head_dims = [k.head_dim, v.head_dim];
        let (far_k, far_v) = (beyond(&k.data), beyond(&v.data));
        let wide = matches!((&k.data, &v.data), (Data::Bf16(_), Data::Bf16(_)));
        let far = far_k.map(|at| (&k, at)).or(far_v.map(|at| (&v, at)));
        let dtype = match far {
            None => Dtype::F16,
            Some(_) if wide => Dtype::Bf16,
            Some((tensor, at)) => return Err(refuse(file, tensor, at)),
        };
        let data =
            [k.data, v.data].map(|data| if dtype == Dtype::F16 { narrow(data) } else { data });
        Ok(Self { batch, heads, tokens, head_dims, dtype, data })
    }

    fn count(&self) -> usize {
        self.batch * self.heads
    }

    fn config(&self, spec: &Spec) -> Result<CacheConfig, Fail> {
        let [k_bits, v_bits] = spec.bits;
        Ok(CacheConfig {
            rows: self.count(),
            head_dim_k: self.head_dims[0],
            head_dim_v: self.head_dims[1],
            k_bits,
            v_bits,
            profile: spec.profile,
            key_scale: spec.key_scale,
            rope: spec.rope.rope(self.head_dims[0])?,
            signs: spec.signs,
            chunk: spec.chunk,
            sinks: spec.sinks,
            recent: spec.recent,
            dtype: self.dtype,
            codebook: spec.codebook.clone(),
        })
    }

    /// Tokens `first..first + n` of every row.
    fn part(&self, side: usize, first: usize, n: usize) -> Data {
        let (tokens, d) = (self.tokens, self.head_dims[side]);
        let spans = (0..self.count()).map(|row| {
            let at = (row * tokens + first) * d;
            at..at + n * d
        });
        match &self.data[side] {
            Data::F32(x) => Data::F32(spans.flat_map(|span| x[span].iter().copied()).collect()),
            Data::F16(x) => Data::F16(spans.flat_map(|span| x[span].iter().copied()).collect()),
            Data::Bf16(x) => Data::Bf16(spans.flat_map(|span| x[span].iter().copied()).collect()),
        }
    }
}

/// Place of the first finite element that f16 does not hold.
fn beyond(data: &Data) -> Option<usize> {
    let far = |x: f32| x.is_finite() && f16::from_f32(x).is_infinite();
    match data {
        Data::F32(x) => x.iter().position(|x| far(*x)),
        Data::F16(_) => None,
        Data::Bf16(x) => x.iter().position(|x| far(x.to_f32())),
    }
}

fn refuse(file: &str, tensor: &Dense, at: usize) -> Fail {
    let error = Error::BeyondF16 {
        argument: shown(&tensor.name),
        row: at / tensor.head_dim,
        value: tensor.data.elements().get(at),
    };
    Fail::from(error).at(file)
}

fn narrow(data: Data) -> Data {
    Data::F16(match data {
        Data::F16(x) => x,
        Data::F32(x) => x.into_iter().map(f16::from_f32).collect(),
        Data::Bf16(x) => x.into_iter().map(bf16::to_f32).map(f16::from_f32).collect(),
    })
}

/// A cache where the work runs.
enum Cache {
    Host(cpu::LayerCache),
    Device(gpu::LayerCache),
}

/// What a step leaves behind.
struct Shown {
    keys: Vec<f16>,
    values: Vec<f16>,
    counters: Counters,
}

/// What a step does to the cache in use.
enum Change {
    /// Rows from the first on, so many.
    Append(usize, usize),
    Trim(usize),
    Nothing,
}

struct Replay<'a> {
    engine: &'a Engine,
    rows: &'a Rows,
    /// Never written to: it knows what the others hold when all have been freed.
    empty: Cache,
    caches: BTreeMap<String, Cache>,
    current: Option<String>,
    read: usize,
}

impl<'a> Replay<'a> {
    fn new(engine: &'a Engine, config: CacheConfig, rows: &'a Rows) -> Result<Self, Fail> {
        let empty = match engine {
            Engine::Cpu => Cache::Host(cpu::LayerCache::new(config)?),
            Engine::Gpu(gpu) => Cache::Device(gpu::LayerCache::new(&gpu.context, config)?),
        };
        let caches = BTreeMap::from([(MAIN.to_string(), empty.fork())]);
        Ok(Self { engine, rows, empty, caches, current: Some(MAIN.into()), read: 0 })
    }

    fn step(&mut self, step: usize, op: &Op) -> Result<Shown, Fail> {
        let change = match op {
            Op::Append(n) => {
                let first = self.read;
                self.read += n;
                Change::Append(first, *n)
            }
            Op::Trim(n) => {
                let held = self.in_use().counters().len;
                if *n > held {
                    // As the peer does; the library refuses.
                    report::say(&format!("step {step}: trim of {n} tokens drops all {held}"));
                }
                Change::Trim((*n).min(held))
            }
            Op::Fork(name) => {
                let fork = self.in_use().fork();
                self.caches.insert(name.clone(), fork);
                Change::Nothing
            }
            Op::Use(name) => {
                self.current = Some(name.clone());
                Change::Nothing
            }
            Op::Free(name) => {
                self.caches.remove(name);
                self.current = self.current.take().filter(|current| current != name);
                Change::Nothing
            }
        };
        self.apply(change)
    }

    /// The cache in use; the empty one when it was freed.
    fn in_use(&mut self) -> &mut Cache {
        let empty = &mut self.empty;
        let caches = &mut self.caches;
        self.current.as_ref().and_then(|name| caches.get_mut(name)).unwrap_or(empty)
    }

    fn apply(&mut self, change: Change) -> Result<Shown, Fail> {
        let (rows, engine) = (self.rows, self.engine);
        match (self.in_use(), engine) {
            (Cache::Host(cache), _) => on_host(cache, rows, change),
            (Cache::Device(cache), Engine::Gpu(gpu)) => on_device(cache, gpu, rows, change),
            // A device cache is made with a device, so this cannot come up.
            (Cache::Device(_), Engine::Cpu) => Err(Fail::device("the cache's device is gone")),
        }
    }
}

fn on_host(cache: &mut cpu::LayerCache, rows: &Rows, change: Change) -> Result<Shown, Fail> {
    match change {
        Change::Append(first, n) if n > 0 => {
            let [keys, values] = [0, 1].map(|side| rows.part(side, first, n));
            let [dk, dv] = rows.head_dims;
            let keys = Tensor::new("keys", keys.elements(), rows.count(), n, dk)?;
            let values = Tensor::new("values", values.elements(), rows.count(), n, dv)?;
            cache.append(&keys, &values)?;
        }
        Change::Trim(n) => cache.trim(n)?,
        Change::Append(..) | Change::Nothing => {}
    }
    let fetched = cache.fetch()?;
    Ok(Shown { keys: fetched.keys, values: fetched.values, counters: cache.counters() })
}

/// One submit: the change and the fetch after it.
fn on_device(
    cache: &mut gpu::LayerCache,
    gpu: &Gpu,
    rows: &Rows,
    change: Change,
) -> Result<Shown, Fail> {
    let bytes = gpu.run(|rec| {
        match change {
            Change::Append(first, n) if n > 0 => {
                let [keys, values] = [0, 1].map(|side| rows.part(side, first, n));
                let upload =
                    |data: Data| rec.context().upload("replay rows", data.elements().bytes());
                let (keys, values) = (upload(keys)?, upload(values)?);
                let (count, dtype, [dk, dv]) = (rows.count(), rows.dtype, rows.head_dims);
                let keys = DeviceTensor::new("keys", Slice::all(&keys), dtype, count, n, dk)?;
                let values = DeviceTensor::new("values", Slice::all(&values), dtype, count, n, dv)?;
                cache.append(rec, &keys, &values)?;
            }
            Change::Trim(n) => cache.trim(rec, n)?,
            Change::Append(..) | Change::Nothing => {}
        }
        let fetched = cache.fetch(rec)?;
        [&fetched.keys, &fetched.values]
            .into_iter()
            .map(|buffer| rec.read_back(Slice::all(buffer)))
            .collect()
    })?;
    let count = rows.count() * cache.frontier().len();
    let mut sides = bytes.iter().zip(rows.head_dims).map(|(bytes, d)| {
        let mut half: Vec<f16> = bytemuck::pod_collect_to_vec(bytes);
        half.truncate(count * d);
        half
    });
    let (keys, values) = (sides.next().unwrap_or_default(), sides.next().unwrap_or_default());
    Ok(Shown { keys, values, counters: cache.counters() })
}

impl Cache {
    fn fork(&self) -> Self {
        match self {
            Self::Host(cache) => Self::Host(cache.fork()),
            Self::Device(cache) => Self::Device(cache.fork()),
        }
    }

    fn counters(&self) -> Counters {
        match self {
            Self::Host(cache) => cache.counters(),
            Self::Device(cache) => cache.counters(),
        }
    }
}

/// A step as it is reported.
fn line(step: usize, op: &Op, counters: &Counters) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("step".into(), json!(step));
    line.insert("op".into(), json!(op.verb()));
    line.insert("value".into(), op.value());
    let counted = json!({
        "len": counters.len,
        "quantized_tokens": counters.quantized_tokens,
        "compressed_key_bytes": counters.compressed_key_bytes,
        "compressed_value_bytes": counters.compressed_value_bytes,
        "residual_fp16_bytes": counters.residual_fp16_bytes,
        "fp16_key_bytes": counters.fp16_key_bytes,
        "fp16_value_bytes": counters.fp16_value_bytes,
        "assigned_avg_bits": counters.assigned_avg_bits,
        "device_bytes": counters.device_bytes,
    });
    if let Value::Object(counted) = counted {
        line.extend(counted);
    }
    line
}

fn table(lines: &[Map<String, Value>]) -> Vec<String> {
    const COLUMNS: [(&str, &str); 9] = [
        ("step", "step"),
        ("op", "op"),
        ("value", ""),
        ("len", "tokens"),
        ("quantized_tokens", "packed"),
        ("compressed_key_bytes", "key bytes"),
        ("compressed_value_bytes", "value bytes"),
        ("residual_fp16_bytes", "raw bytes"),
        ("device_bytes", "held bytes"),
    ];
    let cell = |value: Option<&Value>| match value {
        Some(Value::String(text)) => shown(text),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let head = COLUMNS.iter().map(|(_, title)| (*title).to_string()).collect();
    let body =
        lines.iter().map(|line| COLUMNS.iter().map(|(key, _)| cell(line.get(*key))).collect());
    report::table(&std::iter::once(head).chain(body).collect::<Vec<_>>())
}
