//! The main job, as the program's `compress` does it: evict, pack, and compare with what went in. Heads go
//! to the GPU one after the other, so that a tensor may be larger than one binding.

use half::f16;
use serde_json::{Value, json};
use wgkv::attention::{AttendConfig, gpu as attention};
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::layout::Preset;
use wgkv::nestedkv::{Budget, EvictConfig, gpu as nestedkv};
use wgkv::nsnquant::{Codebook, Codec, gpu as nsnquant, key_scale};
use wgkv::shape::{Dtype, Elements};

use crate::device::Device;
use crate::errors::Errors;
use crate::file::{Data, Layer, Tensor, layers};

/// Queries that stand in where a file has none: as many of the newest keys.
const STAND_IN: usize = 64;

/// Bytes after, by part.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    codes: usize,
    scales: usize,
    means: usize,
    raw: usize,
    positions: usize,
    tables: usize,
    padding: usize,
}

impl Bytes {
    fn parts(&self) -> [(&'static str, usize); 7] {
        [
            ("codes", self.codes),
            ("scales", self.scales),
            ("means", self.means),
            ("raw", self.raw),
            ("positions", self.positions),
            ("tables", self.tables),
            ("padding", self.padding),
        ]
    }
}

/// What is known of a run.
#[derive(Default)]
struct Sums {
    before: usize,
    bytes: Bytes,
    input_elements: usize,
    kept_elements: usize,
    nonfinite: usize,
    keys: Errors,
    values: Errors,
    outputs: Errors,
    evicted: Errors,
}

/// Compresses the layers of a file.
pub async fn compress(
    device: &Device,
    file: &[u8],
    target_bits: f64,
    keep: f64,
    tell: impl AsyncFn(usize, usize, String),
) -> Result<Value, String> {
    if !(keep > 0.0 && keep <= 1.0) {
        return Err(format!("the part to keep is {keep}, expected a number above 0 and at most 1"));
    }
    let preset = Preset::for_bits(target_bits).map_err(|e| e.to_string())?;
    let layers = layers(file)?;
    let all = layers.iter().map(|layer| layer.keys.shape[0] * layer.keys.shape[1]).sum();
    let (mut sums, mut done, mut reports) = (Sums::default(), 0, Vec::new());
    let mut stand_in = false;
    for layer in &layers {
        let [batch, heads, tokens, _] = layer.keys.shape;
        let mut kept = Vec::new();
        let budget = (keep * tokens as f64).round_ties_even().max(1.0) as u32;
        stand_in |= layer.queries.is_none();
        let of_layer = Job::new(device, layer, &preset, budget)?;
        for row in 0..batch * heads {
            tell(done, all, format!("layer {}, head {}", layer.number, row)).await;
            let at = |e| format!("layer {}, head {row}: {e}", layer.number);
            kept.push(of_layer.row(row, &mut sums).await.map_err(at)?);
            done += 1;
        }
        sums.bytes.tables += 4 * 2 * (batch * heads + 1);
        let staying: usize = kept.iter().map(Vec::len).sum();
        // Where every token stays, none needs its position.
        if staying < batch * heads * tokens {
            sums.bytes.positions += 4 * staying;
        }
        reports.push(json!({
            "layer": layer.number, "batch": batch, "heads": heads, "tokens": tokens, "kept": kept,
        }));
    }
    tell(all, all, "done".into()).await;
    let after: usize = sums.bytes.parts().iter().map(|(_, bytes)| bytes).sum();
    let mut parts = serde_json::Map::new();
    for (part, bytes) in sums.bytes.parts() {
        parts.insert(part.into(), bytes.into());
    }
    parts.insert("total".into(), after.into());
    Ok(json!({
        "bytes_before": sums.before,
        "bytes_after": parts,
        "bits_per_element": 8.0 * after as f64 / sums.kept_elements as f64,
        "bits_per_input_element": 8.0 * after as f64 / sums.input_elements as f64,
        "ratio": sums.before as f64 / after as f64,
        "k_bits": preset.k_bits.get(),
        "v_bits": preset.v_bits.get(),
        "nonfinite": sums.nonfinite,
        "keys": sums.keys.relative(),
        "values": sums.values.relative(),
        "outputs": sums.outputs.relative(),
        "outputs_evicted_only": sums.evicted.relative(),
        "keys_stand_for_queries": stand_in,
        "layers": reports,
    }))
}

/// One layer on its way.
struct Job<'a> {
    device: &'a Device,
    layer: &'a Layer,
    preset: &'a Preset,
    config: EvictConfig,
    codecs: [nsnquant::DeviceCodec; 2],
}

