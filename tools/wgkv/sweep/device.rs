//! Cases on a GPU.

use std::cell::RefCell;
use std::rc::Rc;

use half::f16;
use wgkv::attention::AttendConfig;
use wgkv::attention::gpu::{DeviceCacheView, DevicePackedView, DeviceQueries, attend};
use wgkv::gpu::{
    Binding, DeviceTensor, Groups, Kernel, Params, ParamsLayout, Recorder, Slice, Span, Variant,
};
use wgkv::nestedkv::gpu as nestedkv;
use wgkv::nsnquant::gpu::{DeviceCodec, encode};
use wgkv::primitives::gpu::{compact, select};
use wgkv::shape::Dtype;
use wgkv::wgpu;

use super::case::{Case, Method, Shape};
use super::data::{Answer, Data, codecs, eviction, offsets, starts};
use super::pages::DevicePages;
use crate::engine::Gpu;
use crate::file::Fail;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct CopyParams {
    count: u32,
}

impl Params for CopyParams {
    const LAYOUT: ParamsLayout = ParamsLayout { size: 4, fields: &[("count", 0)], parts: &[] };
}

static COPY: Kernel = Kernel {
    name: "sweep/copy",
    source: include_str!("copy.wgsl"),
    bindings: &[Binding::Read("data"), Binding::Write("copied")],
    params: CopyParams::LAYOUT,
};

/// Buffers of a shape.
pub struct Loaded<'a> {
    gpu: &'a Gpu,
    shape: Shape,
    keys: wgpu::Buffer,
    values: wgpu::Buffer,
    offsets: wgpu::Buffer,
    scores: Option<wgpu::Buffer>,
    /// Pages that were filled, by what is done but for the queries.
    filled: RefCell<Vec<(String, Pages)>>,
}

type Pages = Rc<RefCell<DevicePages>>;

/// What a case reads beside the data of its shape.
pub struct Prepared {
    words: Vec<wgpu::Buffer>,
    codecs: Option<[DeviceCodec; 2]>,
    pages: Option<Pages>,
}

impl<'a> Loaded<'a> {
    pub fn new(gpu: &'a Gpu, data: &Data, scored: bool) -> Result<Self, Fail> {
        let upload = |data: &[f16]| gpu.context.upload("sweep data", bytemuck::cast_slice(data));
        let offsets = offsets(data.shape.rows(), data.shape.tokens);
        let mut loaded = Self {
            gpu,
            shape: data.shape,
            keys: upload(&data.keys)?,
            values: upload(&data.values)?,
            offsets: gpu.context.upload("sweep offsets", bytemuck::cast_slice(&offsets))?,
            scores: None,
            filled: RefCell::default(),
        };
        if scored {
            let mut scores = None;
            gpu.run(|rec| {
                let keys = loaded.tensor(&loaded.keys)?;
                scores = Some(nestedkv::score(rec, &keys, &Default::default())?.score);
                Ok(vec![])
            })?;
            loaded.scores = scores;
        }
        Ok(loaded)
    }

