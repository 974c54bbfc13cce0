//! The jobs on the GPU. What a limit of the device does not allow at once is done in parts: heads and
//! pages do not depend on each other.

use std::ops::Range;

use half::f16;
use wgkv::Error;
use wgkv::attention::{AttendConfig, CacheView, Queries, gpu as attention};
use wgkv::gpu::{Context, DeviceTensor, Slice};
use wgkv::nestedkv::{Budget, EvictConfig, ScoreConfig, gpu as nestedkv};
use wgkv::nsnquant::{Codec, KeyScales, gpu as nsnquant};
use wgkv::shape::{Dtype, Elements, Tensor};
use wgkv::wgpu::Buffer;

use crate::engine::Gpu;
use crate::file::Fail;
use crate::jobs::{Kept, Scored};

/// Scores keys.
pub fn score(gpu: &Gpu, keys: &Tensor<'_>, config: &ScoreConfig) -> Result<Scored, Fail> {
    let tokens = keys.tokens();
    let mut scored = Scored::default();
    in_parts(0..keys.rows(), 1, &mut |rows| {
        let data = rows_of(keys, &rows);
        let answer = gpu.run(|rec| {
            let buffer = rec.context().upload("keys", data.bytes())?;
            let tensor = device_tensor(&buffer, keys, rows.len())?;
            let scores = nestedkv::score(rec, &tensor, config)?;
            [&scores.score, &scores.scales, &scores.blend]
                .map(|part| rec.read_back(Slice::all(part)))
                .into_iter()
                .collect()
        })?;
        let count = rows.len() * tokens;
        scored.score.extend(values::<f32>(&answer[0]));
        let scales = answer[1].chunks_exact(4 * count).chain([answer[2].as_slice()]);
        for (part, bytes) in scored.parts.iter_mut().zip(scales) {
            part.extend(values::<f32>(bytes));
        }
        Ok(())
    })?;
    Ok(scored)
}

/// Selects by scores `[rows, tokens]`.
pub fn keep(
    gpu: &Gpu,
    scores: &[f32],
    rows: usize,
    tokens: usize,
    config: &EvictConfig,
) -> Result<Kept, Fail> {
    // The heads of a sequence share its budget.
    let together = match config.budget {
        Budget::Uniform(_) => 1,
        Budget::Adaptive { heads, .. } => heads.max(1),
    };
    let mut kept = Kept { offsets: vec![0], ..Kept::default() };
    in_parts(0..rows, together, &mut |rows| {
        let part = &scores[rows.start * tokens..rows.end * tokens];
        let (mut total, mut sinks_only) = (0, false);
        let answer = gpu.run(|rec| {
            let buffer = rec.context().upload("scores", bytemuck::cast_slice(part))?;
            let kept = nestedkv::keep(rec, Slice::all(&buffer), rows.len(), tokens, config)?;
            (total, sinks_only) = (kept.total as usize, kept.sinks_only);
            [&kept.budgets, &kept.positions]
                .map(|part| rec.read_back(Slice::all(part)))
                .into_iter()
                .collect()
        })?;
        for budget in values::<u32>(&answer[0]).take(rows.len()) {
            let end = kept.offsets[kept.offsets.len() - 1]
                .checked_add(budget)
                .ok_or_else(|| Fail::input("more than 4294967295 token rows stay"))?;
            kept.offsets.push(end);
        }
        kept.positions.extend(values::<u32>(&answer[1]).take(total));
        kept.sinks_only |= sinks_only;
        Ok(())
    })?;
    Ok(kept)
}

