//! The steps of the score, each against the CPU path's arithmetic on the same input.

use super::score::{Problem, config};
use crate::conformance::draw::{DTYPES, Random};
use crate::conformance::run::{Job, Run};
use crate::gpu::Slice;
use crate::nestedkv::cpu::anchor::to_grid;
use crate::nestedkv::cpu::anomaly::{Keys, Raw, anomaly as anomaly_on_cpu};
use crate::nestedkv::cpu::norm::{LIFT, apply, factor};
use crate::nestedkv::cpu::{
    blend as blend_on_cpu, spread as spread_on_cpu, surprise, surprise_gated_score_batched,
};
use crate::nestedkv::gpu;
use crate::nestedkv::plan::{Cut, GRID, RUN_TOKENS, SHORT_SUM};
use crate::primitives::order::order_key;
use crate::shape::Elements;

/// Head dimensions, one for each number of lanes that share a token first.
const DIMS: [usize; 4] = [64, 128, 256, 512];

/// Uniform values in -1 to 1.
fn uniform(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.within(-1.0, 1.0)).collect()
}

/// Highest key and highest complement of a key of every line.
fn extremes(scores: &[f32], tokens: usize) -> Vec<[u32; 2]> {
    let keys = |line: &[f32]| line.iter().map(|&score| order_key(score)).collect::<Vec<_>>();
    scores
        .chunks(tokens)
        .map(|line| {
            let keys = keys(line);
            let highest = keys.iter().copied().max().unwrap_or(0);
            [highest, keys.iter().map(|key| !key).max().unwrap_or(0)]
        })
        .collect()
}

/// A problem whose variant a covering case chooses.
fn problem(run: &mut Run<'_>) -> Problem {
    let (dtype, wide) = (run.cover(&DTYPES), run.cover(&DIMS));
    let mut problem = Problem::draw(run);
    problem.dtype = dtype;
    if run.covers() {
        problem.dim = wide;
    }
    problem.rows = problem.rows.min(1 + 60_000 / (problem.tokens * problem.dim));
    problem
}

pub(super) fn anchor<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let problem = problem(run);
        let block = run.random.between(1, SHORT_SUM);
        let Problem { rows, tokens, dim, .. } = problem;
        let keys = problem.keys();
        let buffer = run.upload(keys.view().bytes())?;
        let tensor = problem.tensor(&buffer)?;
        let found = run.record(|rec| gpu::anchor::record(rec, &tensor, block))?;
        let cut = Cut { tokens, block: block.min(tokens) };
        let got: Vec<i32> = run.read(&found.sums, rows * cut.runs() * dim).await?;
        let factors: Vec<f32> = run.read(&found.factors, rows * tokens).await?;
        let mut want = vec![0i32; rows * cut.runs() * dim];
        let mut key = vec![0.0; dim];
        for token in 0..rows * tokens {
            let bad = keys.view().read(token * dim, &mut key);
            let own = factor(&key);
            apply(&mut key, own);
            let (row, token) = (token / tokens, token % tokens);
            let part = token / cut.block * cut.pieces() + token % cut.block / RUN_TOKENS;
            let at = (row * cut.runs() + part) * dim;
            for channel in 0..dim {
                want[at + channel] += to_grid(key[channel]);
            }
            let at = row * tokens + token;
            run.checks.hold((factors[at] < 0.0) == bad, || {
                format!("factor [{at}]: {}, and the key is finite: {}", factors[at], !bad)
            });
            let (got, own) = (f64::from(factors[at].abs()), f64::from(own));
            run.checks.near("factor", at, got / own, 1.0, 1e-6);
        }
        // The sums are exact; the keys differ in the last bits of their norms.
        let allowed = 4.0 * RUN_TOKENS.min(tokens) as f64;
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            run.checks.near("sum of a run", at, f64::from(*got), f64::from(*want), allowed);
        }
        Ok(())
    })
}

pub(super) fn mean<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (rows, runs) = (run.count(1, 6), run.count(1, 200));
        let dim = run.random.pick(&[16usize, 32, 80, 112, 128, 512]);
        let values = uniform(&mut run.random, rows * runs * dim);
        let grid: Vec<i32> = values.iter().map(|x| (x * 64.0 * GRID) as i32).collect();
        let tokens = runs * RUN_TOKENS;
        let buffer = run.upload(&grid)?;
        let means =
            run.record(|rec| gpu::mean::record(rec, Slice::all(&buffer), rows, runs, dim, tokens))?;
        let got: Vec<f32> = run.read(&means, rows * dim).await?;
        for (at, got) in got.iter().enumerate() {
            let sums = &grid[at / dim * runs * dim..][..runs * dim];
            let sum: i64 = sums.iter().skip(at % dim).step_by(dim).map(|&x| i64::from(x)).sum();
            let want = sum as f64 / f64::from(GRID) / tokens as f64;
            // The sums are exact, so only the last steps round.
            run.checks.near("mean", at, f64::from(*got), want, 5e-7 * want.abs());
        }
        Ok(())
    })
}

