//! Cases and paths that the stages' tests share.

use std::sync::Arc;

use half::{bf16, f16};
use wgkv::Result;
use wgkv::gpu::{Context, Slice};
use wgkv::layout::{Bits, PageLayout};
use wgkv::nsnquant::gpu::{self, DeviceCodec, DeviceKeyScales};
use wgkv::nsnquant::{Codebook, Codec, KeyScales, cpu};
use wgkv::shape::{Dtype, Elements};

use crate::support::golden::{Golden, index};
use crate::support::{context, run_on, wait};

/// Owned elements of one type.
#[derive(Clone, Debug)]
pub enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Data {
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(x) => Elements::F32(x),
            Self::F16(x) => Elements::F16(x),
            Self::Bf16(x) => Elements::Bf16(x),
        }
    }
}

/// A path through the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Cpu,
    Gpu,
}

pub const PATHS: [Path; 2] = [Path::Cpu, Path::Gpu];

impl Path {
    pub fn encode(self, codec: &Codec, data: Elements<'_>, starts: &[u32]) -> Result<Vec<u32>> {
        self.encode_at(codec, data, &[], starts, None)
    }

    pub fn encode_at(
        self,
        codec: &Codec,
        data: Elements<'_>,
        positions: &[u32],
        starts: &[u32],
        scales: Option<&KeyScales<'_>>,
    ) -> Result<Vec<u32>> {
        match self {
            Self::Cpu => cpu::encode_at(codec, data, positions, starts, scales),
            Self::Gpu => encode_at_on(context(), codec, data, positions, starts, scales),
        }
    }

    pub fn decode(self, codec: &Codec, pages: &[u32]) -> Result<Vec<f32>> {
        self.decode_at(codec, pages, &[], None)
    }

    pub fn decode_at(
        self,
        codec: &Codec,
        pages: &[u32],
        positions: &[u32],
        scales: Option<&KeyScales<'_>>,
    ) -> Result<Vec<f32>> {
        match self {
            Self::Cpu => cpu::decode_at(codec, pages, positions, scales),
            Self::Gpu => {
                let bytes = decode_at_on(context(), codec, pages, positions, Dtype::F32, scales)?;
                Ok(bytemuck::pod_collect_to_vec(&bytes))
            }
        }
    }
}

/// Scales on the device, with the numbers of the pages'.
fn upload_scales(
    context: &Context,
    scales: Option<&KeyScales<'_>>,
) -> Result<Option<(wgkv::wgpu::Buffer, wgkv::wgpu::Buffer)>> {
    let upload = |scales: &KeyScales<'_>| {
        let values = context.upload("scales", bytemuck::cast_slice(scales.values))?;
        Ok((values, context.upload("numbers", bytemuck::cast_slice(scales.of_page))?))
    };
    scales.map(upload).transpose()
}

fn device_scales<'a>(
    buffers: &'a Option<(wgkv::wgpu::Buffer, wgkv::wgpu::Buffer)>,
    head_dim: usize,
) -> Option<(DeviceKeyScales<'a>, Slice<'a>)> {
    buffers.as_ref().map(|(values, numbers)| {
        let count = values.size() as usize / 2 / head_dim;
        (DeviceKeyScales { values: Slice::all(values), count }, Slice::all(numbers))
    })
}

pub fn encode_on(
    context: &Context,
    codec: &Codec,
    data: Elements<'_>,
    starts: &[u32],
) -> Result<Vec<u32>> {
    encode_at_on(context, codec, data, &[], starts, None)
}

fn encode_at_on(
    context: &Context,
    codec: &Codec,
    data: Elements<'_>,
    positions: &[u32],
    starts: &[u32],
    scales: Option<&KeyScales<'_>>,
) -> Result<Vec<u32>> {
    let scales = upload_scales(context, scales)?;
    let scales = device_scales(&scales, codec.layout().head_dim());
    let layout = *codec.layout();
    let device = DeviceCodec::new(context, codec.clone())?;
    let rows = context.upload("data", data.bytes())?;
    let first = context.upload("starts", bytemuck::cast_slice(starts))?;
    let places = context.upload("positions", bytemuck::cast_slice(positions))?;
    let out = context.create("pages", (starts.len() * layout.words() * 4) as u64)?;
    let readback = run_on(context, |rec| {
        let (rows, first) = (Slice::all(&rows), Slice::all(&first));
        let total = data.len() / layout.head_dim();
        let (dtype, to, at) = (data.dtype(), Slice::all(&out), Some(Slice::all(&places)));
        let pages = starts.len();
        gpu::encode_at(rec, &device, rows, dtype, total, at, first, pages, to, scales)?;
        rec.read_back(to)
    })?;
    Ok(bytemuck::pod_collect_to_vec(&wait(readback)))
}

