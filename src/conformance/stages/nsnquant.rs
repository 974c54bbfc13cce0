//! Packing and unpacking, on both paths against the judge.

use half::f16;

use crate::conformance::draw::{DTYPES, Data, Random};
use crate::conformance::reference::{self, Codes as Known};
use crate::conformance::run::{Job, Origin, Run};
use crate::error::Result;
use crate::gpu::Slice;
use crate::judge::codec as judge;
use crate::judge::widen;
use crate::layout::{Bits, Family, Gain, MeanDomain, Metadata, Profile, Scheme, encode_scale};
use crate::nsnquant::gpu::{self, DeviceCodec, DeviceKeyScales, Part};
use crate::nsnquant::{Codebook, Codec, Codes, KeyScales, Pairing, Rope, cpu, key_scale};
use crate::shape::Dtype;

/// What the judge must know of a codec.
pub(crate) fn rules(codec: &Codec) -> judge::Rules {
    let (layout, scheme) = (codec.layout(), codec.scheme());
    judge::Rules {
        d: layout.head_dim(),
        r: layout.chunk(),
        bits: layout.bits().get(),
        plain: scheme.family == Family::Plain,
        form: match scheme.metadata {
            Metadata::Half => judge::Form::Half,
            Metadata::Four => judge::Form::Four,
            Metadata::Linear => judge::Form::Linear,
        },
        length: match scheme.gain {
            Gain::TokenNorm => judge::Length::Token,
            Gain::Unbiased => judge::Length::Unbiased,
            Gain::NormPreserving => judge::Length::Norm,
        },
        turned: scheme.mean == MeanDomain::Hadamard,
        seed: scheme.signs,
        turn: codec.rope().map(|rope| judge::Turn {
            halves: rope.pairing() == Pairing::Halves,
            frequencies: rope.frequencies().iter().map(|f| f64::from(*f)).collect(),
        }),
    }
}

/// The codebook of a codec as the judge reads it.
pub(crate) fn book(codec: &Codec) -> Vec<f64> {
    codec.book().values().iter().map(|v| f64::from(*v)).collect()
}

/// Profiles at their rates: what covering cases go through.
pub(super) const NAMED: [(Profile, Bits); 8] = [
    (Profile::Compat, Bits::One),
    (Profile::Compat, Bits::Two),
    (Profile::Tuned, Bits::One),
    (Profile::Tuned, Bits::Two),
    (Profile::Tuned, Bits::Three),
    (Profile::Tuned, Bits::Four),
    (Profile::Paper, Bits::One),
    (Profile::Paper, Bits::Two),
];

/// Head dimensions that every profile is covered at.
const WIDE: [usize; 3] = [64, 80, 128];
/// All the others.
const OTHERS: [usize; 17] =
    [8, 16, 24, 32, 40, 48, 56, 96, 112, 160, 192, 224, 256, 320, 384, 448, 512];
const COMPAT: Scheme = Profile::Compat.scheme(Bits::Two);
/// More that covering cases go through, with their chunks: keys of the default profile at every rate,
/// and chunks of every kind that workgroups have room for.
const MORE: [(Scheme, usize, usize); 8] = [
    (Profile::Tuned.key_scheme(Bits::One), 128, 64),
    (Profile::Tuned.key_scheme(Bits::Two), 128, 64),
    (Profile::Tuned.key_scheme(Bits::Three), 128, 64),
    (Profile::Tuned.key_scheme(Bits::Four), 128, 64),
    (COMPAT, 64, 128),
    (COMPAT, 64, 256),
    (COMPAT, 64, 511),
    (COMPAT, 64, 1024),
];
pub(super) const COVERS: usize = NAMED.len() * WIDE.len() + MORE.len() + OTHERS.len();

