//! `sweep`: how long the methods take over a range of shapes, and how near that is to a copy's pace.

mod case;
mod data;
mod device;
mod pages;
mod plot;
mod shapes;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use wgkv::gpu::Span;
use wgkv::layout::{Bits, PageLayout, Preset, Profile as Scheme};

use crate::args::{Common, Profile};
use crate::engine::{Engine, Gpu, Kind};
use crate::file::{Fail, make_folder, try_place, write_whole};
use crate::report::{print, progress, table};
pub use case::Method;
use case::{Case, Packing, Shape};
use data::Data;
use device::{Copy, Loaded, Prepared};

#[derive(Args, Clone, Debug)]
pub struct SweepArgs {
    /// What to time: score, select, compact, keep, evict, encode, attend-raw, attend-packed,
    /// attend-paged [default: all but keep and attend-paged]
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "score,select,compact,evict,encode,attend-raw,attend-packed",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub methods: Vec<Method>,
    /// Sequences
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", hide = true)]
    pub batch: Vec<usize>,
    /// KV heads of a sequence
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8")]
    pub heads: Vec<usize>,
    /// Query heads a KV head (attention)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    pub group: Vec<usize>,
    /// Channels
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "128")]
    pub dim: Vec<usize>,
    /// Tokens of a row
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1024,4096")]
    pub tokens: Vec<usize>,
    /// Tokens that are packed together, presets aside [default: 64]
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide = true)]
    pub chunk: Vec<usize>,
    /// Presets by their bits an element [default: 2.75 without --bits and --profile]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub presets: Vec<f64>,
    /// Code bits a value [default: 2 with --profile]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub bits: Vec<u32>,
    /// Forms of the codes: compat, tuned, paper [default: compat with --bits]
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub profile: Vec<Profile>,
    /// Use nothing that WebGPU does not promise: no optional features, 16 KiB of workgroup memory
    #[arg(long, conflicts_with = "beside_baseline", hide = true)]
    pub baseline: bool,
    /// Let attention multiply integers where books are bytes: faster, less exact
    #[arg(long, conflicts_with = "baseline", hide = true)]
    pub integer_dots: bool,
    /// Time every case with and without what WebGPU does not promise, by turns, and print the ratio
    #[arg(long, hide = true)]
    pub beside_baseline: bool,
    /// Fraction of the tokens that stays
    #[arg(long, value_name = "R", default_value_t = 0.25)]
    pub keep: f64,
    /// Time eviction with budgets shared out by score too
    #[arg(long, hide = true)]
    pub adaptive: bool,
    /// Time attention on pages with long and short heads by turns too, 4 to 1, of as many tokens in all
    #[arg(long, hide = true)]
    pub ragged: bool,
    /// Time attention on pages that were filled a token at a time too
    #[arg(long, hide = true)]
    pub stepped: bool,
    /// Timed runs of each case; the median counts
    #[arg(long, value_name = "N", default_value_t = 20, hide = true)]
    pub repeats: usize,
    /// Runs before them
    #[arg(long, value_name = "N", default_value_t = 3, hide = true)]
    pub warmup: usize,
    /// Compare results with the CPU path up to so many elements of keys
    #[arg(long, value_name = "N", default_value_t = 1 << 24, hide = true)]
    pub check: usize,
    /// Time every kernel of a case on its own too
    #[arg(long, hide = true)]
    pub stages: bool,
    /// Folder for sweep.jsonl, sweep.csv, time.svg, linear.svg, bytes.svg and roofline.svg
    #[arg(short, long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
}

