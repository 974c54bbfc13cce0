//! `compress`, the main job: evict, pack, and report bytes and errors against the input.

use serde_json::{Value, json};
use wgkv::attention::AttendConfig;
use wgkv::shape::Elements;

use crate::args::{Common, CompressArgs};
use crate::attend::{Cache, attend, take_rows};
use crate::engine::Engine;
use crate::file::{Data, Fail, Output, Source, shown, try_place, write_whole};
use crate::layers::{Dense, Kind, Names, Pair, layers, want};
use crate::nested::{check_keeping, evict_config, score_config, select};
use crate::packed::{Packed, Side, write_codebook};
use crate::packing::{Spec, pack, restore};
use crate::picture::Picture;
use crate::ragged::Ragged;
use crate::report::{print, progress, spread, table};

/// How far restored values are from what went in.
#[derive(Clone, Copy, Debug, Default)]
struct Errors {
    difference: f64,
    want: f64,
    got: f64,
    product: f64,
    max: f64,
}

impl Errors {
    fn of(got: &[f32], want: Elements<'_>) -> Self {
        let mut errors = Self::default();
        let finite = |v: f32| if v.is_finite() { f64::from(v) } else { 0.0 };
        for (i, &g) in got.iter().enumerate() {
            let (g, w) = (finite(g), finite(want.get(i)));
            errors.difference += (g - w) * (g - w);
            errors.want += w * w;
            errors.got += g * g;
            errors.product += g * w;
            errors.max = errors.max.max((g - w).abs());
        }
        errors
    }

    fn add(&mut self, other: Self) {
        self.difference += other.difference;
        self.want += other.want;
        self.got += other.got;
        self.product += other.product;
        self.max = self.max.max(other.max);
    }

    /// Norm of the difference over the norm of what went in; 0 where nothing went in or came out.
    fn relative(&self) -> f64 {
        if self.difference == 0.0 { 0.0 } else { (self.difference / self.want).sqrt() }
    }

    fn cosine(&self) -> f64 {
        let norms = (self.want * self.got).sqrt();
        if norms == 0.0 { 1.0 } else { self.product / norms }
    }

    fn json(&self) -> Value {
        let number = |v: f64| if v.is_finite() { json!(v) } else { Value::Null };
        json!({
            "relative_rms": number(self.relative()),
            "cosine": number(self.cosine()),
            "max_abs": number(self.max),
        })
    }
}

/// Bytes of a packed layer, by part.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    before: u64,
    codes: u64,
    scales: u64,
    means: u64,
    raw: u64,
    positions: u64,
    tables: u64,
    padding: u64,
    input_elements: u64,
    kept_elements: u64,
}

impl Bytes {
    fn of(pair: &Pair, packed: &Packed) -> Self {
        let size = |n: usize| n as u64;
        let mut bytes = Self::default();
        for (side, dense) in [(&packed.k, &pair.k), (&packed.v, &pair.v)] {
            let layout = side.codec.layout();
            let pages = side.pages.len() / layout.words();
            let input = dense.data.elements();
            bytes.before += size(input.bytes().len());
            bytes.codes += size(pages * layout.code_bytes());
            bytes.scales += size(pages * layout.scale_bytes());
            let factors = side.scales.as_ref().map_or(0, |scales| scales.values.len());
            bytes.scales += 2 * size(factors);
            bytes.means += size(pages * layout.mean_bytes());
            bytes.padding += size(pages * (4 * layout.words() - layout.data_bytes()));
            bytes.raw += size(side.raw.elements().bytes().len());
            bytes.input_elements += size(input.len());
            bytes.kept_elements +=
                size(side.raw.elements().len() + pages * layout.chunk() * layout.head_dim());
        }
        bytes.positions = 4 * packed.positions.as_ref().map_or(0, |list| size(list.len()));
        bytes.tables = 4 * size(packed.offsets.len() + packed.page_offsets.len());
        bytes
    }

    fn add(&mut self, other: Self) {
        self.before += other.before;
        self.codes += other.codes;
        self.scales += other.scales;
        self.means += other.means;
        self.raw += other.raw;
        self.positions += other.positions;
        self.tables += other.tables;
        self.padding += other.padding;
        self.input_elements += other.input_elements;
        self.kept_elements += other.kept_elements;
    }