/// Raw scores on the CPU, `[3, rows, tokens]`.
fn raw_scores(problem: &Problem, keys: Elements<'_>, block: usize, window: usize) -> Vec<f32> {
    let Problem { rows, tokens, dim, .. } = *problem;
    let mut scales = vec![0.0; 3 * rows * tokens];
    let mut factors = vec![0.0; rows * tokens];
    let mut parts: Vec<_> = scales.chunks_mut(tokens).collect();
    let current = parts.split_off(2 * rows);
    let episodic = parts.split_off(rows);
    let raws = parts
        .into_iter()
        .zip(episodic)
        .zip(current)
        .zip(factors.chunks_mut(tokens))
        .enumerate()
        .map(|(row, (((s, e), c), factors))| Raw {
            keys: Keys {
                data: keys.slice(row * tokens * dim..(row + 1) * tokens * dim),
                dim,
                normalised: false,
            },
            scores: [s, e, c],
            factors,
        })
        .collect();
    anomaly_on_cpu(raws, block, window);
    scales
}

pub(super) fn anomaly<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let mut problem = problem(run);
        let drawn = [
            (128, RUN_TOKENS),
            (run.random.between(1, 256), run.random.between(1, 100)),
            (run.random.between(1, 256), run.random.between(257, 700)),
        ];
        let way = run.cover(&[0usize, 1, 2]);
        let (block, window) = drawn[way];
        if run.covers() {
            // Long enough for the sums of a window that 32 bits do not hold.
            (problem.rows, problem.tokens) = (2, 300);
        }
        let Problem { rows, tokens, dim, .. } = problem;
        let block = block.min(tokens);
        let keys = problem.keys();
        let buffer = run.upload(keys.view().bytes())?;
        let tensor = problem.tensor(&buffer)?;
        let found = run.record(|rec| {
            let anchored = gpu::anchor::record(rec, &tensor, block)?;
            let runs = Cut { tokens, block }.runs();
            let sums = Slice::all(&anchored.sums);
            let means = gpu::mean::record(rec, sums, rows, runs, dim, tokens)?;
            let (anchored, means) = (&anchored, Slice::all(&means));
            let anchors = gpu::anomaly::Anchors { anchored, means, block, window };
            gpu::anomaly::record(rec, &tensor, &anchors)
        })?;
        let scales: Vec<f32> = run.read(&found.scales, 3 * rows * tokens).await?;
        let ends: Vec<[u32; 2]> = run.read(&found.extremes, 3 * rows).await?;
        run.checks.equal("ends of a line", &ends, &extremes(&scales, tokens));
        let want = raw_scores(&problem, keys.view(), block, window);
        run.checks.close("raw score", &scales, &want, 2e-6);
        Ok(())
    })
}

/// Lines of scores, in levels or not.
fn lines(run: &mut Run<'_>, count: usize) -> Vec<f32> {
    let levels = if run.random.odds(2) { 0.0 } else { run.random.within(1.0, 20.0) };
    let offset = run.random.within(-2.0, 2.0);
    let mut scores = uniform(&mut run.random, count);
    for x in &mut scores {
        *x = if levels > 0.0 { (*x * levels).round() / levels } else { *x } + offset;
    }
    scores
}

/// Tokens of a line.
fn tokens_of(run: &mut Run<'_>) -> usize {
    // Short lines are done by one lane each.
    let high = run.cover(&[300, 32, 3000, 9000]);
    run.count(1, high)
}

pub(super) fn spread<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (tokens, count) = (tokens_of(run), run.count(1, 6));
        let count = if tokens <= 32 { 15 * count } else { count };
        let mut scores = lines(run, count * tokens);
        let (buffer, ends) = (run.upload(&scores)?, run.upload(&extremes(&scores, tokens))?);
        let spreads = run.record(|rec| {
            gpu::spread::record(rec, Slice::all(&buffer), Slice::all(&ends), count, tokens)
        })?;
        let got: Vec<[f32; 4]> = run.read(&spreads, count).await?;
        for (at, (line, got)) in scores.chunks_mut(tokens).zip(got).enumerate() {
            let low = line.iter().copied().fold(f32::INFINITY, f32::min);
            let high = line.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let flat = high - low <= crate::nestedkv::plan::FLAT_SPAN;
            let span = if flat { 0.0 } else { high - low };
            run.checks.equal("lowest score and span", &got[..2], &[low, span]);
            spread_on_cpu::normalise(line);
            let want = f64::from(spread_on_cpu::gap(line));
            run.checks.near("gap", at, f64::from(got[2]), want, 2e-6);
        }
        Ok(())
    })
}