/// One line of the report; times in seconds, paces in bytes a second.
pub struct Line {
    case: Case,
    baseline: bool,
    median: f64,
    least: f64,
    most: f64,
    clock: &'static str,
    copy: f64,
    dispatches: Option<u64>,
    /// Distance from the answer of the CPU path, and the distance allowed.
    checked: Option<(f64, f64)>,
    stages: Vec<(&'static str, f64)>,
    /// What the same takes with all that the device has, where this is the baseline.
    best: Option<f64>,
    /// What the same takes with even heads, where these are not.
    even: Option<f64>,
    /// What the same takes after a prompt, where tokens came one at a time.
    prompt: Option<f64>,
}

impl Line {
    /// How much longer this takes than others in the same run.
    fn ratios(&self) -> [(&'static str, Option<f64>); 3] {
        [("of_best", self.best), ("of_even", self.even), ("of_prompt", self.prompt)]
            .map(|(name, other)| (name, other.map(|other| self.median / other)))
    }

    fn fields(&self) -> Vec<(&'static str, Value)> {
        let pace = self.case.bytes() as f64 / self.median;
        let mut fields = self.case.fields();
        fields.extend([
            ("bytes", json!(self.case.bytes())),
            ("operations", json!(self.case.operations())),
            ("median_ms", json!(self.median * 1e3)),
            ("least_ms", json!(self.least * 1e3)),
            ("most_ms", json!(self.most * 1e3)),
            ("clock", json!(self.clock)),
            ("gb_per_s", json!(pace / 1e9)),
            ("copy_gb_per_s", json!(self.copy / 1e9)),
            ("of_copy", json!(pace / self.copy)),
            ("dispatches", json!(self.dispatches)),
            ("error", json!(self.checked.map(|checked| checked.0))),
        ]);
        fields.extend(self.ratios().map(|(name, ratio)| (name, json!(ratio))));
        fields
    }

    fn json(&self, engine: &str) -> Value {
        let mut object = Map::new();
        object.insert("device".into(), json!(engine));
        object.insert("baseline".into(), json!(self.baseline));
        object.extend(self.fields().into_iter().map(|(name, value)| (name.into(), value)));
        if !self.stages.is_empty() {
            let stages =
                self.stages.iter().map(|(name, time)| json!({"name": name, "ms": time * 1e3}));
            object.insert("stages".into(), stages.collect());
        }
        Value::Object(object)
    }
}

impl SweepArgs {
    /// With what is packed where the options do not say it, as in other verbs: the default preset, and what
    /// scripts expect where bits are named alone.
    fn settled(&self) -> Self {
        let mut args = self.clone();
        let named = !(args.bits.is_empty() && args.chunk.is_empty());
        if named && args.profile.is_empty() {
            args.profile = vec![Profile::Compat];
        }
        if args.profile.is_empty() && args.presets.is_empty() {
            args.presets = vec![2.75];
        }
        if args.bits.is_empty() {
            args.bits = vec![2];
        }
        if args.chunk.is_empty() {
            args.chunk = vec![64];
        }
        args
    }
}

/// What a pool keeps raw by default, and packs in this way.
fn rules(profile: Scheme, bits: Bits, chunk: usize) -> Preset {
    let mut rules = Preset::default();
    (rules.profile, rules.k_bits, rules.v_bits) = (profile, bits, bits);
    (rules.chunk, rules.key_scale) = (chunk, false);
    rules
}

/// The ways to pack that the options name: profiles at rates, then presets.
fn packings(args: &SweepArgs, dim: usize) -> Result<Vec<Packing>, Fail> {
    let layout = |scheme, chunk| PageLayout::with("--dim", dim, scheme, chunk);
    let mut packings = Vec::new();
    for profile in &args.profile {
        let scheme = match profile {
            Profile::Compat => Scheme::Compat,
            Profile::Tuned => Scheme::Tuned,
            Profile::Paper => Scheme::Paper,
        };
        for &bits in &args.bits {
            for &chunk in &args.chunk {
                let bits = Bits::new("--bits", bits)?;
                let at = |error| Fail::from(error).at(format!("--profile {}", scheme.name()));
                packings.push(Packing {
                    keys: layout(scheme.key_scheme(bits), chunk).map_err(at)?,
                    values: layout(scheme.scheme(bits), chunk).map_err(at)?,
                    rules: rules(scheme, bits, chunk),
                    preset: None,
                });
            }
        }
    }
    for &bits in &args.presets {
        let preset = Preset::for_bits(bits).map_err(|e| Fail::from(e).at("--presets"))?;
        let [keys, values] = preset.layouts(dim, dim).map_err(|e| Fail::from(e).at("--dim"))?;
        packings.push(Packing {
            keys: layout(preset.profile.key_scheme(preset.k_bits), keys.chunk())?,
            values,
            rules: preset,
            preset: Some(bits),
        });
    }
    Ok(packings)
}

/// The cases of a shape.
fn cases(args: &SweepArgs, shape: Shape) -> Result<Vec<Case>, Fail> {
    let packings = packings(args, shape.dim)?;
    let plain = Case {
        method: Method::Score,
        shape,
        group: None,
        pages_of: None,
        adaptive: None,
        ragged: None,
        stepped: None,
        kept: None,
    };
    let kept = ((shape.tokens as f64 * args.keep) as usize).max(1);
    let mut cases = Vec::new();
    for &method in &args.methods {
        let case = Case { method, ..plain.clone() };
        match method {
            Method::Score => cases.push(case),
            Method::Select | Method::Compact => cases.push(Case { kept: Some(kept), ..case }),
            Method::Keep | Method::Evict => {
                for adaptive in [false, true] {
                    if !adaptive || args.adaptive {
                        let adaptive = Some(adaptive);
                        cases.push(Case { kept: Some(kept), adaptive, ..case.clone() });
                    }
                }
            }
            Method::Encode => cases.extend(
                packings.iter().map(|&pages| Case { pages_of: Some(pages), ..case.clone() }),
            ),
            Method::AttendRaw => cases.extend(
                args.group.iter().map(|&group| Case { group: Some(group), ..case.clone() }),
            ),
            Method::AttendPacked => {
                for &pages in &packings {
                    for &group in &args.group {
                        let (group, pages_of) = (Some(group), Some(pages));
                        cases.push(Case { group, pages_of, ..case.clone() });
                    }
                }
            }
            Method::AttendPaged => {
                for &pages in &packings {
                    for &group in &args.group {
                        let (group, pages_of) = (Some(group), Some(pages));
                        let case = Case { group, pages_of, ..case.clone() };
                        let case = Case { ragged: Some(false), stepped: Some(false), ..case };
                        cases.push(case.clone());
                        if args.ragged {
                            cases.push(Case { ragged: Some(true), ..case.clone() });
                        }
                        if args.stepped {
                            cases.push(Case { stepped: Some(true), ..case });
                        }
                    }
                }
            }
        }
    }
    cases.retain(|case| case.pages_of.is_none_or(|pages| shape.tokens >= pages.keys.chunk()));
    Ok(cases)
}

/// Least, median and most.
fn spread(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    let at = |index: usize| times.get(index).copied().unwrap_or(f64::NAN);
    [at(0), at(times.len() / 2), at(times.len().saturating_sub(1))]
}

/// Runs something that measures itself if it can; seconds, by the GPU's clock or the host's.
fn clocked(run: impl FnOnce() -> Result<Vec<Span>, Fail>) -> Result<(f64, &'static str), Fail> {
    let start = Instant::now();
    let spans = run()?;
    let wall = start.elapsed().as_secs_f64();
    let times: Option<Vec<f64>> = spans.iter().map(|span| span.nanoseconds).collect();
    Ok(match times {
        Some(times) if !times.is_empty() => (times.iter().sum::<f64>() / 1e9, "gpu"),
        _ => (wall, "wall"),
    })
}

/// A case on a device.
struct Job<'a, 'b> {
    loaded: &'a Loaded<'b>,
    baseline: bool,
    case: Case,
    prepared: Prepared,
    dispatches: u64,
}

impl Job<'_, '_> {
    /// Runs it once; the time of the whole, and those of its kernels if they are asked for.
    fn time(&mut self, stages: bool) -> Result<Vec<Span>, Fail> {
        let (spans, count) = self.loaded.time(&self.case, &self.prepared, stages)?;
        self.dispatches = count;
        Ok(spans)
    }