impl<'a> Job<'a> {
    fn new(
        device: &'a Device,
        layer: &'a Layer,
        preset: &'a Preset,
        budget: u32,
    ) -> Result<Self, String> {
        let codec = |dim, scheme| {
            let codec = Codec::with("head dim", dim, scheme, preset.chunk, Codebook::builtin())?;
            nsnquant::DeviceCodec::new(device.context(), codec)
        };
        let [of_keys, of_values] = preset.profile.schemes(preset.k_bits, preset.v_bits, None);
        let codecs =
            [(&layer.keys, of_keys), (&layer.values, of_values)].map(|(tensor, scheme)| {
                codec(tensor.shape[3], scheme).map_err(|e| format!("{}: {e}", tensor.name))
            });
        let [keys, values] = codecs;
        let config =
            EvictConfig { sinks: preset.sinks as u32, ..EvictConfig::new(Budget::Uniform(budget)) };
        if let Some(queries) = &layer.queries {
            let ([batch, heads, _, dim], [b, h, _, d]) = (queries.shape, layer.keys.shape);
            if batch != b
                || !heads.is_multiple_of(h)
                || heads == 0
                || dim != d
                || queries.shape[2] == 0
            {
                return Err(format!(
                    "{} is {:?}, which does not go with keys {:?}",
                    queries.name, queries.shape, layer.keys.shape
                ));
            }
        }
        Ok(Self { device, layer, preset, config, codecs: [keys?, values?] })
    }

    /// Does one head of one sequence; returns the positions that stay.
    async fn row(&self, row: usize, sums: &mut Sums) -> Result<Vec<u32>, String> {
        let [_, _, tokens, dim] = self.layer.keys.shape;
        let dims = [dim, self.layer.values.shape[3]];
        let tensors = [&self.layer.keys, &self.layer.values];
        let whole = [0, 1]
            .map(|side| tensors[side].data.rows(row * tokens..(row + 1) * tokens, dims[side]));
        let positions = self.select(&whole[0], tokens, dim).await?;
        let kept = [0, 1].map(|side| {
            whole[side].rows(positions.iter().map(|position| *position as usize), dims[side])
        });

        let (count, chunk) = (positions.len(), self.preset.chunk);
        let pages =
            count.saturating_sub(self.preset.sinks).saturating_sub(self.preset.recent) / chunk;
        let first = self.preset.sinks.min(count);
        let last = first + pages * chunk;
        let raw_rows = || (0..first).chain(last..count);
        let scale = match self.preset.key_scale {
            true => {
                let rows = kept[0].elements().slice(first * dim..last * dim);
                Some(key_scale(rows, dim, chunk).map_err(|e| e.to_string())?)
            }
            false => None,
        };
        let raw = [0, 1].map(|side| {
            kept[side].rows(raw_rows(), dims[side]).halves().ok_or(
                "a row that stays raw holds a number beyond f16; scale the tensor down, or pack it with \
                 the program wgkv",
            )
        });
        let [raw_keys, raw_values] = raw;
        let raw = [raw_keys?, raw_values?];
        let packed = self.pack(&kept, first, pages, scale.as_deref(), dims).await?;

        for side in 0..2 {
            let layout = self.codecs[side].layout();
            let dim = dims[side];
            let whole = tensors[side].data.elements();
            sums.before += tokens * dim * whole.dtype().bytes();
            sums.input_elements += tokens * dim;
            sums.kept_elements += count * dim;
            sums.nonfinite += (0..whole.len()).filter(|at| !whole.get(*at).is_finite()).count();
            sums.bytes.codes += pages * layout.code_bytes();
            sums.bytes.scales += pages * layout.scale_bytes();
            sums.bytes.means += pages * layout.mean_bytes();
            sums.bytes.padding += pages * (4 * layout.words() - layout.data_bytes());
            sums.bytes.raw += 2 * raw[side].len();
            let want = kept[side].elements();
            let got = (0..first * dim)
                .map(|at| raw[side][at].to_f32())
                .chain(packed[side].1.iter().copied())
                .chain((first * dim..raw[side].len()).map(|at| raw[side][at].to_f32()));
            let errors = if side == 0 { &mut sums.keys } else { &mut sums.values };
            errors.add(got, (0..want.len()).map(|at| want.get(at)));
        }
        sums.bytes.scales += 2 * scale.as_ref().map_or(0, Vec::len);

        let queries = self.queries(row, &whole[0]);
        let all = self.attend(&queries, [whole[0].elements(), whole[1].elements()], None).await?;
        let stayed = self.attend(&queries, [kept[0].elements(), kept[1].elements()], None).await?;
        let pages =
            Pages { count: pages, words: [&packed[0].0, &packed[1].0], scale: scale.as_deref() };
        let halves = [Elements::F16(&raw[0]), Elements::F16(&raw[1])];
        let small = self.attend(&queries, halves, Some(&pages)).await?;
        sums.outputs.add(small.into_iter(), all.iter().copied());
        sums.evicted.add(stayed.into_iter(), all.iter().copied());
        Ok(positions)
    }