/// What a covering case is about: a scheme, a head dimension, and a chunk if it matters.
fn covered(number: usize) -> (Scheme, usize, Option<usize>) {
    let (profile, bits) = NAMED[number % NAMED.len()];
    if let Some(dim) = WIDE.get(number / NAMED.len()) {
        return (profile.scheme(bits), *dim, None);
    }
    let number = number - NAMED.len() * WIDE.len();
    if let Some((scheme, dim, chunk)) = MORE.get(number) {
        return (*scheme, *dim, Some(*chunk));
    }
    let number = (number - MORE.len()) % OTHERS.len();
    (if number.is_multiple_of(2) { MORE[2].0 } else { COMPAT }, OTHERS[number], None)
}

/// Any combination of the choices.
pub(super) fn scheme(random: &mut Random) -> Scheme {
    let (family, rates) = match random.odds(2) {
        true => (Family::Unit, &Bits::ALL[..2]),
        false => (Family::Plain, &Bits::ALL[..]),
    };
    let mut scheme = Profile::Compat.scheme(random.pick(rates));
    scheme.family = family;
    scheme.metadata = random.pick(&[Metadata::Half, Metadata::Four, Metadata::Linear]);
    scheme.mean = random.pick(&[MeanDomain::Plain, MeanDomain::Hadamard]);
    scheme.gain = random.pick(&[Gain::TokenNorm, Gain::Unbiased, Gain::NormPreserving]);
    scheme.signs = None;
    scheme
}

/// Token rows of every kind that the codec must take.
fn rows(random: &mut Random, count: usize, dim: usize) -> Vec<f32> {
    let kind = random.below(8);
    let (offset, repeated) = (random.normals(dim), random.normals(dim));
    let mut out = Vec::with_capacity(count * dim);
    for _ in 0..count {
        let kind = if kind == 7 { random.below(7) } else { kind };
        let (level, zero) = (random.normal(), random.odds(3));
        for channel in 0..dim {
            let value = random.normal();
            out.push(match kind {
                0 => value + offset[channel],
                1 => value * if channel % 13 == 5 { 40.0 } else { 1.0 },
                2 => level,
                3 => repeated[channel],
                4 if zero => 0.0,
                4 => value,
                5 => value / 6.0 * 3e38,
                _ => value * 1e-30,
            });
        }
    }
    out
}

/// Pages to be made and read.
struct Packing {
    codec: Codec,
    data: Data,
    /// First rows of the pages.
    starts: Vec<u32>,
    /// Positions of all rows; none without an embedding.
    positions: Vec<u32>,
    /// Two scales, of which the pages have the second.
    scales: Option<Vec<f16>>,
}

/// What a case is to try.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Plain,
    Signs,
    Rope,
}

impl Packing {
    fn draw(run: &mut Run<'_>, way: Way) -> Result<Self> {
        let mut dim = run.random.pick(&[8usize, 24, 40, 64, 80, 96, 112, 128]);
        let mut scheme = scheme(&mut run.random);
        let mut chunk = None;
        if let Some(number) = run.number() {
            (scheme, dim, chunk) = covered(number);
        }
        if way == Way::Signs {
            scheme.signs = Some(run.random.word());
        }
        let drawn = run.count(2, 80);
        let chunk = chunk.unwrap_or(drawn);
        let codec = Codec::with("data", dim, scheme, chunk, Codebook::builtin())?;
        let rope = if way == Way::Rope {
            let pairing = run.random.pick(&Pairing::ALL);
            let channels = 2 * run.random.between(1, dim / 2);
            let theta = run.random.pick(&[1.0, 1e4, 5e5]);
            Some(Rope::with_theta(pairing, theta, channels)?)
        } else {
            None
        };
        let count = chunk + 3;
        let positions = if rope.is_some() { places(&mut run.random, count) } else { Vec::new() };
        let codec = codec.with_rope(rope)?;
        let dtype = run.random.pick(&DTYPES);
        let data = Data::saturated(&rows(&mut run.random, count, dim), dtype);
        let scales = if run.random.odds(2) {
            let own = key_scale(data.view(), dim, chunk)?;
            Some([vec![f16::from_f32(0.5); dim], own].concat())
        } else {
            None
        };
        Ok(Self { codec, data, starts: vec![3, 0, 2], positions, scales })
    }