    /// How far its answer is from that of the CPU path, and how far it may be.
    fn check(&mut self, data: &Data, integers: bool) -> Result<(f64, f64), Fail> {
        let got = self.loaded.answer(&self.case, &self.prepared)?;
        let mut before = data::before(data, &self.case)?;
        if let (data::Before::Scores(scores), Some(on_gpu)) =
            (&mut before, self.loaded.scores_back()?)
        {
            *scores = on_gpu;
        }
        let want = data::run(data, &self.case, &before)?;
        Ok(data::apart(&self.case, &got, &want, integers))
    }
}

/// Times cases on one device or two of them, the second the baseline.
fn on_gpu(
    gpus: &[(&Gpu, bool)],
    args: &SweepArgs,
    data: &Data,
    cases: &[Case],
    bar: &ProgressBar,
) -> Result<Vec<Line>, Fail> {
    let scored =
        |case: &Case| matches!(case.method, Method::Select | Method::Compact | Method::Keep);
    let scored = cases.iter().any(scored);
    let loaded = gpus.iter().map(|(gpu, _)| Loaded::new(gpu, data, scored));
    let loaded = loaded.collect::<Result<Vec<_>, _>>()?;
    let Some((first, _)) = gpus.first() else { return Ok(Vec::new()) };
    let copy = Copy::new(first)?;
    let mut jobs = Vec::new();
    for case in cases {
        for (loaded, &(_, baseline)) in loaded.iter().zip(gpus) {
            let (prepared, case) = (loaded.prepare(data, case)?, case.clone());
            jobs.push(Job { loaded, baseline, case, prepared, dispatches: 0 });
        }
    }
    let mut times = vec![Vec::new(); jobs.len() + 1];
    let mut clock = "gpu";
    // All cases take turns, so that a clock that moves moves them together.
    for round in 0..args.warmup + args.repeats {
        let mut found = vec![clocked(|| copy.time())?];
        for job in &mut jobs {
            found.push(clocked(|| job.time(false))?);
        }
        if round >= args.warmup {
            for (times, (time, from)) in times.iter_mut().zip(found) {
                times.push(time);
                clock = if from == "wall" { "wall" } else { clock };
            }
        }
        bar.inc(1);
    }
    let mut times = times.into_iter().map(spread);
    let [_, pace, _] = times.next().unwrap_or([f64::NAN; 3]);
    let pace = copy.bytes() as f64 / pace;
    let mut lines = Vec::new();
    for (mut job, [least, median, most]) in jobs.into_iter().zip(times) {
        let mut stages: Vec<(&'static str, Vec<f64>)> = Vec::new();
        for _ in 0..if args.stages { args.repeats } else { 0 } {
            for (index, span) in job.time(true)?.iter().enumerate() {
                if stages.len() <= index {
                    stages.push((span.label, Vec::new()));
                }
                stages[index].1.push(span.nanoseconds.unwrap_or(f64::NAN) / 1e9);
            }
        }
        let small = job.case.shape.elements() <= args.check;
        let checked = if small { Some(job.check(data, args.integer_dots)?) } else { None };
        lines.push(Line {
            baseline: job.baseline,
            median,
            least,
            most,
            clock,
            copy: pace,
            dispatches: Some(job.dispatches),
            checked,
            stages: stages.into_iter().map(|(name, times)| (name, spread(times)[1])).collect(),
            best: None,
            even: None,
            prompt: None,
            case: job.case,
        });
        bar.inc(1);
    }
    Ok(lines)
}

/// Puts the cases of a shape beside each other that differ in one thing alone.
fn compare(lines: &mut [Line]) {
    let key = |case: Case, baseline| (case.kind(), baseline);
    let own: Vec<_> = lines.iter().map(|line| key(line.case.clone(), line.baseline)).collect();
    let medians: Vec<f64> = lines.iter().map(|line| line.median).collect();
    let find = |key: &(String, bool)| Some(medians[own.iter().position(|own| own == key)?]);
    for line in lines {
        let case = || line.case.clone();
        if line.baseline {
            line.best = find(&key(case(), false));
        }
        if line.case.ragged == Some(true) {
            line.even = find(&key(Case { ragged: Some(false), ..case() }, line.baseline));
        }
        if line.case.stepped == Some(true) {
            line.prompt = find(&key(Case { stepped: Some(false), ..case() }, line.baseline));
        }
    }
}

fn on_cpu(
    args: &SweepArgs,
    data: &Data,
    cases: Vec<Case>,
    bar: &ProgressBar,
) -> Result<Vec<Line>, Fail> {
    let mut lines = Vec::new();
    let mut to = data.keys.clone();
    for case in cases {
        let before = data::before(data, &case)?;
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..args.warmup + args.repeats {
            let start = Instant::now();
            to.copy_from_slice(std::hint::black_box(&data.keys));
            std::hint::black_box(&to);
            let copied = start.elapsed().as_secs_f64();
            let start = Instant::now();
            std::hint::black_box(data::run(data, &case, &before)?);
            let ran = start.elapsed().as_secs_f64();
            if round >= args.warmup {
                times[0].push(copied);
                times[1].push(ran);
            }
        }
        let [copied, ran] = times.map(spread);
        lines.push(Line {
            case,
            baseline: false,
            median: ran[1],
            least: ran[0],
            most: ran[2],
            clock: "wall",
            copy: 4.0 * data.keys.len() as f64 / copied[1],
            dispatches: None,
            checked: None,
            stages: Vec::new(),
            best: None,
            even: None,
            prompt: None,
        });
        bar.inc(1);
    }
    Ok(lines)
}

/// `sweep`.
pub fn run(args: &SweepArgs, common: &Common) -> Result<(), Fail> {
    let args = &args.settled();
    let shapes = shapes::shapes(args)?
        .into_iter()
        .map(|shape| Ok((shape, cases(args, shape)?)))
        .collect::<Result<Vec<_>, Fail>>()?;
    if let Some(folder) = &args.output {
        make_folder(folder)?;
        // Tried before any work is done.
        for name in FILES {
            try_place(&folder.join(name), &[])?;
        }
    }
    let kind = match (args.baseline, args.integer_dots) {
        (true, _) => Kind::Baseline,
        (_, true) => Kind::Integers,
        _ => Kind::Full,
    };
    let engine = Engine::open_as(common, kind)?;
    let second = match &engine {
        Engine::Gpu(_) if args.beside_baseline => Some(Engine::open_as(common, Kind::Baseline)?),
        _ => None,
    };
    let mut gpus = Vec::new();
    for (engine, baseline) in [(Some(&engine), args.baseline), (second.as_ref(), true)] {
        if let Some(Engine::Gpu(gpu)) = engine {
            gpus.push((&**gpu, baseline));
        }
    }
    let rounds = match &engine {
        Engine::Gpu(_) => args.warmup + args.repeats,
        Engine::Cpu => 0,
    };
    let each = gpus.len().max(1);
    let steps = shapes.iter().map(|(_, cases)| rounds + each * cases.len()).sum();
    let bar = progress(steps, "timing");
    let mut lines = Vec::new();
    for (shape, cases) in shapes {
        let data = Data::new(shape)?;
        let mut own = match &engine {
            Engine::Gpu(_) => on_gpu(&gpus, args, &data, &cases, &bar)?,
            Engine::Cpu => on_cpu(args, &data, cases, &bar)?,
        };
        compare(&mut own);
        lines.extend(own);
    }
    bar.finish_and_clear();
    report(&lines, &engine.name(), common)?;
    if let Some(folder) = &args.output {
        save(folder, &lines, &engine.name())?;
    }
    for line in &lines {
        if let Some((error, allowed)) = line.checked
            && error > allowed
        {
            let name = line.case.curve();
            let tokens = line.case.shape.tokens;
            let message = format!(
                "{name}, {tokens} tokens: {error:.1e} from the CPU path, {allowed:.1e} allowed"
            );
            return Err(Fail { code: 1, message, limit: false });
        }
    }
    Ok(())
}

/// Prints JSON lines or a table.
fn report(lines: &[Line], engine: &str, common: &Common) -> Result<(), Fail> {
    if common.json {
        return lines.iter().try_for_each(|line| print(&line.json(engine).to_string()));
    }
    let head = ["case", "tokens", "MiB", "ms", "least", "GB/s", "of copy", "error"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for line in lines {
        let bytes = line.case.bytes() as f64;
        rows.push(vec![
            line.case.curve(),
            line.case.shape.tokens.to_string(),
            format!("{:.1}", bytes / f64::from(1 << 20)),
            format!("{:.4}", line.median * 1e3),
            format!("{:.4}", line.least * 1e3),
            format!("{:.1}", bytes / line.median / 1e9),
            format!("{:.3}", bytes / line.median / line.copy),
            line.checked.map_or_else(|| "-".into(), |checked| format!("{:.1e}", checked.0)),
        ]);
        for (name, ratio) in line.ratios() {
            let what = match name {
                "of_best" => "the best of this device",
                "of_even" => "even heads",
                _ => "the same after a prompt",
            };
            if let Some(ratio) = ratio {
                rows.push(vec![format!("  {ratio:.3} times {what}")]);
            }
        }
        for (name, time) in &line.stages {
            let ms = format!("{:.4}", time * 1e3);
            rows.push(vec![format!("  {name}"), String::new(), String::new(), ms]);
        }
    }
    table(&rows).iter().try_for_each(|line| print(line))
}

/// Names of the report's files.
const FILES: [&str; 6] =
    ["sweep.jsonl", "sweep.csv", "time.svg", "linear.svg", "bytes.svg", "roofline.svg"];

/// Writes the report's files.
fn save(folder: &Path, lines: &[Line], engine: &str) -> Result<(), Fail> {
    let write = |name: &str, text: String| write_whole(&folder.join(name), text.as_bytes());
    let objects: Vec<String> = lines.iter().map(|line| line.json(engine).to_string()).collect();
    write("sweep.jsonl", objects.join("\n") + "\n")?;
    let mut csv = Vec::new();
    for line in lines {
        let fields = line.fields();
        if csv.is_empty() {
            csv.push(fields.iter().map(|(name, _)| (*name).into()).collect::<Vec<String>>());
        }
        csv.push(
            fields
                .iter()
                .map(|(_, value)| match value {
                    Value::Null => String::new(),
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                })
                .collect(),
        );
    }
    let csv: Vec<String> = csv.iter().map(|fields| fields.join(",")).collect();
    write("sweep.csv", csv.join("\n") + "\n")?;
    plot::plots(folder, lines)
}
