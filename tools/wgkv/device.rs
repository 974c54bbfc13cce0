//! The jobs on the GPU. What is larger than one binding of the device is cut at rows or pages, which
//! do not depend on each other.

use std::ops::Range;

use wgkv::gpu::Slice;
use wgkv::nsnquant::{Codec, gpu as nsnquant};
use wgkv::shape::{Dtype, Elements};

use crate::engine::Gpu;
use crate::file::Fail;

/// Packs the chunks that start at the token rows `starts`, ascending.
pub fn encode(
    gpu: &Gpu,
    codec: &Codec,
    data: Elements<'_>,
    starts: &[u32],
) -> Result<Vec<u32>, Fail> {
    let layout = *codec.layout();
    let (dim, chunk) = (layout.head_dim(), layout.chunk());
    let row_bytes = (dim * data.dtype().bytes()) as u64;
    let device_codec = nsnquant::DeviceCodec::new(&gpu.context, codec.clone())?;
    let span =
        |part: &Range<usize>| starts[part.start] as usize..starts[part.end - 1] as usize + chunk;
    let mut words = Vec::with_capacity(starts.len() * layout.words());
    for part in cut(starts.len(), |part| {
        let rows = span(part);
        (rows.len() as u64 * row_bytes).max(part.len() as u64 * 4 * layout.words() as u64)
            <= gpu.binding_limit()
    }) {
        let rows = span(&part);
        let first = starts[part.start];
        let local: Vec<u32> = starts[part.clone()].iter().map(|start| start - first).collect();
        let data = data.slice(rows.start * dim..rows.end * dim);
        let answer = gpu.run(|rec| {
            let context = rec.context();
            let rows_buffer = context.upload("wgkv rows", data.bytes())?;
            let starts = context.upload("wgkv starts", bytemuck::cast_slice(&local))?;
            let pages = context.create("wgkv pages", 4 * (part.len() * layout.words()) as u64)?;
            nsnquant::encode(
                rec,
                &device_codec,
                Slice::all(&rows_buffer),
                data.dtype(),
                rows.len(),
                Slice::all(&starts),
                part.len(),
                Slice::all(&pages),
            )?;
            Ok(vec![rec.read_back(Slice::all(&pages))?])
        })?;
        words.extend(values::<u32>(&answer[0]));
    }
    Ok(words)
}

/// Decodes pages, `[pages * chunk, D]`.
pub fn decode(gpu: &Gpu, codec: &Codec, pages: &[u32]) -> Result<Vec<f32>, Fail> {
    let layout = *codec.layout();
    let (dim, chunk) = (layout.head_dim(), layout.chunk());
    let count = codec.page_count("pages", pages.len())?;
    let device_codec = nsnquant::DeviceCodec::new(&gpu.context, codec.clone())?;
    let page_bytes = 4 * layout.words().max(chunk * dim) as u64;
    let mut rows = Vec::with_capacity(count * chunk * dim);
    for part in cut(count, |part| part.len() as u64 * page_bytes <= gpu.binding_limit()) {
        let words = &pages[part.start * layout.words()..part.end * layout.words()];
        let starts: Vec<u32> = (0..part.len()).map(|page| (page * chunk) as u32).collect();
        let total_rows = part.len() * chunk;
        let answer = gpu.run(|rec| {
            let context = rec.context();
            let pages = context.upload("wgkv pages", bytemuck::cast_slice(words))?;
            let starts = context.upload("wgkv starts", bytemuck::cast_slice(&starts))?;
            let out = context.create("wgkv rows", (4 * total_rows * dim) as u64)?;
            nsnquant::decode(
                rec,
                &device_codec,
                Slice::all(&pages),
                part.len(),
                Slice::all(&starts),
                Slice::all(&out),
                Dtype::F32,
                total_rows,
            )?;
            Ok(vec![rec.read_back(Slice::all(&out))?])
        })?;
        rows.extend(values::<f32>(&answer[0]));
    }
    Ok(rows)
}

/// Cuts `0..count` into parts that `fits` accepts, as few as can be from the front. A part of one
/// that does not fit comes all the same: the library names the limit then.
fn cut(count: usize, fits: impl Fn(&Range<usize>) -> bool) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut start = 0;
    while start < count {
        // Fitting is monotonous, so the longest part that fits is found by halving.
        let (mut low, mut high) = (start + 1, count);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(&(start..middle)) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        parts.push(start..low);
        start = low;
    }
    parts
}

/// The bytes of a read-back as values.
fn values<T: bytemuck::Pod>(bytes: &[u8]) -> impl Iterator<Item = T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
}
