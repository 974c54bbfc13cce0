//! The score as a whole, on both paths against the judge.

use super::budgets::select;
use crate::conformance::draw::{DTYPES, Data, Random};
use crate::conformance::reference::{self, Score};
use crate::conformance::run::{Job, Origin, Run};
use crate::error::Result;
use crate::gpu::{DeviceTensor, Slice};
use crate::judge::nestedkv::{Constants, Scored, score as judged};
use crate::judge::widen;
use crate::nestedkv::plan::FLAT_SPAN;
use crate::nestedkv::{Budget, EvictConfig, ScoreConfig, cpu, gpu};
use crate::shape::{Dtype, Tensor};

/// Keys of random shape, type and content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem {
    pub rows: usize,
    pub tokens: usize,
    pub dim: usize,
    pub dtype: Dtype,
    pub seed: u64,
    pub kind: Kind,
}

/// What keys are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Plain,
    /// A common offset, so that means are large.
    Offset,
    Constant,
    Zero,
    /// Every token occurs several times.
    Duplicated,
    /// As large as the type allows.
    Huge,
    /// As small as the type allows.
    Tiny,
    /// Some rows zero, some huge, some tiny, some NaN or Inf.
    Mixed,
}

const KINDS: [Kind; 11] = [
    Kind::Plain,
    Kind::Plain,
    Kind::Offset,
    Kind::Offset,
    Kind::Constant,
    Kind::Zero,
    Kind::Duplicated,
    Kind::Huge,
    Kind::Tiny,
    Kind::Mixed,
    Kind::Mixed,
];

const DIMS: [usize; 12] = [16, 32, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512];

impl Problem {
    pub fn draw(run: &mut Run<'_>) -> Self {
        const EDGES: [usize; 12] = [2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257];
        let tokens = match run.random.below(7) {
            0..4 => run.count(1, 200),
            4..6 => run.random.pick(&EDGES),
            _ => run.count(1, 3000),
        };
        let dim = run.random.pick(&DIMS);
        // Long rows come narrow and few.
        let rows = run.count(1, 6).min(1 + 60_000 / (tokens * dim));
        let (dtype, kind) = (run.random.pick(&DTYPES), run.random.pick(&KINDS));
        Self { rows, tokens, dim, dtype, seed: run.random.bits(), kind }
    }

    pub fn keys(&self) -> Data {
        let Self { rows, tokens, dim, .. } = *self;
        let uniform = |seed: u64, count: usize| -> Vec<f32> {
            let mut random = Random(seed);
            (0..count).map(|_| random.within(-1.0, 1.0)).collect()
        };
        let mut values = uniform(self.seed, rows * tokens * dim);
        let (huge, tiny) = match self.dtype {
            Dtype::F16 => (6e4, 3e-7),
            Dtype::F32 | Dtype::Bf16 => (3e38, 1e-38),
        };
        for (row, key) in values.chunks_exact_mut(dim).enumerate() {
            let token = row % tokens;
            match self.kind {
                Kind::Plain => {}
                Kind::Offset => key.iter_mut().for_each(|x| *x += 0.7),
                Kind::Constant => key.fill(0.5),
                Kind::Zero => key.fill(0.0),
                Kind::Duplicated => {
                    key.copy_from_slice(&uniform(self.seed ^ (1 + token as u64 % 7), dim));
                }
                Kind::Huge => key.iter_mut().for_each(|x| *x *= huge),
                Kind::Tiny => key.iter_mut().for_each(|x| *x *= tiny),
                Kind::Mixed => match token % 11 {
                    3 => key.fill(0.0),
                    5 => key.iter_mut().for_each(|x| *x *= huge),
                    7 => key.iter_mut().for_each(|x| *x *= tiny),
                    8 => key[token % dim] = f32::NAN,
                    9 => key[dim - 1] = f32::NEG_INFINITY,
                    _ => {}
                },
            }
        }
        Data::new(&values, self.dtype)
    }

    pub fn tensor<'a>(&self, buffer: &'a wgpu::Buffer) -> Result<DeviceTensor<'a>> {
        let Self { rows, tokens, dim, dtype, .. } = *self;
        DeviceTensor::new("keys", Slice::all(buffer), dtype, rows, tokens, dim)
    }
}

