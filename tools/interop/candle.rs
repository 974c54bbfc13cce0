//! candle's tensors in and out, on the CPU: keys and values go into a packed cache, queries attend to it,
//! and candle's own attention over the raw rows says what that cost.
//!
//! `cargo run --manifest-path tools/eval/Cargo.toml --example candle`

use anyhow::{Result, ensure};
use candle_core::{D, DType, Device, Tensor};
use wgkv::attention::{AttendConfig, Queries, cpu::attend};
use wgkv::cache::CacheConfig;
use wgkv::cache::cpu::LayerCache;
use wgkv::half::f16;
use wgkv::layout::Preset;
use wgkv::shape::{self, Elements};

/// One layer of a cache whose rows come and go as candle's tensors.
struct Cache {
    layer: LayerCache,
    batch: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Cache {
    /// A cache of so many sequences and KV heads, packed as the default preset says.
    fn new(batch: usize, kv_heads: usize, head_dim: usize) -> Result<Self> {
        let config = CacheConfig::new(&Preset::default(), batch * kv_heads, [head_dim; 2]);
        Ok(Self { layer: LayerCache::new(config)?, batch, kv_heads, head_dim })
    }

    /// Takes in keys and values `[batch, KV heads, tokens, head dim]`.
    fn append(&mut self, keys: &Tensor, values: &Tensor) -> Result<()> {
        let tokens = keys.dim(2)?;
        let rows = |tensor: &Tensor| -> Result<Vec<f16>> {
            Ok(tensor.to_dtype(DType::F16)?.flatten_all()?.to_vec1()?)
        };
        let (keys, values) = (rows(keys)?, rows(values)?);
        let (rows, dim) = (self.batch * self.kv_heads, self.head_dim);
        let keys = shape::Tensor::new("keys", Elements::F16(&keys), rows, tokens, dim)?;
        let values = shape::Tensor::new("values", Elements::F16(&values), rows, tokens, dim)?;
        Ok(self.layer.append(&keys, &values)?)
    }

    /// Attends with queries `[batch, query heads, tokens, head dim]`, the newest tokens; gives f32 of the
    /// same shape.
    fn attend(&self, queries: &Tensor) -> Result<Tensor> {
        let (batch, heads, tokens, head_dim) = queries.dims4()?;
        let data: Vec<f32> = queries.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let data = Elements::F32(&data);
        let first = self.layer.frontier().len() - tokens;
        let config = AttendConfig { causal: Some(first as u32), ..AttendConfig::default() };
        let queries = Queries { data, batch, heads, tokens, head_dim };
        let attended = attend(&self.layer.flat().view(), &queries, &config)?;
        Ok(Tensor::from_vec(attended.out, (batch, heads, tokens, head_dim), &Device::Cpu)?)
    }

    /// Keys and values as they decode, f16 `[batch, KV heads, tokens, head dim]`.
    fn fetch(&self) -> Result<[Tensor; 2]> {
        let fetched = self.layer.fetch()?;
        let shape = (self.batch, self.kv_heads, fetched.len, self.head_dim);
        let tensor = |rows| Tensor::from_vec::<_, f16>(rows, shape, &Device::Cpu);
        Ok([tensor(fetched.keys)?, tensor(fetched.values)?])
    }
}

/// Attention as candle does it, with one query token that sees all keys.
fn exact(queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let (batch, heads, tokens, dim) = queries.dims4()?;
    let (_, kv_heads, length, _) = keys.dims4()?;
    let group = heads / kv_heads;
    let repeat = |rows: &Tensor| -> Result<Tensor> {
        let wide = rows.to_dtype(DType::F32)?.unsqueeze(2)?;
        let all = wide.expand((batch, kv_heads, group, length, dim))?;
        Ok(all.reshape((batch, heads, length, dim))?)
    };
    let (keys, values) = (repeat(keys)?, repeat(values)?);
    let queries = queries.to_dtype(DType::F32)?.reshape((batch, heads, tokens, dim))?;
    let logits = (queries.matmul(&keys.transpose(2, 3)?.contiguous()?)? / (dim as f64).sqrt())?;
    let weights = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    Ok(weights.matmul(&values)?)
}

/// How far a tensor is from another (rms), in shares of that one's size.
fn distance(ours: &Tensor, exact: &Tensor) -> Result<f32> {
    let (ours, exact) = (ours.to_dtype(DType::F32)?, exact.to_dtype(DType::F32)?);
    let error = (ours - &exact)?.sqr()?.sum_all()?.to_scalar::<f32>()?;
    Ok((error / exact.sqr()?.sum_all()?.to_scalar::<f32>()?).sqrt())
}

fn main() -> Result<()> {
    let (batch, heads, kv_heads, tokens, head_dim) = (1, 6, 2, 500, 64);
    // Noise from 0 to 1, the same on every run.
    let rows = |pace: f64| -> Result<Tensor> {
        let count = (kv_heads * tokens * head_dim) as u32;
        let at = Tensor::arange(0, count, &Device::Cpu)?.to_dtype(DType::F32)?;
        let wave = ((at * pace)?.sin()? * 43_758.5)?;
        let noise = (&wave - wave.floor()?)?;
        Ok(noise.reshape((batch, kv_heads, tokens, head_dim))?.to_dtype(DType::F16)?)
    };
    let (keys, values) = (rows(0.71)?, rows(1.93)?);
    // Queries that look for one token, three heads for each KV head.
    let one = (keys.narrow(2, 123, 1)?.to_dtype(DType::F32)? * 6.0)?.affine(1.0, -3.0)?;
    let queries = one.expand((batch, kv_heads, heads / kv_heads, head_dim))?;
    let queries = queries.reshape((batch, heads, 1, head_dim))?;

    let mut cache = Cache::new(batch, kv_heads, head_dim)?;
    // A prompt, then one token at a time: the same pages as all at once.
    let prompt = tokens - 10;
    cache.append(&keys.narrow(2, 0, prompt)?, &values.narrow(2, 0, prompt)?)?;
    for token in prompt..tokens {
        cache.append(&keys.narrow(2, token, 1)?, &values.narrow(2, token, 1)?)?;
    }

    let (raw, held) = (2 * 2 * keys.elem_count() as u64, cache.layer.counters().device_bytes);
    println!("{held} bytes for {raw} in f16, {:.1} times fewer", raw as f64 / held as f64);
    let [fetched_keys, fetched_values] = cache.fetch()?;
    let out = cache.attend(&queries)?;
    let shares = [
        ("keys", distance(&fetched_keys, &keys)?),
        ("values", distance(&fetched_values, &values)?),
        ("outputs", distance(&out, &exact(&queries, &keys, &values)?)?),
        ("outputs, over decoded rows", {
            distance(&out, &exact(&queries, &fetched_keys, &fetched_values)?)?
        }),
    ];
    for (name, share) in shares {
        println!("{name}: off by {:.2}%", 100.0 * share);
    }
    ensure!(shares[3].1 < 2e-3, "attention over the codes is not that over decoded rows");
    Ok(())
}