/// Copies the rows that stay, as f16.
pub fn gather(gpu: &Gpu, data: &Tensor<'_>, kept: &Kept) -> Result<Vec<f16>, Fail> {
    let (tokens, dim) = (data.tokens(), data.head_dim());
    let mut copied = Vec::with_capacity(kept.positions.len() * dim);
    in_parts(0..data.rows(), 1, &mut |rows| {
        let first = kept.offsets[rows.start];
        let offsets: Vec<u32> =
            kept.offsets[rows.start..=rows.end].iter().map(|end| end - first).collect();
        let budgets: Vec<u32> = offsets.windows(2).map(|row| row[1] - row[0]).collect();
        let positions = &kept.positions[first as usize..kept.offsets[rows.end] as usize];
        if positions.is_empty() {
            return Ok(());
        }
        let sources: Vec<u32> = budgets
            .iter()
            .enumerate()
            .flat_map(|(row, &count)| std::iter::repeat_n((row * tokens) as u32, count as usize))
            .zip(positions)
            .map(|(start, position)| start + position)
            .collect();
        let part = rows_of(data, &rows);
        let answer = gpu.run(|rec| {
            let context = rec.context();
            let buffer = context.upload("rows", part.bytes())?;
            let tensor = device_tensor(&buffer, data, rows.len())?;
            let list = |words: &[u32]| context.upload("list", bytemuck::cast_slice(words));
            let device_kept = nestedkv::DeviceKept {
                offsets: list(&offsets)?,
                positions: list(positions)?,
                sources: list(&sources)?,
                budgets: list(&budgets)?,
                total: positions.len() as u64,
                sinks_only: kept.sinks_only,
            };
            let gathered = nestedkv::gather(rec, &tensor, &device_kept)?;
            Ok(vec![
                rec.read_back(Slice::all(&gathered.rows))?,
                rec.read_back(Slice::all(&gathered.beyond))?,
            ])
        })?;
        if let Some(row) = nestedkv::first_beyond(&answer[1])? {
            let row = sources.get(row as usize).map_or(0, |&source| source as usize);
            let beyond = |value: &f32| value.is_finite() && f16::from_f32(*value).is_infinite();
            let value = (row * dim..(row + 1) * dim).map(|i| part.get(i)).find(beyond);
            let row = rows.start * tokens + row;
            let (argument, value) = ("data".into(), value.unwrap_or(f32::INFINITY));
            return Err(Error::BeyondF16 { argument, row, value }.into());
        }
        copied.extend(values::<f16>(&answer[0]).take(positions.len() * dim));
        Ok(())
    })?;
    Ok(copied)
}

/// Packs the chunks that start at the token rows `starts`, ascending; the rows stand at `positions`.
pub fn encode(
    gpu: &Gpu,
    codec: &Codec,
    data: Elements<'_>,
    positions: &[u32],
    starts: &[u32],
    scales: Option<&KeyScales<'_>>,
) -> Result<Vec<u32>, Fail> {
    let layout = *codec.layout();
    let (dim, chunk) = (layout.head_dim(), layout.chunk());
    let device_codec = nsnquant::DeviceCodec::new(&gpu.context, codec.clone())?;
    let mut words = Vec::with_capacity(starts.len() * layout.words());
    in_parts(0..starts.len(), 1, &mut |part| {
        let first = starts[part.start];
        let rows = first as usize..starts[part.end - 1] as usize + chunk;
        let local: Vec<u32> = starts[part.clone()].iter().map(|start| start - first).collect();
        let data = data.slice(rows.start * dim..rows.end * dim);
        let answer = gpu.run(|rec| {
            let context = rec.context();
            let rows_buffer = context.upload("rows", data.bytes())?;
            let starts = context.upload("starts", bytemuck::cast_slice(&local))?;
            let own = bytemuck::cast_slice(&positions[rows.clone()]);
            let positions = context.upload("positions", own)?;
            let size = 4 * (part.len() * layout.words()) as u64;
            let pages = context.create("pages", size)?;
            let scales = DeviceScales::upload(context, scales, &part)?;
            nsnquant::encode_at(
                rec,
                &device_codec,
                Slice::all(&rows_buffer),
                data.dtype(),
                rows.len(),
                Some(Slice::all(&positions)),
                Slice::all(&starts),
                part.len(),
                Slice::all(&pages),
                DeviceScales::view(&scales, dim),
            )?;
            Ok(vec![rec.read_back(Slice::all(&pages))?])
        })?;
        words.extend(values::<u32>(&answer[0]));
        Ok(())
    })?;
    Ok(words)
}