    /// Scores the keys and selects.
    async fn select(&self, keys: &Data, tokens: usize, dim: usize) -> Result<Vec<u32>, String> {
        let answer = self
            .device
            .run(|rec| {
                let buffer = rec.context().upload("keys", keys.elements().bytes())?;
                let dtype = keys.elements().dtype();
                let tensor = DeviceTensor::new("keys", Slice::all(&buffer), dtype, 1, tokens, dim)?;
                let scores = nestedkv::score(rec, &tensor, &self.config.score)?;
                let kept = nestedkv::keep(rec, Slice::all(&scores.score), 1, tokens, &self.config)?;
                [&kept.offsets, &kept.positions]
                    .map(|part| rec.read_back(Slice::all(part)))
                    .into_iter()
                    .collect()
            })
            .await?;
        let [offsets, positions] =
            [0, 1].map(|part| bytemuck::pod_collect_to_vec::<u8, u32>(&answer[part]));
        Ok(positions[..(offsets[1] as usize).min(positions.len())].to_vec())
    }

    /// Packs the chunks from row `first` on, keys and values, and unpacks them again.
    async fn pack(
        &self,
        kept: &[Data; 2],
        first: usize,
        pages: usize,
        scale: Option<&[f16]>,
        dims: [usize; 2],
    ) -> Result<[(Vec<u32>, Vec<f32>); 2], String> {
        let mut packed = [const { (Vec::new(), Vec::new()) }; 2];
        if pages == 0 {
            return Ok(packed);
        }
        let chunk = self.preset.chunk;
        let starts = |first: usize| -> Vec<u32> {
            (0..pages).map(|page| (first + page * chunk) as u32).collect()
        };
        for side in 0..2 {
            let (codec, dim) = (&self.codecs[side], dims[side]);
            let data = kept[side].elements();
            let scale = scale.filter(|_| side == 0);
            let answer = self
                .device
                .run(|rec| {
                    let context = rec.context();
                    let rows = context.upload("rows", data.bytes())?;
                    let list = context.upload("starts", bytemuck::cast_slice(&starts(first)))?;
                    let words =
                        context.create("pages", 4 * (pages * codec.layout().words()) as u64)?;
                    let held = match scale {
                        Some(scale) => Some([
                            context.upload("key scale", bytemuck::cast_slice(scale))?,
                            context.upload("numbers", &vec![0; 4 * pages])?,
                        ]),
                        None => None,
                    };
                    let scales = held.as_ref().map(|[values, numbers]| {
                        let values =
                            nsnquant::DeviceKeyScales { values: Slice::all(values), count: 1 };
                        (values, Slice::all(numbers))
                    });
                    let total = data.len() / dim;
                    nsnquant::encode_at(
                        rec,
                        codec,
                        Slice::all(&rows),
                        data.dtype(),
                        total,
                        None,
                        Slice::all(&list),
                        pages,
                        Slice::all(&words),
                        scales,
                    )?;
                    let list = context.upload("starts", bytemuck::cast_slice(&starts(0)))?;
                    let out = context.create("restored", 4 * (pages * chunk * dim) as u64)?;
                    nsnquant::decode_at(
                        rec,
                        codec,
                        Slice::all(&words),
                        pages,
                        None,
                        Slice::all(&list),
                        Slice::all(&out),
                        Dtype::F32,
                        pages * chunk,
                        scales,
                    )?;
                    Ok(vec![rec.read_back(Slice::all(&words))?, rec.read_back(Slice::all(&out))?])
                })
                .await?;
            packed[side] = (
                bytemuck::pod_collect_to_vec(&answer[0]),
                bytemuck::pod_collect_to_vec(&answer[1]),
            );
        }
        Ok(packed)
    }