pub fn decode_on(context: &Context, codec: &Codec, pages: &[u32], dtype: Dtype) -> Result<Vec<u8>> {
    decode_at_on(context, codec, pages, &[], dtype, None)
}

fn decode_at_on(
    context: &Context,
    codec: &Codec,
    pages: &[u32],
    positions: &[u32],
    dtype: Dtype,
    scales: Option<&KeyScales<'_>>,
) -> Result<Vec<u8>> {
    let scales = upload_scales(context, scales)?;
    let scales = device_scales(&scales, codec.layout().head_dim());
    let layout = *codec.layout();
    let count = pages.len() / layout.words();
    let starts: Vec<u32> = (0..count).map(|p| (p * layout.chunk()) as u32).collect();
    let device = DeviceCodec::new(context, codec.clone())?;
    let packed = context.upload("pages", bytemuck::cast_slice(pages))?;
    let first = context.upload("starts", bytemuck::cast_slice(&starts))?;
    let places = context.upload("positions", bytemuck::cast_slice(positions))?;
    let rows = count * layout.chunk();
    let out = context.create("rows", (rows * layout.head_dim() * dtype.bytes()) as u64)?;
    let readback = run_on(context, |rec| {
        let (packed, first) = (Slice::all(&packed), Slice::all(&first));
        let (at, to) = (Some(Slice::all(&places)), Slice::all(&out));
        gpu::decode_at(rec, &device, packed, count, at, first, to, dtype, rows, scales)?;
        rec.read_back(to)
    })?;
    Ok(wait(readback))
}

pub fn codec(head_dim: usize, bits: u32, chunk: usize) -> Codec {
    codec_with(head_dim, bits, chunk, Codebook::builtin())
}

pub fn codec_with(head_dim: usize, bits: u32, chunk: usize, book: Arc<Codebook>) -> Codec {
    let bits = Bits::new("bits", bits).expect("1 or 2 bits");
    let layout = PageLayout::new("data", head_dim, bits, chunk).expect("a layout");
    Codec::new(layout, book).expect("a codec")
}

/// The codebook that the reference values were made with.
pub fn golden_codebook() -> Arc<Codebook> {
    let file = Golden::open("nsn_codebooks.safetensors");
    let book = |name: &str| -> Vec<f32> { file.numbers(name).iter().map(|v| *v as f32).collect() };
    let book = Codebook::new(&book("codebook_signed"), &book("codebook_magnitude"));
    Arc::new(book.expect("a codebook"))
}

/// A reference case: `heads` chunks of `tokens` rows each.
pub struct Case {
    pub name: String,
    pub codec: Codec,
    pub heads: usize,
    pub ill: bool,
    pub overflow: bool,
    pub x: Data,
}

impl Case {
    pub fn tensor(&self, part: &str) -> String {
        format!("{}/{part}", self.name)
    }

    pub fn starts(&self) -> Vec<u32> {
        let chunk = self.codec.layout().chunk();
        (0..self.heads).map(|h| (h * chunk) as u32).collect()
    }
}

pub fn cases() -> (Golden, Vec<Case>) {
    let file = Golden::open("nsn_cases.safetensors");
    let book = golden_codebook();
    let index = index();
    let cases = index["nsnquant"].as_array().expect("a list of cases").iter().filter_map(|entry| {
        let name = entry["case"].as_str().expect("a name").to_owned();
        let number = |key: &str| entry[key].as_u64().expect("a number") as usize;
        let tensor = format!("{name}/x");
        file.has(&tensor).then(|| {
            let (dtype, bytes) = file.raw(&tensor);
            let x = match dtype {
                safetensors::Dtype::F16 => Data::F16(bytemuck::pod_collect_to_vec(&bytes)),
                safetensors::Dtype::F32 => Data::F32(bytemuck::pod_collect_to_vec(&bytes)),
                other => panic!("{tensor} is {other:?}"),
            };
            Case {
                codec: codec_with(number("d"), number("bits") as u32, number("T"), book.clone()),
                heads: number("H"),
                ill: entry["ill_conditioned"].as_bool().expect("a flag"),
                overflow: !entry["finite"].as_bool().expect("a flag"),
                name,
                x,
            }
        })
    });
    let cases: Vec<Case> = cases.collect();
    assert!(cases.len() >= 4, "only {} reference cases", cases.len());
    (file, cases)
}

/// Distance of two f16 numbers in steps of their grid.
pub fn steps(a: u16, b: u16) -> u32 {
    let line = |bits: u16| {
        let magnitude = i32::from(bits & 0x7fff);
        if bits & 0x8000 == 0 { magnitude } else { -magnitude }
    };
    line(a).abs_diff(line(b))
}