/// Decodes pages, `[pages * chunk, D]`, whose rows stand at `positions`.
pub fn decode(
    gpu: &Gpu,
    codec: &Codec,
    pages: &[u32],
    positions: &[u32],
    scales: Option<&KeyScales<'_>>,
) -> Result<Vec<f32>, Fail> {
    let layout = *codec.layout();
    let (dim, chunk) = (layout.head_dim(), layout.chunk());
    let count = codec.page_count("pages", pages.len())?;
    let device_codec = nsnquant::DeviceCodec::new(&gpu.context, codec.clone())?;
    let mut rows = Vec::with_capacity(count * chunk * dim);
    in_parts(0..count, 1, &mut |part| {
        let words = &pages[part.start * layout.words()..part.end * layout.words()];
        let starts: Vec<u32> = (0..part.len()).map(|page| (page * chunk) as u32).collect();
        let total_rows = part.len() * chunk;
        let answer = gpu.run(|rec| {
            let context = rec.context();
            let pages = context.upload("pages", bytemuck::cast_slice(words))?;
            let own = &positions[part.start * chunk..part.end * chunk];
            let positions = context.upload("positions", bytemuck::cast_slice(own))?;
            let starts = context.upload("starts", bytemuck::cast_slice(&starts))?;
            let out = context.create("rows", 4 * (total_rows * dim) as u64)?;
            let scales = DeviceScales::upload(context, scales, &part)?;
            nsnquant::decode_at(
                rec,
                &device_codec,
                Slice::all(&pages),
                part.len(),
                Some(Slice::all(&positions)),
                Slice::all(&starts),
                Slice::all(&out),
                Dtype::F32,
                total_rows,
                DeviceScales::view(&scales, dim),
            )?;
            Ok(vec![rec.read_back(Slice::all(&out))?])
        })?;
        rows.extend(values::<f32>(&answer[0]));
        Ok(())
    })?;
    Ok(rows)
}

/// Key scales, and the numbers of a part of the pages.
struct DeviceScales([Buffer; 2]);

impl DeviceScales {
    fn upload(
        context: &Context,
        scales: Option<&KeyScales<'_>>,
        pages: &Range<usize>,
    ) -> wgkv::Result<Option<Self>> {
        let Some(KeyScales { values, of_page }) = scales else { return Ok(None) };
        let numbers = &of_page[pages.clone()];
        Ok(Some(Self([
            context.upload("key scales", bytemuck::cast_slice(values))?,
            context.upload("numbers", bytemuck::cast_slice(numbers))?,
        ])))
    }

    fn view(
        scales: &Option<Self>,
        dim: usize,
    ) -> Option<(nsnquant::DeviceKeyScales<'_>, Slice<'_>)> {
        let [values, numbers] = &scales.as_ref()?.0;
        let count = values.size() as usize / 2 / dim;
        let values = nsnquant::DeviceKeyScales { values: Slice::all(values), count };
        Some((values, Slice::all(numbers)))
    }
}

/// Attends; outputs `[B, Hq, Nq, D of the values]`.
pub fn attend(
    gpu: &Gpu,
    view: &CacheView<'_>,
    queries: &Queries<'_>,
    config: &AttendConfig,
) -> Result<Vec<f32>, Fail> {
    let (rows, kv_heads) = (view.kv_rows, view.kv_rows / queries.batch.max(1));
    if kv_heads == 0 || !queries.heads.is_multiple_of(kv_heads) {
        return Err(Error::QueryHeads { query_heads: queries.heads, kv_heads }.into());
    }
    // Query heads of a KV head lie side by side, so each row is a sequence of one KV head too.
    let group = queries.heads / kv_heads;
    let per_row = group * queries.tokens;
    let codecs = match &view.packed {
        Some(packed) => Some([
            nsnquant::DeviceCodec::new(&gpu.context, packed.keys.clone())?,
            nsnquant::DeviceCodec::new(&gpu.context, packed.values.clone())?,
        ]),
        None => None,
    };
    let mut out = Vec::with_capacity(rows * per_row * view.head_dim_v);
    in_parts(0..rows, 1, &mut |part| {
        let width = per_row * queries.head_dim;
        let asked = queries.data.slice(part.start * width..part.end * width);
        let count = part.len() * per_row * view.head_dim_v;
        let answer = gpu.run(|rec| {
            let cache = DeviceCache::upload(rec.context(), view, &part)?;
            let data = rec.context().upload("queries", asked.bytes())?;
            let device_queries = attention::DeviceQueries {
                data: Slice::all(&data),
                dtype: asked.dtype(),
                batch: part.len(),
                heads: group,
                tokens: queries.tokens,
                head_dim: queries.head_dim,
            };
            let device_view = cache.view(view, part.len(), codecs.as_ref());
            let attended = attention::attend(rec, &device_view, &device_queries, config)?;
            Ok(vec![rec.read_back(Slice::all(&attended.out))?])
        })?;
        out.extend(values::<f32>(&answer[0]).take(count));
        Ok(())
    })?;
    Ok(out)
}