    /// The queries of a KV head; where the file has none, its newest keys.
    fn queries(&self, row: usize, keys: &Data) -> Asked {
        let [_, kv_heads, tokens, dim] = self.layer.keys.shape;
        let Some(Tensor { shape, data, .. }) = &self.layer.queries else {
            let first = tokens.saturating_sub(STAND_IN);
            return Asked { heads: 1, tokens: tokens - first, data: keys.rows(first..tokens, dim) };
        };
        let (heads, per) = (shape[1] / kv_heads, shape[2]);
        let rows = row * heads * per..(row + 1) * heads * per;
        Asked { heads, tokens: per, data: data.rows(rows, dim) }
    }

    /// Attends to raw rows and pages of one head.
    async fn attend(
        &self,
        queries: &Asked,
        raw: [Elements<'_>; 2],
        pages: Option<&Pages<'_>>,
    ) -> Result<Vec<f32>, String> {
        let [dim, dim_v] = [&self.layer.keys, &self.layer.values].map(|tensor| tensor.shape[3]);
        let answer = self
            .device
            .run(|rec| {
                let context = rec.context();
                let raw_tokens = raw[0].len() / dim;
                let offsets =
                    context.upload("offsets", bytemuck::cast_slice(&[0, raw_tokens as u32]))?;
                let [keys, values] = [
                    context.upload("raw keys", raw[0].bytes())?,
                    context.upload("raw values", raw[1].bytes())?,
                ];
                let data = context.upload("queries", queries.data.elements().bytes())?;
                let held = match pages {
                    Some(pages) => Some((
                        context.upload("pages", bytemuck::cast_slice(&[0, pages.count as u32]))?,
                        context.upload("key pages", bytemuck::cast_slice(pages.words[0]))?,
                        context.upload("value pages", bytemuck::cast_slice(pages.words[1]))?,
                        pages
                            .scale
                            .map(|scale| context.upload("key scale", bytemuck::cast_slice(scale)))
                            .transpose()?,
                        pages.count,
                    )),
                    None => None,
                };
                let packed = held.as_ref().map(|(offsets, keys, values, scale, pages)| {
                    attention::DevicePackedView {
                        keys: &self.codecs[0],
                        values: &self.codecs[1],
                        pages: *pages,
                        page_offsets: offsets.into(),
                        key_pages: keys.into(),
                        value_pages: values.into(),
                        page_positions: None,
                        key_scales: scale.as_ref().map(Slice::all),
                    }
                });
                let view = attention::DeviceCacheView {
                    kv_rows: 1,
                    head_dim_k: dim,
                    head_dim_v: dim_v,
                    raw_tokens,
                    key_dtype: raw[0].dtype(),
                    value_dtype: raw[1].dtype(),
                    raw_offsets: (&offsets).into(),
                    raw_keys: (&keys).into(),
                    raw_values: (&values).into(),
                    raw_positions: None,
                    packed,
                };
                let asked = attention::DeviceQueries {
                    data: (&data).into(),
                    dtype: queries.data.elements().dtype(),
                    batch: 1,
                    heads: queries.heads,
                    tokens: queries.tokens,
                    head_dim: dim,
                };
                let attended = attention::attend(rec, &view, &asked, &AttendConfig::default())?;
                Ok(vec![rec.read_back(Slice::all(&attended.out))?])
            })
            .await?;
        let count = queries.heads * queries.tokens * dim_v;
        let mut out: Vec<f32> = bytemuck::pod_collect_to_vec(&answer[0]);
        out.truncate(count);
        Ok(out)
    }
}

/// Queries of one KV head.
struct Asked {
    heads: usize,
    tokens: usize,
    data: Data,
}

/// Packed pages of one head, keys and values.
struct Pages<'a> {
    count: usize,
    words: [&'a [u32]; 2],
    scale: Option<&'a [f16]>,
}