    fn tensor<'b>(&self, buffer: &'b wgpu::Buffer) -> wgkv::Result<DeviceTensor<'b>> {
        let Shape { tokens, dim, .. } = self.shape;
        let rows = self.shape.rows();
        DeviceTensor::new("data", Slice::all(buffer), Dtype::F16, rows, tokens, dim)
    }

    /// Runs the stages before a case.
    pub fn prepare(&self, data: &Data, case: &Case) -> Result<Prepared, Fail> {
        let upload =
            |words: &[u32]| self.gpu.context.upload("sweep words", bytemuck::cast_slice(words));
        let rows = self.shape.rows();
        let mut prepared = Prepared { words: Vec::new(), codecs: None, pages: None };
        match case.method {
            Method::Select | Method::Compact => {
                let counts = upload(&vec![case.kept.unwrap_or(0) as u32; rows])?;
                prepared.words = vec![counts];
                if case.method == Method::Compact {
                    let mut found = None;
                    self.gpu.run(|rec| {
                        found = Some(self.select(rec, &prepared.words[0])?);
                        Ok(vec![])
                    })?;
                    prepared.words = vec![upload(&offsets(rows, case.kept.unwrap_or(0)))?];
                    prepared.words.extend(found);
                }
            }
            Method::Encode | Method::AttendPacked => {
                let [keys, values] =
                    codecs(case)?.map(|codec| DeviceCodec::new(&self.gpu.context, codec));
                let codecs = [keys?, values?];
                let starts = upload(&starts(case))?;
                let pages = case.pages();
                let room = |codec: &DeviceCodec| {
                    let size = (pages * codec.layout().words() * 4) as u64;
                    self.gpu.context.create("sweep pages", size)
                };
                if case.method == Method::AttendPacked {
                    let (keys, values) = (room(&codecs[0])?, room(&codecs[1])?);
                    self.gpu.run(|rec| {
                        self.pack(rec, &codecs[0], &self.keys, &starts, &keys, pages)?;
                        self.pack(rec, &codecs[1], &self.values, &starts, &values, pages)?;
                        Ok(vec![])
                    })?;
                    let each = pages / rows.max(1);
                    let queries = data.queries(case.group.unwrap_or(1))?;
                    let queries =
                        self.gpu.context.upload("queries", bytemuck::cast_slice(&queries))?;
                    prepared.words = vec![queries, upload(&offsets(rows, each))?, keys, values];
                } else {
                    prepared.words = vec![starts, room(&codecs[0])?];
                }
                prepared.codecs = Some(codecs);
            }
            Method::AttendRaw | Method::AttendPaged => {
                let queries = data.queries(case.group.unwrap_or(1))?;
                prepared.words =
                    vec![self.gpu.context.upload("queries", bytemuck::cast_slice(&queries))?];
                if case.method == Method::AttendPaged {
                    prepared.pages = Some(self.pages(data, case)?);
                }
            }
            Method::Score | Method::Keep | Method::Evict => {}
        }
        Ok(prepared)
    }

    /// Pages for a case; those of another number of query heads serve too.
    fn pages(&self, data: &Data, case: &Case) -> Result<Pages, Fail> {
        let kind = Case { group: None, ..case.clone() }.kind();
        let name = format!("{kind} {:?}", case.pages_of.and_then(|packing| packing.preset));
        let mut filled = self.filled.borrow_mut();
        if let Some((_, pages)) = filled.iter().find(|(other, _)| *other == name) {
            return Ok(pages.clone());
        }
        let pages = Rc::new(RefCell::new(DevicePages::new(self.gpu, data, case)?));
        filled.push((name, pages.clone()));
        Ok(pages)
    }

    /// The scores that selections read.
    pub fn scores_back(&self) -> Result<Option<Vec<f32>>, Fail> {
        let Some(scores) = &self.scores else { return Ok(None) };
        let mut bytes = self.gpu.run(|rec| Ok(vec![rec.read_back(Slice::all(scores))?]))?;
        let bytes = bytes.pop().unwrap_or_default();
        Ok(Some(bytemuck::pod_collect_to_vec(&bytes)))
    }

    fn scores(&self) -> Slice<'_> {
        Slice::all(self.scores.as_ref().unwrap_or(&self.offsets))
    }

    fn select(&self, rec: &mut Recorder<'_>, counts: &wgpu::Buffer) -> wgkv::Result<wgpu::Buffer> {
        let (rows, tokens) = (self.shape.rows(), self.shape.tokens);
        let (starts, counts) = (Slice::all(&self.offsets), Slice::all(counts));
        select::record(rec, self.scores(), starts, rows, tokens, 0, counts)
    }

    fn pack(
        &self,
        rec: &mut Recorder<'_>,
        codec: &DeviceCodec,
        data: &wgpu::Buffer,
        starts: &wgpu::Buffer,
        out: &wgpu::Buffer,
        pages: usize,
    ) -> wgkv::Result<()> {
        let rows = self.shape.rows() * self.shape.tokens;
        let (data, starts, out) = (Slice::all(data), Slice::all(starts), Slice::all(out));
        encode(rec, codec, data, Dtype::F16, rows, starts, pages, out)
    }

    /// Records a case; returns the buffer that answers it.
    fn record(
        &self,
        rec: &mut Recorder<'_>,
        case: &Case,
        prepared: &Prepared,
    ) -> wgkv::Result<wgpu::Buffer> {
        let Shape { batch, heads, dim, tokens } = self.shape;
        let rows = self.shape.rows();
        let kept = case.kept.unwrap_or(0);
        let words = &prepared.words;
        let keys = self.tensor(&self.keys)?;
        Ok(match (case.method, &prepared.codecs) {
            (Method::Select, _) => self.select(rec, &words[0])?,
            (Method::Compact, _) => {
                let (ends, found) = (Slice::all(&words[0]), Slice::all(&words[1]));
                let total = (rows * kept) as u64;
                let scores = self.scores();
                compact::record(rec, scores, rows, tokens, 0, found, ends, total)?.positions
            }
            (Method::Keep, _) => {
                nestedkv::keep(rec, self.scores(), rows, tokens, &eviction(case))?.positions
            }
            (Method::Evict, _) => {
                let values = self.tensor(&self.values)?;
                let evicted = nestedkv::compress_prefill(rec, &keys, &values, &eviction(case))?;
                evicted.kept.positions
            }
            (Method::Encode, Some([codec, _])) => {
                self.pack(rec, codec, &self.keys, &words[0], &words[1], case.pages())?;
                words[1].clone()
            }
            (Method::AttendRaw | Method::AttendPacked | Method::AttendPaged, codecs) => {
                let group = case.group.unwrap_or(1);
                let queries = DeviceQueries {
                    data: Slice::all(&words[0]),
                    dtype: Dtype::F16,
                    batch,
                    heads: heads * group,
                    tokens: 1,
                    head_dim: dim,
                };
                if let Some(pages) = &prepared.pages {
                    return Ok(pages.borrow_mut().attend(rec, &queries)?.out);
                }
                let packed = codecs.as_ref().map(|[keys, values]| DevicePackedView {
                    keys,
                    values,
                    pages: case.pages(),
                    page_offsets: Slice::all(&words[1]),
                    key_pages: Slice::all(&words[2]),
                    value_pages: Slice::all(&words[3]),
                    page_positions: None,
                    key_scales: None,
                });
                let view = DeviceCacheView {
                    kv_rows: rows,
                    head_dim_k: dim,
                    head_dim_v: dim,
                    raw_tokens: if packed.is_some() { 0 } else { rows * tokens },
                    key_dtype: Dtype::F16,
                    value_dtype: Dtype::F16,
                    raw_offsets: Slice::all(&self.offsets),
                    raw_keys: Slice::all(&self.keys),
                    raw_values: Slice::all(&self.values),
                    raw_positions: None,
                    packed,
                };
                attend(rec, &view, &queries, &AttendConfig::default())?.out
            }
            (Method::Score, _) | (Method::Encode, None) => {
                nestedkv::score(rec, &keys, &Default::default())?.score
            }
        })
    }

    /// Runs a case once; returns its spans and the dispatches that it takes.
    pub fn time(
        &self,
        case: &Case,
        prepared: &Prepared,
        stages: bool,
    ) -> Result<(Vec<Span>, u64), Fail> {
        let mut dispatches = 0;
        let (_, spans) = self.gpu.timed(|rec| {
            if stages {
                rec.mark_each();
            } else {
                rec.mark("case");
            }
            self.record(rec, case, prepared)?;
            dispatches = rec.dispatches();
            Ok(vec![])
        })?;
        Ok((spans, dispatches))
    }

    /// Runs a case once and brings its answer back.
    pub fn answer(&self, case: &Case, prepared: &Prepared) -> Result<Answer, Fail> {
        let mut bytes = self.gpu.run(|rec| {
            let buffer = self.record(rec, case, prepared)?;
            Ok(vec![rec.read_back(Slice::all(&buffer))?])
        })?;
        let bytes = bytes.pop().unwrap_or_default();
        Ok(match case.method {
            Method::Score | Method::AttendRaw | Method::AttendPacked | Method::AttendPaged => {
                Answer::Reals(bytemuck::pod_collect_to_vec(&bytes))
            }
            _ => Answer::Words(bytemuck::pod_collect_to_vec(&bytes)),
        })
    }
}