    /// Positions of the rows of a page.
    fn places(&self, start: u32) -> &[u32] {
        let start = start as usize;
        self.positions.get(start..start + self.codec.layout().chunk()).unwrap_or(&[])
    }

    /// Positions of the rows of all pages.
    fn page_places(&self) -> Vec<u32> {
        self.starts.iter().flat_map(|start| self.places(*start).to_vec()).collect()
    }

    /// The scale of the pages as the judge reads it.
    fn channels(&self) -> Option<Vec<f64>> {
        let own =
            |scales: &Vec<f16>| scales[scales.len() / 2..].iter().map(|v| v.to_f64()).collect();
        self.scales.as_ref().map(own)
    }

    fn numbers(&self) -> Vec<u32> {
        vec![1; self.starts.len()]
    }

    fn encode_on_cpu(&self) -> Result<Vec<u32>> {
        let of_page = &self.numbers();
        let scales = self.scales.as_ref().map(|values| KeyScales { values, of_page });
        let (codec, data) = (&self.codec, self.data.view());
        cpu::encode_at(codec, data, &self.positions, &self.starts, scales.as_ref())
    }

    fn decode_on_cpu(&self, pages: &[u32]) -> Result<Vec<f32>> {
        let of_page = &self.numbers();
        let scales = self.scales.as_ref().map(|values| KeyScales { values, of_page });
        cpu::decode_at(&self.codec, pages, &self.page_places(), scales.as_ref())
    }

    /// Scales on the device, with their numbers.
    fn upload(&self, run: &Run<'_>) -> Result<Option<[wgpu::Buffer; 2]>> {
        let Some(scales) = &self.scales else { return Ok(None) };
        Ok(Some([run.upload(scales)?, run.upload(&self.numbers())?]))
    }

    async fn encode_on_gpu(&self, run: &Run<'_>) -> Result<Vec<u32>> {
        let scales = self.upload(run)?;
        let view = scales.as_ref().map(view);
        let layout = *self.codec.layout();
        let device = DeviceCodec::new(run.context, self.codec.clone())?;
        let (data, count) = (self.data.view(), self.starts.len());
        let (rows, first) = (run.upload(data.bytes())?, run.upload(&self.starts)?);
        let places = run.upload(&self.positions)?;
        let words = count * layout.words();
        let out = run.context.create("pages", 4 * words as u64)?;
        run.record(|rec| {
            let [rows, first, places, out] = [&rows, &first, &places, &out].map(Slice::all);
            let (dtype, total) = (data.dtype(), data.len() / layout.head_dim());
            gpu::encode_at(rec, &device, rows, dtype, total, Some(places), first, count, out, view)
        })?;
        run.read(&out, words).await
    }

    async fn decode_on_gpu(&self, run: &Run<'_>, pages: &[u32]) -> Result<Vec<f32>> {
        let scales = self.upload(run)?;
        let view = scales.as_ref().map(view);
        let layout = *self.codec.layout();
        let device = DeviceCodec::new(run.context, self.codec.clone())?;
        let count = self.starts.len();
        let starts: Vec<u32> = (0..count).map(|page| (page * layout.chunk()) as u32).collect();
        let rows = count * layout.chunk();
        let out = run.context.create("rows", 4 * (rows * layout.head_dim()) as u64)?;
        let (packed, first) = (run.upload(pages)?, run.upload(&starts)?);
        let places = run.upload(&self.page_places())?;
        run.record(|rec| {
            let [packed, first, places, out] = [&packed, &first, &places, &out].map(Slice::all);
            let (at, dtype) = (Some(places), Dtype::F32);
            gpu::decode_at(rec, &device, packed, count, at, first, out, dtype, rows, view)
        })?;
        run.read(&out, rows * layout.head_dim()).await
    }
}

fn view(buffers: &[wgpu::Buffer; 2]) -> (DeviceKeyScales<'_>, Slice<'_>) {
    let [values, numbers] = buffers.each_ref().map(Slice::all);
    (DeviceKeyScales { values, count: 2 }, numbers)
}

