//! Which tokens stay: shares of heads, selections, joined rows; all bit for bit.

use crate::conformance::reference;
use crate::conformance::run::{Job, Origin, Run};
use crate::error::Result;
use crate::gpu::Slice;
use crate::judge::nestedkv as judge;
use crate::nestedkv::cpu::Kept;
use crate::nestedkv::gpu::append::{Rows, record};
use crate::nestedkv::{Budget, EvictConfig, cpu, gpu};
use crate::primitives::cpu::scan::offsets;

/// Compares the shares of heads on the GPU with those expected.
async fn shares(
    run: &mut Run<'_>,
    heads: &[Vec<f32>],
    total: u64,
    safeguard: f64,
    want: &[u32],
) -> Result<()> {
    let lengths: Vec<usize> = heads.iter().map(Vec::len).collect();
    let views: Vec<&[f32]> = heads.iter().map(Vec::as_slice).collect();
    let on_cpu = cpu::allocate_head_budgets(&views, total, safeguard)?;
    run.checks.equal("budgets of the CPU", &on_cpu, want);
    let mut scores = heads.concat();
    scores.resize(scores.len().max(1), 0.0);
    let buffer = run.upload(&scores)?;
    let budgets = run.record(|rec| {
        gpu::allocate_head_budgets(rec, Slice::all(&buffer), &lengths, total, safeguard)
    })?;
    let got: Vec<u32> = run.read(&budgets, heads.len()).await?;
    run.checks.equal("budgets", &got, want);
    Ok(())
}

/// A score as selections meet them.
fn score(run: &mut Run<'_>) -> f32 {
    match run.random.below(11) {
        0..6 => run.random.unit(),
        6..10 => run.random.below(5) as f32 / 4.0,
        _ => run.random.pick(&[0.0, -0.0, f32::NAN, -f32::NAN, -1.0]),
    }
}

pub(super) fn budgets<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        if let Origin::Reference(number) = run.origin {
            for case in reference::budgets(number)? {
                let reference::Shares { heads, total, safeguard, expected } = case;
                shares(run, &heads, total, safeguard, &expected).await?;
            }
            return Ok(());
        }
        let count = run.count(1, 8);
        let heads: Vec<Vec<f32>> = (0..count)
            .map(|_| {
                let tokens = run.count(0, 200);
                (0..tokens).map(|_| score(run)).collect()
            })
            .collect();
        let all: usize = heads.iter().map(Vec::len).sum();
        let total = (f64::from(run.random.within(0.0, 1.2)) * all as f64) as u64;
        let drawn = f64::from(run.random.unit());
        let safeguard = run.random.pick(&[0.2, 0.0, 1.0, drawn]);
        let wide: Vec<Vec<f64>> =
            heads.iter().map(|h| h.iter().map(|x| f64::from(*x)).collect()).collect();
        let want = judge::budgets(&wide, total as usize, safeguard);
        let want: Vec<u32> = want.into_iter().map(|n| n as u32).collect();
        shares(run, &heads, total, safeguard, &want).await
    })
}

/// Selects on the GPU by scores `[rows, tokens]`, and compares with the CPU path.
pub(super) async fn select(
    run: &mut Run<'_>,
    scores: &[f32],
    rows: usize,
    tokens: usize,
    config: &EvictConfig,
) -> Result<Kept> {
    let buffer = run.upload(scores)?;
    let kept = run.record(|rec| gpu::keep(rec, Slice::all(&buffer), rows, tokens, config))?;
    let total = kept.total as usize;
    let offsets: Vec<u32> = run.read(&kept.offsets, rows + 1).await?;
    let positions: Vec<u32> = run.read(&kept.positions, total).await?;
    let sources: Vec<u32> = run.read(&kept.sources, total).await?;
    let budgets: Vec<u32> = run.read(&kept.budgets, rows).await?;
    let want = cpu::keep(scores, rows, tokens, config)?;
    run.checks.equal("offsets", &offsets, &want.offsets);
    run.checks.equal("positions", &positions, &want.positions);
    run.checks.equal("budgets", &budgets, &want.budgets());
    run.checks.equal("sinks alone", &[kept.sinks_only], &[want.sinks_only]);
    let flat: Vec<u32> = (0..rows)
        .flat_map(|row| want.row(row).iter().map(move |p| (row * tokens) as u32 + p))
        .collect();
    run.checks.equal("sources", &sources, &flat);
    Ok(want)
}

pub(super) fn keep<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let high = run.random.pick(&[60, 60, 600, 1030, 8300]);
        let (heads, sequences, tokens) = (run.count(1, 4), run.count(1, 3), run.count(1, high));
        let rows = heads * sequences;
        let scores: Vec<f32> = (0..rows * tokens).map(|_| score(run)).collect();
        let per_head = run.random.below(tokens + 5) as u32;
        let adaptive = run.random.odds(2);
        let budget = match adaptive {
            true => Budget::Adaptive { per_head, heads },
            false => Budget::Uniform(per_head),
        };
        let (sinks, safeguard) = (run.random.below(9), f64::from(run.random.unit()));
        let config = EvictConfig { sinks: sinks as u32, safeguard, ..EvictConfig::new(budget) };
        let kept = select(run, &scores, rows, tokens, &config).await?;
        for (row, line) in scores.chunks(tokens).enumerate().filter(|_| !adaptive) {
            let line: Vec<f64> = line.iter().map(|x| f64::from(*x)).collect();
            let want = judge::keep(&line, sinks.min(tokens), per_head as usize);
            run.checks.equal("positions of the judge", kept.row(row), &want);
        }
        Ok(())
    })
}

pub(super) fn append<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let (rows, tokens, width) = (run.count(1, 40), run.count(1, 8), run.count(1, 70));
        let lengths: Vec<u32> = (0..rows).map(|_| run.random.below(70) as u32).collect();
        let ends = offsets("lengths", &lengths)?;
        let items = ends[rows] as usize;
        let held = run.random.words((items * width).max(1));
        let added = run.random.words(rows * tokens * width);
        let (joined, starts) = cpu::append(&held[..items * width], &ends, &added, tokens, width)?;
        let buffers = [run.upload(&held)?, run.upload(&ends)?, run.upload(&added)?];
        let device = run.record(|rec| {
            let [held, offsets, added] = buffers.each_ref().map(Slice::all);
            record(rec, &Rows { held, held_items: items, offsets, added, rows, tokens, width })
        })?;
        let got: Vec<u32> = run.read(&device.items, joined.len()).await?;
        run.checks.equal("items", &got, &joined);
        let got: Vec<u32> = run.read(&device.starts, starts.len()).await?;
        run.checks.equal("starts", &got, &starts);
        Ok(())
    })
}