pub(super) fn blend<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (rows, high) = (run.count(1, 5), run.random.pick(&[300, 3000]));
        let tokens = run.count(1, high);
        let config = config(&mut run.random);
        let count = rows * tokens;
        let raw = uniform(&mut run.random, 3 * count);
        let (buffer, ends) = (run.upload(&raw)?, run.upload(&extremes(&raw, tokens))?);
        let found = run.record(|rec| {
            let scales = Slice::all(&buffer);
            let spreads = gpu::spread::record(rec, scales, Slice::all(&ends), 3 * rows, tokens)?;
            gpu::blend::record(rec, scales, Slice::all(&spreads), rows, tokens, &config)
        })?;
        let mut scales = raw;
        scales.chunks_mut(tokens).for_each(spread_on_cpu::normalise);
        let mut want = vec![0.0; count];
        let mut deviation = vec![0.0; count];
        for row in 0..rows {
            let part: [&[f32]; 3] =
                core::array::from_fn(|k| &scales[k * count + row * tokens..][..tokens]);
            let gaps = part.map(spread_on_cpu::gap);
            let weights = blend_on_cpu::weights(gaps, config.beta, config.prior, tokens);
            let range = row * tokens..(row + 1) * tokens;
            blend_on_cpu::blend(part, weights, &mut want[range.clone()]);
            surprise::deviation(part, &mut deviation[range]);
        }
        let stretched: Vec<f32> = run.read(&buffer, 3 * count).await?;
        run.checks.close("stretched score", &stretched, &scales, 1e-6);
        let blends: Vec<f32> = run.read(&found.blends, count).await?;
        let tolerance = 1e-5 * f64::from(want.iter().copied().fold(1.0, f32::max));
        run.checks.close("blend", &blends, &want, tolerance);
        let deviations: Vec<f32> = run.read(&found.deviations, count).await?;
        run.checks.close("deviation", &deviations, &deviation, 2e-6);
        let surprises: Vec<[u32; 4]> = run.read(&found.surprises, rows).await?;
        let lines = deviations.chunks(tokens).zip(extremes(&deviations, tokens));
        for ((line, ends), [highest, lowest, low, high]) in lines.zip(surprises) {
            run.checks.equal("ends of the deviations", &[highest, lowest], &ends);
            let sum: u64 = line.iter().map(|x| (x * GRID).round_ties_even() as u64).sum();
            let got = u64::from(low) + (u64::from(high) << 16);
            run.checks.equal("sum of the deviations", &[got], &[sum]);
        }
        Ok(())
    })
}

/// What the gate reads of the deviations of every row: their ends and their sum in two halves.
fn surprises(deviations: &[f32], tokens: usize) -> Vec<[u32; 4]> {
    let halves = |row: &[f32]| {
        row.iter()
            .map(|x| (x * GRID).round() as u32)
            .fold([0, 0], |[low, high], x| [low + (x & 0xffff), high + (x >> 16)])
    };
    let rows = deviations.chunks(tokens).zip(extremes(deviations, tokens));
    rows.map(|(row, [highest, lowest])| {
        let [low, high] = halves(row);
        [highest, lowest, low, high]
    })
    .collect()
}

pub(super) fn gate<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (rows, high) = (run.count(1, 5), run.random.pick(&[300, 3000]));
        // Of fewer tokens the deviations may nearly be equal, and then the stretch knows no bound.
        let tokens = run.count(20, high);
        let config = config(&mut run.random);
        let count = rows * tokens;
        let unit = |random: &mut Random, count| -> Vec<f32> {
            (0..count).map(|_| random.unit()).collect()
        };
        let scales = unit(&mut run.random, 3 * count);
        let blends = unit(&mut run.random, count);
        let mut deviations = vec![0.0; count];
        let part: [&[f32]; 3] = core::array::from_fn(|k| &scales[k * count..][..count]);
        surprise::deviation(part, &mut deviations);
        // Every seventh key row holds NaN or Inf.
        let bad = |at: usize| at % 7 == 3;
        let factors: Vec<f32> = (0..count).map(|at| if bad(at) { -LIFT } else { LIFT }).collect();
        let buffers = [
            run.upload(&factors)?,
            run.upload(&scales)?,
            run.upload(&blends)?,
            run.upload(&deviations)?,
            run.upload(&surprises(&deviations, tokens))?,
        ];
        let scores = run.record(|rec| {
            let [factors, scales, blends, deviations, surprises] =
                buffers.each_ref().map(Slice::all);
            let parts = gpu::gate::Parts { factors, scales, blends, deviations, surprises };
            gpu::gate::record(rec, &parts, rows, tokens, &config)
        })?;
        let got: Vec<f32> = run.read(&scores, count).await?;
        let (tau, kappa) = (config.tau, config.kappa);
        let want = surprise_gated_score_batched(part, &blends, rows, tau, kappa, config.rectify)?;
        // A surprise is exact to 2e-6; the gate's slope is kappa / 4 at most.
        let tolerance = 4e-6 + f64::from(kappa.abs()) * 2e-6;
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            if bad(at) {
                run.checks.equal("score of a bad key", &[*got], &[-1.0]);
            } else {
                run.checks.near("score", at, f64::from(*got), f64::from(*want), tolerance);
            }
        }
        Ok(())
    })
}