/// Positions of rows: in a run or apart, ascending, anywhere up to 2^24.
fn places(random: &mut Random, count: usize) -> Vec<u32> {
    let step = random.between(1, 3);
    let mut at = random.below((1 << 24) - 4 * count) as u32;
    let next = |_| {
        at += 1 + random.below(step) as u32;
        at - 1
    };
    (0..count).map(next).collect()
}

/// Holds a page against the rows that it was made of.
pub(super) fn judge_page(
    run: &mut Run<'_>,
    path: &str,
    rules: &judge::Rules,
    book: &[f64],
    number: usize,
    x: &[f64],
    page: &[u32],
    channels: Option<&[f64]>,
    positions: &[u32],
) {
    let parts = judge::unpack(rules, page);
    let faults = judge::check(rules, x, &parts, book, channels, positions);
    // Products are rounded to 2^-24 of them; scales may fall to the next step of their grid.
    for (what, fault, limit) in [
        ("first scales", faults.s1, 2e-3),
        ("means", faults.o, 2e-3),
        ("second scales", faults.s2, 1e-2),
        ("codes", faults.codes, 4e-6),
        ("grids", faults.grids, 1e-2),
    ] {
        run.checks.near(&format!("{what} of the {path}"), number, fault.max(0.0), 0.0, limit);
    }
}

/// Holds pages against the rows that they were made of.
fn judge_pages(run: &mut Run<'_>, path: &str, job: &Packing, pages: &[u32]) {
    let (layout, rules, book) = (*job.codec.layout(), rules(&job.codec), book(&job.codec));
    let (dim, chunk, channels) = (layout.head_dim(), layout.chunk(), job.channels());
    let x = widen(job.data.view());
    for (number, (page, start)) in pages.chunks_exact(layout.words()).zip(&job.starts).enumerate() {
        let own = &x[*start as usize * dim..][..chunk * dim];
        let (channels, at) = (channels.as_deref(), job.places(*start));
        judge_page(run, path, &rules, &book, number, own, page, channels, at);
    }
}

/// Holds restored rows against the judge's.
fn judge_rows(run: &mut Run<'_>, path: &str, job: &Packing, pages: &[u32], restored: &[f32]) {
    let (layout, rules, book) = (*job.codec.layout(), rules(&job.codec), book(&job.codec));
    let (dim, channels) = (layout.head_dim(), job.channels());
    let label = format!("row of the {path}");
    let each = layout.chunk() * dim;
    for (number, (page, start)) in pages.chunks_exact(layout.words()).zip(&job.starts).enumerate() {
        let parts = judge::unpack(&rules, page);
        let want = judge::decode(&rules, &parts, &book, channels.as_deref(), job.places(*start));
        let [s1, s2, o] = &parts.parts;
        let root = (dim as f64).sqrt();
        let top = o.iter().fold(0.0, |a: f64, v| a.max(v.abs())) * root;
        for (at, (got, want)) in restored[number * each..][..each].iter().zip(&want).enumerate() {
            let token = at / dim;
            let limit = 3e-6 * s1[token] * (s2[token] * root * 4.0 + top) + 1e-38;
            let held = want.clamp(-3.4e38, 3.4e38);
            run.checks.near(&label, at, f64::from(*got), held, limit);
        }
    }
}

pub(super) fn encode<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        if let Origin::Reference(number) = run.origin {
            return golden_codes(run, &reference::codes(number)?).await;
        }
        let job = Packing::draw(run, Way::Plain)?;
        let pages = job.encode_on_gpu(run).await?;
        judge_pages(run, "GPU", &job, &pages);
        let pages = job.encode_on_cpu()?;
        judge_pages(run, "CPU", &job, &pages);
        Ok(())
    })
}

pub(super) fn decode<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        if let Origin::Reference(number) = run.origin {
            return golden_rows(run, &reference::codes(number)?).await;
        }
        let job = Packing::draw(run, Way::Plain)?;
        let pages = job.encode_on_cpu()?;
        restored(run, &job, &pages).await
    })
}