/// Two buffers, one to be copied to the other.
pub struct Copy<'a> {
    gpu: &'a Gpu,
    from: wgpu::Buffer,
    to: wgpu::Buffer,
}

impl<'a> Copy<'a> {
    /// Of 512 MiB; of 16 MiB on software adapters, or what a binding may have.
    pub fn new(gpu: &'a Gpu) -> Result<Self, Fail> {
        let software = gpu.info.device_type == wgpu::DeviceType::Cpu;
        let limits = wgkv::gpu::required_limits(&gpu.context.device().limits());
        let size = if software { 16 << 20 } else { 512 << 20 };
        let size = limits.max_storage_buffer_binding_size.min(size) / 16 * 16;
        let make = || gpu.context.create("sweep copy", size);
        let (from, to) = (make()?, make()?);
        Ok(Self { gpu, from, to })
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        2 * self.from.size()
    }

    /// Runs the copy once.
    pub fn time(&self) -> Result<Vec<Span>, Fail> {
        let count = self.from.size() / 16;
        let (_, spans) = self.gpu.timed(|rec| {
            rec.mark("copy");
            let params = CopyParams { count: count as u32 };
            let slices = [Slice::all(&self.from), Slice::all(&self.to)];
            let groups = Groups(count.div_ceil(1024));
            rec.dispatch(&COPY, &Variant::default(), &params, &slices, groups)?;
            Ok(vec![])
        })?;
        Ok(spans)
    }
}
