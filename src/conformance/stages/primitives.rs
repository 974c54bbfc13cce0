//! Selection, sums, compaction, copies: all bit for bit.

use half::{bf16, f16};

use crate::conformance::draw::{DTYPES, Data};
use crate::conformance::run::{Job, Run};
use crate::error::Error;
use crate::gpu::{DeviceTensor, Slice};
use crate::primitives::cpu::compact::compact as on_cpu;
use crate::primitives::cpu::gather::gather as gather_on_cpu;
use crate::primitives::cpu::scan::offsets;
use crate::primitives::cpu::select::{Threshold, threshold};
use crate::primitives::gpu;
use crate::primitives::order::{SINK_KEY, order_key};
use crate::shape::{Dtype, Tensor};

/// Keys of a row whose first tokens are sinks.
fn keys(row: &[f32], sinks: usize) -> Vec<u32> {
    row.iter().enumerate().map(|(i, &s)| if i < sinks { SINK_KEY } else { order_key(s) }).collect()
}

fn words(threshold: Threshold) -> [u32; 4] {
    [threshold.key, threshold.ties, threshold.equal, threshold.above]
}

/// Tokens of a row: few, many, or near what a workgroup takes.
fn length(run: &mut Run<'_>) -> usize {
    match run.random.below(8) {
        0..4 => run.count(0, 40),
        4..6 => run.count(0, 600),
        6 => run.count(1, 1030),
        _ => run.count(1, 9000),
    }
}

pub(super) fn select<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        // Where all rows are short, each is done by one lane.
        let short = run.cover(&[false, true, false, false]);
        let count = run.count(1, if short { 90 } else { 7 });
        let rows: Vec<Vec<f32>> = (0..count)
            .map(|_| {
                let n = if short { run.random.below(33) } else { length(run) };
                (0..n).map(|_| run.random.score()).collect()
            })
            .collect();
        let (share, sinks) = (run.random.within(0.0, 1.2), run.random.below(6));
        let counts: Vec<u32> = rows.iter().map(|r| (share * r.len() as f32) as u32).collect();
        let lengths: Vec<u32> = rows.iter().map(|r| r.len() as u32).collect();
        let starts = offsets("starts", &lengths)?;
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        // A device binds no buffer of nothing.
        let mut flat = rows.concat();
        flat.resize(flat.len().max(1), 0.0);
        let (scores, on_device) = (run.upload(&flat)?, run.upload(&counts)?);
        let starts = run.upload(&starts)?;
        let found = run.record(|rec| {
            let [scores, starts, counts] = [&scores, &starts, &on_device].map(Slice::all);
            gpu::select::record(rec, scores, starts, rows.len(), longest, sinks as u32, counts)
        })?;
        let found: Vec<[u32; 4]> = run.read(&found, rows.len()).await?;
        for ((row, count), got) in rows.iter().zip(counts).zip(found) {
            let keys = keys(row, sinks);
            let want = words(threshold(&keys, count as usize));
            run.checks.equal("threshold", &got, &want);
            let mut sorted = keys;
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            let count = (count as usize).min(row.len());
            if !row.is_empty() {
                run.checks.equal("key by sorting", &[got[0]], &[sorted[count.max(1) - 1]]);
            }
        }
        Ok(())
    })
}

pub(super) fn scan<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let count = run.count(1, 3000);
        let counts: Vec<u32> = (0..count).map(|_| run.random.below(5000) as u32).collect();
        let buffer = run.upload(&counts)?;
        let sums = run.record(|rec| gpu::scan::record(rec, Slice::all(&buffer), counts.len()))?;
        let got: Vec<u32> = run.read(&sums, counts.len() + 1).await?;
        run.checks.equal("offsets", &got, &offsets("counts", &counts)?);
        Ok(())
    })
}