/// A part of a cache on the device.
struct DeviceCache {
    raw_tokens: usize,
    raw: [Buffer; 4],
    pages: usize,
    packed: Option<[Buffer; 4]>,
    key_scales: Option<Buffer>,
}

impl DeviceCache {
    fn upload(context: &Context, view: &CacheView<'_>, rows: &Range<usize>) -> wgkv::Result<Self> {
        let list = |words: &[u32]| context.upload("list", bytemuck::cast_slice(words));
        let local = |offsets: &[u32]| -> Vec<u32> {
            let part = &offsets[rows.start..=rows.end];
            part.iter().map(|end| end - part[0]).collect()
        };
        let range = |offsets: &[u32], each: usize| {
            offsets[rows.start] as usize * each..offsets[rows.end] as usize * each
        };
        let floats = |data: Elements<'_>, dim| {
            context.upload("raw rows", data.slice(range(view.raw_offsets, dim)).bytes())
        };
        // Positions may be left out where attention is not causal.
        let positions = |all: &[u32], range: Range<usize>| list(all.get(range).unwrap_or(&[]));
        let packed = match &view.packed {
            None => None,
            Some(packed) => {
                let (keys, values) = (packed.keys.layout(), packed.values.layout());
                let words = |pages: &[u32], each| list(&pages[range(packed.page_offsets, each)]);
                let tokens = range(packed.page_offsets, keys.chunk());
                Some([
                    list(&local(packed.page_offsets))?,
                    words(packed.key_pages, keys.words())?,
                    words(packed.value_pages, values.words())?,
                    positions(packed.page_positions, tokens)?,
                ])
            }
        };
        let scales = view.packed.and_then(|packed| packed.key_scales).map(|scales| {
            let part = &scales[rows.start * view.head_dim_k..rows.end * view.head_dim_k];
            context.upload("key scales", bytemuck::cast_slice(part))
        });
        Ok(Self {
            key_scales: scales.transpose()?,
            raw_tokens: range(view.raw_offsets, 1).len(),
            raw: [
                list(&local(view.raw_offsets))?,
                floats(view.raw_keys, view.head_dim_k)?,
                floats(view.raw_values, view.head_dim_v)?,
                positions(view.raw_positions, range(view.raw_offsets, 1))?,
            ],
            pages: view.packed.map_or(0, |packed| range(packed.page_offsets, 1).len()),
            packed,
        })
    }

    fn view<'a>(
        &'a self,
        host: &CacheView<'_>,
        kv_rows: usize,
        codecs: Option<&'a [nsnquant::DeviceCodec; 2]>,
    ) -> attention::DeviceCacheView<'a> {
        let [raw_offsets, raw_keys, raw_values, raw_positions] = &self.raw;
        let packed = self.packed.as_ref().zip(codecs).map(|(buffers, [keys, values])| {
            let [page_offsets, key_pages, value_pages, page_positions] = buffers;
            attention::DevicePackedView {
                key_scales: self.key_scales.as_ref().map(Slice::all),
                keys,
                values,
                pages: self.pages,
                page_offsets: page_offsets.into(),
                key_pages: key_pages.into(),
                value_pages: value_pages.into(),
                page_positions: Some(page_positions.into()),
            }
        });
        attention::DeviceCacheView {
            kv_rows,
            head_dim_k: host.head_dim_k,
            head_dim_v: host.head_dim_v,
            raw_tokens: self.raw_tokens,
            key_dtype: host.raw_keys.dtype(),
            value_dtype: host.raw_values.dtype(),
            raw_offsets: raw_offsets.into(),
            raw_keys: raw_keys.into(),
            raw_values: raw_values.into(),
            raw_positions: Some(raw_positions.into()),
            packed,
        }
    }
}