async fn restored(run: &mut Run<'_>, job: &Packing, pages: &[u32]) -> Result<()> {
    let rows = job.decode_on_gpu(run, pages).await?;
    judge_rows(run, "GPU", job, pages, &rows);
    let rows = job.decode_on_cpu(pages)?;
    judge_rows(run, "CPU", job, pages, &rows);
    Ok(())
}

/// Packs and unpacks.
async fn there_and_back(run: &mut Run<'_>, way: Way) -> Result<()> {
    let job = Packing::draw(run, way)?;
    let pages = job.encode_on_gpu(run).await?;
    judge_pages(run, "GPU", &job, &pages);
    restored(run, &job, &pages).await
}

pub(super) fn signs<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(there_and_back(run, Way::Signs))
}

pub(super) fn rope<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(there_and_back(run, Way::Rope))
}

pub(super) fn squares<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let dim = run.random.pick(&[8usize, 24, 64, 80, 96, 112, 128, 256]);
        let total = run.count(1, 200);
        let dtype = run.random.pick(&DTYPES);
        let data = Data::new(&run.random.normals(total * dim), dtype);
        let chunks: Vec<[u32; 2]> = (0..run.random.between(1, 9))
            .map(|_| {
                let first = run.random.below(total);
                [first as u32, run.random.between(0, (total - first).min(64)) as u32]
            })
            .collect();
        let want = cpu::squares(data.view(), dim, &chunks)?;
        let row_words = (dim * dtype.bytes() / 4) as u32;
        let mut list: Vec<[u32; 3]> = chunks
            .iter()
            .zip(0..)
            .map(|([first, count], row)| [first * row_words, *count, row])
            .collect();
        // Entries beyond the data and beyond the result are ignored.
        list.extend([[(total as u32 - 1) * row_words, 2, 0], [u32::MAX, 1, 0], [0, 1, u32::MAX]]);
        let (rows, words) = (run.upload(data.view().bytes())?, run.upload(&list)?);
        let out = run.context.create("squares", 4 * want.len() as u64)?;
        run.record(|rec| {
            let part = Part { words: Slice::all(&words), first: 0, count: list.len() as u32 };
            gpu::squares(rec, dim, Slice::all(&rows), dtype, part, Slice::all(&out))
        })?;
        let got: Vec<f32> = run.read(&out, want.len()).await?;
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            let (got, want) = (f64::from(*got), f64::from(*want));
            run.checks.near("sum of squares", at, got, want, 2e-6 * want + 1e-10);
        }
        Ok(())
    })
}

/// Distance of two halves in steps of their grid.
pub(super) fn steps(a: u16, b: u16) -> f64 {
    let line = |bits: u16| {
        let magnitude = i32::from(bits & 0x7fff);
        if bits & 0x8000 == 0 { magnitude } else { -magnitude }
    };
    f64::from(line(a).abs_diff(line(b)))
}

pub(super) fn scales<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (dim, chunk) =
            run.random.pick(&[(8usize, 2usize), (64, 64), (80, 13), (128, 17), (512, 8)]);
        let dtype = run.cover(&DTYPES);
        let total = chunk * run.count(1, 9) + 5;
        let data = Data::saturated(&rows(&mut run.random, total, dim), dtype);
        let heads = [0..total, 3..3 + chunk, 1..2, 4..4, 2..chunk + 3];
        let buffer = run.upload(data.view().bytes())?;
        let out = run.context.create("scales", (2 * heads.len() * dim) as u64)?;
        run.record(|rec| {
            let (data, out) = (Slice::all(&buffer), Slice::all(&out));
            gpu::key_scale(rec, dim, chunk, data, dtype, &heads, out)
        })?;
        let got: Vec<u16> = run.read(&out, heads.len() * dim).await?;
        for (head, got) in heads.into_iter().zip(got.chunks(dim)) {
            let part = data.view().slice(head.start * dim..head.end * dim);
            let host = key_scale(part, dim, chunk)?;
            let want = judge::key_scale(&widen(part), dim, chunk);
            for (at, want) in want.iter().enumerate() {
                let want = f16::from_f64(*want).to_bits();
                let on_cpu = host[at].to_bits();
                run.checks.near("steps of the GPU", at, steps(got[at], want), 0.0, 1.0);
                run.checks.near("steps of the CPU", at, steps(on_cpu, want), 0.0, 1.0);
                run.checks.near("steps of the paths", at, steps(got[at], on_cpu), 0.0, 1.0);
            }
        }
        Ok(())
    })
}