/// Constants over all of their range that means something.
pub(super) fn config(random: &mut Random) -> ScoreConfig {
    let window = match random.below(7) {
        0..4 => 64,
        4..6 => random.between(1, 99) as u32,
        _ => random.pick(&[1, 2, 255, 256, 257, 300, 1000, u32::MAX]),
    };
    ScoreConfig {
        window,
        beta: random.within(-5.0, 10.0),
        tau: random.within(-1.0, 2.0),
        kappa: random.within(-20.0, 20.0),
        prior: [0; 3].map(|_| random.within(0.01, 2.0)),
        rectify: random.odds(2),
    }
}

/// Scores of one path.
struct Path<'a> {
    name: &'static str,
    score: &'a [f32],
    scales: [&'a [f32]; 3],
    blend: &'a [f32],
}

/// Scores, stretched scales `[3, rows, tokens]` and blends of keys on the GPU.
async fn on_gpu(
    run: &mut Run<'_>,
    keys: &Data,
    [rows, tokens, dim]: [usize; 3],
    config: &ScoreConfig,
) -> Result<[Vec<f32>; 3]> {
    let buffer = run.upload(keys.view().bytes())?;
    let dtype = keys.view().dtype();
    let tensor = DeviceTensor::new("keys", Slice::all(&buffer), dtype, rows, tokens, dim)?;
    let scores = run.record(|rec| gpu::score(rec, &tensor, config))?;
    let count = rows * tokens;
    Ok([
        run.read(&scores.score, count).await?,
        run.read(&scores.scales, 3 * count).await?,
        run.read(&scores.blend, count).await?,
    ])
}

/// Both paths' scores of keys, held to a check.
async fn both(
    run: &mut Run<'_>,
    keys: &Data,
    shape: [usize; 3],
    config: &ScoreConfig,
    check: &dyn Fn(&mut Run<'_>, &Path<'_>),
) -> Result<Vec<f32>> {
    let [rows, tokens, dim] = shape;
    let count = rows * tokens;
    let [score, scales, blend] = on_gpu(run, keys, shape, config).await?;
    let parts = core::array::from_fn(|k| &scales[k * count..(k + 1) * count]);
    check(run, &Path { name: "GPU", score: &score, scales: parts, blend: &blend });
    let host = cpu::score_batched(&Tensor::new("keys", keys.view(), rows, tokens, dim)?, config)?;
    let parts = host.scales.each_ref().map(Vec::as_slice);
    check(run, &Path { name: "CPU", score: &host.score, scales: parts, blend: &host.blend });
    Ok(score)
}

/// Compares what a path found with the judge, row by row, within what f32 allows: an anomaly is exact
/// to 1e-6, the stretch divides by its span, the blend multiplies by the gaps' weight, the gate by its
/// slope.
fn judge_rows(
    run: &mut Run<'_>,
    path: &Path<'_>,
    truth: &[Scored],
    tokens: usize,
    config: &ScoreConfig,
) {
    let label = |what: &str| format!("{what} on the {}", path.name);
    let compare = |run: &mut Run<'_>, what: &str, got: &[f32], want: &[f64], allowed: f64| {
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            run.checks.near(&label(what), at, f64::from(*got), *want, allowed);
        }
    };
    for (row, truth) in truth.iter().enumerate() {
        let range = row * tokens..(row + 1) * tokens;
        let score = &path.score[range.clone()];
        for (at, (got, want)) in score.iter().zip(&truth.score).enumerate() {
            run.checks.hold(got.is_finite() && (*got < 0.0) == (*want < 0.0), || {
                format!("{} [{at}]: {got}, expected {want}", label("score"))
            });
        }
        // A span close to the bound may count as none on one side only.
        let close = 2e-7..5e-6;
        if truth.span.iter().any(|span| close.contains(span)) {
            continue;
        }
        let span = truth.span.into_iter().filter(|s| *s > 1e-6).fold(1.0f64, f64::min);
        let unit = 1e-6 / span + 2e-6;
        for (scale, want) in path.scales.iter().zip(&truth.scales) {
            compare(run, "stretched score", &scale[range.clone()], want, unit);
        }
        let slope = 1.0 + 2.0 * f64::from(config.beta.abs());
        let allowed = unit * slope * truth.weights.iter().sum::<f64>().max(1.0);
        compare(run, "blend", &path.blend[range.clone()], &truth.blend, allowed);
        // The surprise is stretched too, so the span of the deviations counts.
        let deviation = |at: usize| {
            let a: [f64; 3] = core::array::from_fn(|k| truth.scales[k][at]);
            let mean = a.iter().sum::<f64>() / 3.0;
            (a.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 3.0).sqrt()
        };
        let deviations: Vec<f64> = (0..tokens).map(deviation).collect();
        let low = deviations.iter().copied().fold(f64::INFINITY, f64::min);
        let span = deviations.iter().copied().fold(0.0, f64::max) - low;
        if close.contains(&span) {
            continue;
        }
        let slope = if span > 0.0 { f64::from(config.kappa.abs()) / span.max(1e-6) } else { 0.0 };
        compare(run, "score", score, &truth.score, allowed + unit * (1.0 + slope));
    }
}