    fn after(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    fn parts(&self) -> [(&'static str, u64); 7] {
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

    fn bits(&self, elements: u64) -> f64 {
        if elements == 0 { 0.0 } else { 8.0 * self.after() as f64 / elements as f64 }
    }

    fn json(&self) -> Value {
        let mut after = serde_json::Map::new();
        for (part, bytes) in self.parts() {
            after.insert(part.into(), bytes.into());
        }
        after.insert("total".into(), self.after().into());
        json!({
            "bytes_before": self.before,
            "bytes_after": after,
            "bits_per_element": self.bits(self.kept_elements),
            "bits_per_input_element": self.bits(self.input_elements),
            "ratio": self.before as f64 / self.after().max(1) as f64,
        })
    }
}

/// What is reported of one layer.
struct Report {
    layer: u32,
    tokens: usize,
    kept: Vec<u32>,
    sinks_only: bool,
    assigned_avg_bits: f64,
    bytes: Bytes,
    k: Errors,
    v: Errors,
    /// Outputs of attention to what stays, packed and raw, against the input.
    outputs: Option<[Errors; 2]>,
}

impl Report {
    fn json(&self) -> Value {
        let mut object = json!({
            "layer": self.layer,
            "tokens": self.tokens,
            "kept": self.kept,
            "sinks_only": self.sinks_only,
            "assigned_avg_bits": self.assigned_avg_bits,
            "k": self.k.json(),
            "v": self.v.json(),
        });
        if let Some([packed, evicted]) = &self.outputs {
            object["outputs"] = packed.json();
            object["outputs_evicted_only"] = evicted.json();
        }
        if let (Some(object), Value::Object(bytes)) = (object.as_object_mut(), self.bytes.json()) {
            object.extend(bytes);
        }
        object
    }
}

/// `compress`.
pub fn run(args: &CompressArgs, common: &Common) -> Result<(), Fail> {
    score_config(&args.scoring)?;
    check_keeping(&args.keeping)?;
    let spec = Spec::new(&args.packing, args.sinks.sinks, false)?;
    let mut source = Source::open(&args.input)?;
    want(&source, &[Kind::Dense], "keys and values")?;
    let list = layers(&source, common.layers.as_deref())?;
    for (layer, names) in &list {
        Pair::check(&source, *layer, names)?;
        if names.contains_key("q") {
            Dense::check(&source, *layer, names, "q")?;
        }
    }
    let mut output = Output::create(&args.out.output, &[&args.input])?;
    let mut picture = None;
    if let Some(path) = &args.plot {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        if ending.is_some_and(|ending| ending != "svg") {
            let message = "--plot draws SVG, give a name that ends in .svg";
            return Err(Fail::input(message).at(shown(&path.display().to_string())));
        }
        // Tried like a file of tensors, before any work is done.
        try_place(path, &[&args.input, &args.out.output])?;
        let mut tokens = 0;
        for (layer, names) in &list {
            tokens = tokens.max(Dense::check(&source, *layer, names, "k")?.1[2]);
        }
        picture = Some(Picture::new(tokens));
    }
    let engine = Engine::open(common)?;
    let bar = progress(list.len(), "compressing");
    let mut reports = Vec::with_capacity(list.len());
    for (layer, names) in list {
        let (report, packed) =
            one(args, &spec, &engine, &mut source, layer, &names, picture.as_mut())?;
        packed.write(layer, &mut output)?;
        reports.push(report);
        bar.inc(1);
    }
    bar.finish_and_clear();
    write_codebook(&spec.codebook, spec.profile, &mut output);
    let drawn = match &picture {
        Some(picture) => {
            let mut total = Bytes::default();
            reports.iter().for_each(|report| total.add(report.bytes));
            picture.draw(total.before, &total.parts())?
        }
        None => String::new(),
    };
    let output_bytes = output.finish()?;
    if let Some(path) = &args.plot {
        write_whole(path, drawn.as_bytes())?;
    }
    show(common, &engine, &reports, output_bytes)
}

fn one(
    args: &CompressArgs,
    spec: &Spec,
    engine: &Engine,
    source: &mut Source,
    layer: u32,
    names: &Names,
    mut picture: Option<&mut Picture>,
) -> Result<(Report, Packed), Fail> {
    let pair = Pair::read(source, layer, names)?;
    let queries = match names.contains_key("q") {
        true => Some(Dense::read(source, layer, names, "q")?),
        false => None,
    };
    let config = evict_config(
        score_config(&args.scoring)?,
        &args.keeping,
        args.sinks.sinks,
        pair.k.tokens,
        pair.k.heads,
    );
    let (kept, scores) = select(engine, &pair.k, &config, layer)
        .map_err(|e| e.at(shown(&pair.k.name)).at(source.name()))?;
    if let Some(picture) = &mut picture {
        for (row, span) in kept.offsets.windows(2).enumerate() {
            let scores = &scores[row * pair.k.tokens..(row + 1) * pair.k.tokens];
            let kept = &kept.positions[span[0] as usize..span[1] as usize];
            picture.add_head(layer, row, scores, kept);
        }
    }
    let rows = |dense: &Dense| take_rows(dense, &kept.offsets, &kept.positions);
    let whole = kept.positions.len() == pair.k.rows() * pair.k.tokens;
    let evicted = Ragged {
        batch: pair.k.batch,
        heads: pair.k.heads,
        tokens: pair.k.tokens,
        k: rows(&pair.k),
        v: rows(&pair.v),
        offsets: kept.offsets,
        positions: (!whole).then_some(kept.positions),
        k_dim: pair.k.head_dim,
        v_dim: pair.v.head_dim,
        names: [pair.k.name.clone(), pair.v.name.clone()],
    };
    let packed = pack(engine, spec, &evicted).map_err(|e| e.at(source.name()))?;
    let (places, positions) = (packed.places(), packed.all_positions());
    let mut error = |number, side: &Side, data: &Data| -> Result<Errors, Fail> {
        let (got, want) = (restore(engine, side, &places, &positions)?, data.elements());
        if let Some(picture) = &mut picture {
            let dim = side.codec.layout().head_dim();
            for (row, (got, position)) in got.chunks_exact(dim).zip(&positions).enumerate() {
                let want = (row * dim..(row + 1) * dim).map(|at| want.get(at));
                picture.add_row(number, *position, got, want);
            }
        }
        Ok(Errors::of(&got, want))
    };
    let (k, v) = (error(0, &packed.k, &evicted.k)?, error(1, &packed.v, &evicted.v)?);
    let bytes = Bytes::of(&pair, &packed);
    let kept: Vec<u32> = packed.offsets.windows(2).map(|row| row[1] - row[0]).collect();
    let tokens = pair.k.tokens;
    let (outputs, packed) = match queries {
        None => (None, packed),
        Some(queries) => {
            let place = |e: Fail| e.at(shown(&queries.name)).at(source.name());
            let run = |cache: &Cache| {
                attend(engine, cache, &queries, AttendConfig::default().scale, args.causal)
            };
            let whole = run(&Cache::Rows(Ragged::of_pair(pair)?)).map_err(place)?;
            let raw = run(&Cache::Rows(evicted)).map_err(place)?;
            let cache = Cache::Packed(Box::new(packed));
            let small = run(&cache).map_err(place)?;
            let Cache::Packed(packed) = cache else {
                return Err(Fail::input("the cache is not packed"));
            };
            let want = Elements::F32(&whole);
            (Some([Errors::of(&small, want), Errors::of(&raw, want)]), *packed)
        }
    };
    let report = Report {
        layer,
        tokens,
        kept,
        sinks_only: config_below_sinks(&config, tokens),
        assigned_avg_bits: wgkv::nsnquant::assigned_avg_bits(
            packed.k.codec.layout(),
            packed.v.codec.layout(),
            places.iter().map(|p| p.packed.len()).sum(),
        ),
        bytes,
        k,
        v,
        outputs,
    };
    Ok((report, packed))
}

/// Whether the budget is below the sinks, which stay all the same.
fn config_below_sinks(config: &wgkv::nestedkv::EvictConfig, tokens: usize) -> bool {
    use wgkv::nestedkv::Budget;
    let (Budget::Uniform(n) | Budget::Adaptive { per_head: n, .. }) = config.budget;
    let sinks = (config.sinks as usize).min(tokens);
    (n as usize) < sinks
}

fn show(
    common: &Common,
    engine: &Engine,
    reports: &[Report],
    output_bytes: u64,
) -> Result<(), Fail> {
    let mut total = Bytes::default();
    let (mut k, mut v) = (Errors::default(), Errors::default());
    let mut outputs: Option<[Errors; 2]> = None;
    for report in reports {
        total.add(report.bytes);
        k.add(report.k);
        v.add(report.v);
        if let Some([packed, evicted]) = report.outputs {
            let sums = outputs.get_or_insert_default();
            sums[0].add(packed);
            sums[1].add(evicted);
        }
    }
    if common.json {
        let mut object = json!({
            "runs_on": engine.name(),
            "output_bytes": output_bytes,
            "k": k.json(),
            "v": v.json(),
        });
        if let Some([packed, evicted]) = outputs {
            object["outputs"] = packed.json();
            object["outputs_evicted_only"] = evicted.json();
        }
        if let (Some(object), Value::Object(bytes)) = (object.as_object_mut(), total.json()) {
            object.extend(bytes);
        }
        object["layers"] = reports.iter().map(Report::json).collect();
        return print(&object.to_string());
    }
    let percent = |errors: &Errors| format!("{:.2}%", 100.0 * errors.relative());
    let mut rows = vec![
        ["layer", "tokens", "kept a head", "bits/element", "K error", "V error"]
            .map(String::from)
            .to_vec(),
    ];
    if outputs.is_some() {
        rows[0].extend(["output error", "(eviction alone)"].map(String::from));
    }
    for report in reports {
        let mut row = vec![
            report.layer.to_string(),
            report.tokens.to_string(),
            spread(&report.kept),
            format!("{:.3}", report.bytes.bits(report.bytes.kept_elements)),
            percent(&report.k),
            percent(&report.v),
        ];
        if let Some([packed, evicted]) = &report.outputs {
            row.extend([percent(packed), percent(evicted)]);
        }
        rows.push(row);
    }
    for line in table(&rows) {
        print(&line)?;
    }
    print("")?;
    let mut rows = vec![
        vec!["bytes before".to_string(), total.before.to_string()],
        vec!["bytes after".to_string(), total.after().to_string()],
    ];
    rows.extend(total.parts().map(|(part, bytes)| vec![format!("  {part}"), bytes.to_string()]));
    for line in table(&rows) {
        print(&line)?;
    }
    print(&format!(
        "\n{:.3} bits per kept element, {:.3} per input element, {:.1} times smaller; errors are \
         relative (rms); the file has {output_bytes} bytes",
        total.bits(total.kept_elements),
        total.bits(total.input_elements),
        total.before as f64 / total.after().max(1) as f64,
    ))
}