pub(super) fn compact<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let rows = run.count(1, 8);
        let tokens = length(run).max(1);
        let levels = run.random.between(1, 50);
        let scores: Vec<f32> =
            (0..rows * tokens).map(|_| run.random.below(levels) as f32).collect();
        let sinks = run.random.below(6);
        let each = run.random.between(1, tokens);
        let counts = vec![each as u32; rows];
        let ends = offsets("counts", &counts)?;
        let lines: Vec<Vec<u32>> = scores.chunks(tokens).map(|row| keys(row, sinks)).collect();
        let found: Vec<Threshold> = lines.iter().map(|keys| threshold(keys, each)).collect();
        let thresholds: Vec<[u32; 4]> = found.iter().map(|found| words(*found)).collect();
        let total = each * rows;
        let (scores, at) = (run.upload(&scores)?, run.upload(&thresholds)?);
        let index = run.upload(&ends)?;
        let got = run.record(|rec| {
            let [scores, at, ends] = [&scores, &at, &index].map(Slice::all);
            gpu::compact::record(rec, scores, rows, tokens, sinks as u32, at, ends, total as u64)
        })?;
        let positions: Vec<u32> = run.read(&got.positions, total).await?;
        let sources: Vec<u32> = run.read(&got.sources, total).await?;
        let mut want = vec![0; total];
        for ((keys, found), out) in lines.iter().zip(found).zip(want.chunks_mut(each)) {
            on_cpu(keys, found, out);
        }
        run.checks.equal("positions", &positions, &want);
        let row = |at: usize| (at / each * tokens) as u32;
        let flat: Vec<u32> = want.iter().enumerate().map(|(at, p)| p + row(at)).collect();
        run.checks.equal("sources", &sources, &flat);
        Ok(())
    })
}

pub(super) fn gather<'r>(run: &'r mut Run<'_>) -> Job<'r> {
    Box::pin(async move {
        let dtype = run.cover(&DTYPES);
        let (rows, tokens) = (3, run.count(1, 40));
        let dim = run.random.pick(&[8usize, 16, 80, 112]);
        // Half of the cases stay within f16, so that nothing is refused.
        let small = run.random.odds(2);
        let count = rows * tokens * dim;
        let bits: Vec<u32> = run.random.words(count);
        let bits = bits.into_iter().map(|x| if small { x & 0x8fff_ffff | 0x3000_0000 } else { x });
        let data = match dtype {
            Dtype::F32 => Data::F32(bits.map(f32::from_bits).collect()),
            Dtype::F16 => Data::F16(bits.map(|b| f16::from_bits((b >> 16) as u16)).collect()),
            Dtype::Bf16 => Data::Bf16(bits.map(|b| bf16::from_bits((b >> 16) as u16)).collect()),
        };
        let every = run.random.between(1, 4);
        let one: Vec<u32> = (0..tokens as u32).step_by(every).collect();
        let (positions, each) = (one.repeat(rows), one.len());
        let ends = offsets("counts", &[each as u32; 3])?;
        let row = |at: usize| (at / each * tokens) as u32;
        let sources: Vec<u32> = positions.iter().enumerate().map(|(i, p)| row(i) + p).collect();
        let tensor = Tensor::new("data", data.view(), rows, tokens, dim)?;
        let (buffer, index) = (run.upload(data.view().bytes())?, run.upload(&sources)?);
        let device = DeviceTensor::new("data", Slice::all(&buffer), dtype, rows, tokens, dim)?;
        let got = run.record(|rec| {
            gpu::gather::record(rec, &device, Slice::all(&index), sources.len() as u64)
        })?;
        let copied: Vec<u16> = run.read(&got.rows, sources.len() * dim).await?;
        let word: Vec<u8> = run.read(&got.beyond, 4).await?;
        let beyond = gpu::gather::first_beyond(&word)?;
        match gather_on_cpu("data", &tensor, &ends, &positions) {
            Ok(want) => {
                let want: Vec<u16> = want.iter().map(|x| x.to_bits()).collect();
                run.checks.equal("rows", &copied, &want);
                run.checks.equal("row beyond f16", &[beyond], &[None]);
            }
            Err(Error::BeyondF16 { row, .. }) => {
                let got = beyond.and_then(|kept| sources.get(kept as usize).copied());
                run.checks.equal("row beyond f16", &[got], &[Some(row as u32)]);
            }
            Err(other) => return Err(other),
        }
        Ok(())
    })
}
