//! The cache laid out as attention reads it.

use super::{LayerCache, rows};
use crate::attention::gpu::{DeviceCacheView, DevicePackedView};
use crate::cache::plan::{Move, Tables};
use crate::error::Result;
use crate::gpu::{Recorder, Slice};
use crate::shape::Dtype;

/// A [`LayerCache`] with its pages row after row. The raw rows are borrowed, the pages copied.
#[derive(Debug)]
pub struct Flat<'a> {
    cache: &'a LayerCache,
    raw_offsets: wgpu::Buffer,
    raw_positions: wgpu::Buffer,
    page_offsets: wgpu::Buffer,
    page_positions: wgpu::Buffer,
    pages: [wgpu::Buffer; 2],
}

impl<'a> Flat<'a> {
    pub(super) fn new(cache: &'a LayerCache, rec: &mut Recorder<'_>) -> Result<Self> {
        let tables = Tables::new(&cache.frontier, cache.config.rows);
        let context = rec.context();
        let upload = |words: &[u32]| context.upload("cache tables", bytemuck::cast_slice(words));
        Ok(Self {
            cache,
            raw_offsets: upload(&tables.raw_offsets)?,
            raw_positions: upload(&tables.raw_positions)?,
            page_offsets: upload(&tables.page_offsets)?,
            page_positions: upload(&tables.page_positions)?,
            pages: [pages(cache, rec, 0)?, pages(cache, rec, 1)?],
        })
    }

    /// The rows for [`crate::attention::gpu::attend`], in the same recording or a later one.
    pub fn view(&self) -> DeviceCacheView<'_> {
        let (config, frontier) = (&self.cache.config, &self.cache.frontier);
        let [keys, values] = &*self.cache.codecs;
        // Without raw rows the slices are not read; any buffer stands in.
        let raw = match &self.cache.raw.buffers {
            Some(raw) => [&raw[0], &raw[1]],
            None => [&self.raw_offsets; 2],
        };
        let [raw_keys, raw_values] = raw.map(Slice::all);
        let [key_pages, value_pages] = [&self.pages[0], &self.pages[1]].map(Slice::all);
        DeviceCacheView {
            kv_rows: config.rows,
            head_dim_k: config.head_dim_k,
            head_dim_v: config.head_dim_v,
            raw_tokens: config.rows * frontier.raw(),
            key_dtype: config.dtype,
            value_dtype: config.dtype,
            raw_offsets: Slice::all(&self.raw_offsets),
            raw_keys,
            raw_values,
            raw_positions: Some(Slice::all(&self.raw_positions)),
            packed: (frontier.chunks() > 0).then_some(DevicePackedView {
                key_scales: None,
                keys,
                values,
                pages: config.rows * frontier.chunks(),
                page_offsets: Slice::all(&self.page_offsets),
                key_pages,
                value_pages,
                page_positions: Some(Slice::all(&self.page_positions)),
            }),
        }
    }
}

/// The pages of keys or values in one buffer, row after row.
fn pages(cache: &LayerCache, rec: &mut Recorder<'_>, side: usize) -> Result<wgpu::Buffer> {
    let count = cache.pages.len() as u64;
    let all = rec.context().create("cache pages", cache.page_bytes(side) * count)?;
    for (chunk, page) in cache.pages.iter().enumerate() {
        // A page moves as one token row of so many words.
        let plan = Move {
            rows: cache.config.rows,
            head_dim: cache.codecs[side].layout().words(),
            tokens: 1,
            from_tokens: 1,
            from_first: 0,
            from_dtype: Dtype::F32,
            to_tokens: cache.pages.len(),
            to_first: chunk,
            to_dtype: Dtype::F32,
        };
        rows::record(rec, &plan, Slice::all(&page.buffers[side]), Slice::all(&all))?;
    }
    Ok(all)
}