/// Rows of a tensor.
fn rows_of<'a>(tensor: &Tensor<'a>, rows: &Range<usize>) -> Elements<'a> {
    let each = tensor.tokens() * tensor.head_dim();
    tensor.data().slice(rows.start * each..rows.end * each)
}

/// `rows` rows of the shape of `like` in a buffer.
fn device_tensor<'a>(
    buffer: &'a Buffer,
    like: &Tensor<'_>,
    rows: usize,
) -> wgkv::Result<DeviceTensor<'a>> {
    DeviceTensor::new(
        "tensor",
        Slice::all(buffer),
        like.data().dtype(),
        rows,
        like.tokens(),
        like.head_dim(),
    )
}

/// Does a job on a range, and in halves where a limit of the device does not allow it at once.
/// `together` neighbours stay in one part.
fn in_parts(
    range: Range<usize>,
    together: usize,
    job: &mut dyn FnMut(Range<usize>) -> Result<(), Fail>,
) -> Result<(), Fail> {
    if range.is_empty() {
        return Ok(());
    }
    let units = range.len() / together;
    match job(range.clone()) {
        Err(fail) if fail.limit && units > 1 => {
            let middle = range.start + units / 2 * together;
            in_parts(range.start..middle, together, job)?;
            in_parts(middle..range.end, together, job)
        }
        done => done,
    }
}

/// The bytes of a read-back as values.
fn values<T: bytemuck::Pod>(bytes: &[u8]) -> impl Iterator<Item = T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts that a job is done in when it takes no more than `most` at once.
    fn parts(range: Range<usize>, together: usize, most: usize) -> Vec<Range<usize>> {
        let mut done = Vec::new();
        let result = in_parts(range, together, &mut |part| {
            if part.len() > most {
                let (limit, needed, allowed) = ("limit", part.len() as u64, most as u64);
                return Err(Error::DeviceLimit { argument: "part", limit, needed, allowed }.into());
            }
            done.push(part);
            Ok(())
        });
        assert!(result.is_ok());
        done
    }

    #[test]
    fn parts_cover_the_range_in_order_and_keep_neighbours_together() {
        for (count, together, most) in
            [(10, 1, 10), (10, 1, 3), (7, 1, 1), (12, 3, 4), (12, 3, 11), (1, 1, 1), (0, 1, 1)]
        {
            let done = parts(0..count, together, most);
            assert_eq!(
                done.iter().map(ExactSizeIterator::len).sum::<usize>(),
                count,
                "{count} {together} {most}"
            );
            let mut end = 0;
            for part in done {
                assert_eq!(part.start, end);
                assert!(part.len() <= most && part.len().is_multiple_of(together));
                end = part.end;
            }
        }
    }

    #[test]
    fn one_that_does_not_fit_is_refused_with_the_limit() {
        let refuse = &mut |_| {
            let (argument, limit) = ("keys", "max_storage_buffer_binding_size");
            Err(Error::DeviceLimit { argument, limit, needed: 2, allowed: 1 }.into())
        };
        let fail = in_parts(0..4, 1, refuse).expect_err("nothing fits");
        assert_eq!(fail.code, 2);
        assert!(fail.message.contains("max_storage_buffer_binding_size"), "{}", fail.message);
        let other = &mut |_| Err(Fail::device("lost"));
        assert_eq!(in_parts(0..4, 1, other).expect_err("lost").code, 3);
    }
}