/// A reference case as both paths take it.
fn known(case: &Known) -> Packing {
    let chunk = case.codec.layout().chunk();
    let starts = (0..case.heads).map(|head| (head * chunk) as u32).collect();
    let (codec, data) = (case.codec.clone(), case.rows.clone());
    Packing { codec, data, starts, positions: Vec::new(), scales: None }
}

async fn golden_codes(run: &mut Run<'_>, case: &Known) -> Result<()> {
    let job = known(case);
    let both = [("GPU", job.encode_on_gpu(run).await?), ("CPU", job.encode_on_cpu()?)];
    for (path, pages) in both {
        let label = |what: &str| format!("{what} of {} on the {path}", case.name);
        let codes = Codes::unpack(&case.codec, &pages)?;
        for (what, ours, known) in
            [("s1", &codes.s1, &case.s1), ("s2", &codes.s2, &case.s2), ("o", &codes.o, &case.o)]
        {
            for (at, (ours, known)) in ours.iter().zip(known).enumerate() {
                if !f16::from_bits(*known).is_finite() {
                    let held = f64::from(crate::layout::decode_scale(*ours));
                    run.checks.hold(held.is_finite() && held >= 65504.0, || label("a scale"));
                } else if what != "s2" || !case.ill {
                    run.checks.near(&label(what), at, steps(*ours, *known), 0.0, 1.0);
                }
            }
        }
        if case.ill {
            continue;
        }
        let tied = case.name.contains("allzero");
        for (at, (ours, known)) in codes.idx.iter().zip(&case.idx).enumerate() {
            if tied || case.margin[at] > 1e-5 {
                run.checks.equal(&label("index"), &[(at, ours)], &[(at, known)]);
            }
        }
        if let (Some(ours), Some(known)) = (&codes.signs, &case.signs) {
            for (at, (ours, known)) in ours.iter().zip(known).enumerate() {
                let sure = (0..8).filter(|c| tied || case.hadamard[8 * at + c].abs() > 1e-4);
                let sure = sure.fold(0, |mask, channel| mask | 1 << channel);
                run.checks.equal(&label("signs"), &[(at, ours & sure)], &[(at, known & sure)]);
            }
        }
    }
    Ok(())
}

async fn golden_rows(run: &mut Run<'_>, case: &Known) -> Result<()> {
    let (job, dim) = (known(case), case.codec.layout().head_dim());
    let codes = Codes {
        idx: case.idx.clone(),
        signs: case.signs.clone(),
        s1: case.s1_wide.iter().map(|v| encode_scale(*v as f32)).collect(),
        s2: case.s2.clone(),
        o: case.o.clone(),
        grids: Vec::new(),
    };
    let pages = codes.pack(&case.codec)?;
    let both =
        [("GPU", job.decode_on_gpu(run, &pages).await?), ("CPU", job.decode_on_cpu(&pages)?)];
    for (path, rows) in both {
        let label = format!("row of {} on the {path}", case.name);
        for (at, (got, want)) in rows.iter().zip(&case.restored).enumerate() {
            if case.overflow {
                // The reference has infinities there.
                run.checks.hold(got.is_finite(), || format!("{label} [{at}]: {got}"));
                continue;
            }
            let token = &case.restored[at / dim * dim..][..dim];
            let rms = (token.iter().map(|v| v * v).sum::<f64>() / dim as f64).sqrt();
            run.checks.near(&label, at, f64::from(*got), *want, 5e-6 * rms);
        }
    }
    Ok(())
}