pub(super) fn score<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        if let Origin::Reference(number) = run.origin {
            return golden(run, &reference::score(number)?).await;
        }
        let (problem, config) = (Problem::draw(run), config(&mut run.random));
        let Problem { rows, tokens, dim, .. } = problem;
        let constants = Constants {
            window: config.window as usize,
            beta: config.beta.into(),
            tau: config.tau.into(),
            kappa: config.kappa.into(),
            prior: config.prior.map(f64::from),
            rectify: config.rectify,
            flat: FLAT_SPAN.into(),
        };
        let keys = problem.keys();
        let truth: Vec<Scored> = widen(keys.view())
            .chunks(tokens * dim)
            .map(|row| judged(row, dim, &constants))
            .collect();
        let check =
            |run: &mut Run<'_>, path: &Path<'_>| judge_rows(run, path, &truth, tokens, &config);
        both(run, &keys, [rows, tokens, dim], &config, &check).await.map(|_| ())
    })
}

/// A reference case, within the tolerances that its index gives.
async fn golden(run: &mut Run<'_>, case: &Score) -> Result<()> {
    let [rows, tokens, _] = case.shape;
    let check = |run: &mut Run<'_>, path: &Path<'_>| {
        let mut compare = |what: &str, got: &[f32], want: &[f64], allowed: f64| {
            let label = format!("{what} of {} on the {}", case.name, path.name);
            for (at, (got, want)) in got.iter().zip(want).enumerate() {
                match case.ill {
                    true => run.checks.hold((0.0..=1.0).contains(got), || {
                        format!("{label} [{at}]: {got} is not within 0 to 1")
                    }),
                    false => run.checks.near(&label, at, f64::from(*got), *want, allowed),
                }
            }
        };
        let [finals, blends, stretched] = case.tolerances;
        compare("score", path.score, &case.finals, finals);
        compare("blend", path.blend, &case.blend, blends);
        for (scale, want) in path.scales.iter().zip(case.scales.chunks(rows * tokens)) {
            compare("stretched score", scale, want, stretched);
        }
    };
    let score = both(run, &case.keys, case.shape, &case.config, &check).await?;
    for kept in &case.kept {
        let budget = Budget::Uniform(kept.budget);
        let config = EvictConfig { sinks: kept.sinks, ..EvictConfig::new(budget) };
        let got = select(run, &score, rows, tokens, &config).await?;
        for row in (0..rows).filter(|_| !case.ill) {
            // Equal but for tokens at the border, which rounding may put on either side.
            let want = &kept.positions[row * kept.each()..][..kept.each()];
            let truth = &case.finals[row * tokens..][..tokens];
            let chosen = want.iter().filter(|p| **p >= kept.sinks).map(|p| truth[*p as usize]);
            let edge = chosen.fold(f64::INFINITY, f64::min);
            let strangers = got.row(row).iter().filter(|p| !want.contains(p));
            for p in strangers.chain(want.iter().filter(|p| !got.row(row).contains(p))) {
                let what = format!("border of the selection of {}", case.name);
                run.checks.near(&what, *p as usize, truth[*p as usize], edge, 1e-5);
            }
        }
    }
    Ok(())
}
