//! The shapes that the options of a sweep name, and what they may not be.

use super::SweepArgs;
use super::case::Shape;
use crate::file::Fail;

/// Most query heads a KV head: models have 1 to some dozens.
const GROUP: usize = 1024;
/// Most runs of a case.
const RUNS: usize = 1_000_000;
/// Most combinations of what the lists hold.
const COMBINATIONS: usize = 10_000;

/// Refuses what no sweep can mean.
fn check(args: &SweepArgs) -> Result<(), Fail> {
    let lists = [
        ("--batch", &args.batch),
        ("--heads", &args.heads),
        ("--group", &args.group),
        ("--dim", &args.dim),
        ("--tokens", &args.tokens),
        ("--chunk", &args.chunk),
    ];
    for (name, list) in lists {
        if list.is_empty() || list.contains(&0) {
            return Err(Fail::input(format!("{name} is 0, expected at least 1")));
        }
    }
    if let Some(group) = args.group.iter().find(|group| **group > GROUP) {
        let message = format!("--group is {group}, expected at most {GROUP} query heads a KV head");
        return Err(Fail::input(message));
    }
    if args.repeats == 0 {
        return Err(Fail::input("--repeats is 0, expected at least 1"));
    }
    for (name, runs) in [("--repeats", args.repeats), ("--warmup", args.warmup)] {
        if runs > RUNS {
            return Err(Fail::input(format!("{name} is {runs}, expected at most {RUNS}")));
        }
    }
    if args.methods.is_empty() {
        return Err(Fail::input("nothing to time: --methods is empty"));
    }
    if !(args.keep > 0.0 && args.keep <= 1.0) {
        let keep = args.keep;
        return Err(Fail::input(format!(
            "--keep is {keep}, expected a fraction above 0 and at most 1"
        )));
    }
    // Chunks have been counted among the lists.
    let profiles = args.profile.len().saturating_mul(args.bits.len());
    let packings = profiles.max(args.presets.len());
    let combinations = lists
        .iter()
        .map(|(_, list)| list.len())
        .chain([args.methods.len(), packings])
        .fold(1, usize::saturating_mul);
    if combinations > COMBINATIONS {
        let message = format!(
            "the lists have {combinations} combinations, expected at most {COMBINATIONS} in a sweep"
        );
        return Err(Fail::input(message));
    }
    Ok(())
}

/// All shapes, each small enough for 32-bit indices.
pub fn shapes(args: &SweepArgs) -> Result<Vec<Shape>, Fail> {
    check(args)?;
    let mut shapes = Vec::new();
    for &batch in &args.batch {
        for &heads in &args.heads {
            for &dim in &args.dim {
                for &tokens in &args.tokens {
                    small(batch, heads, dim, ("--tokens", tokens))?;
                    for &group in &args.group {
                        small(batch, heads, dim, ("--group", group))?;
                    }
                    shapes.push(Shape { batch, heads, dim, tokens });
                }
            }
        }
    }
    Ok(shapes)
}

/// Refuses rows (`last` of them a head) of more elements than kernels index with 32 bits.
fn small(batch: usize, heads: usize, dim: usize, last: (&str, usize)) -> Result<(), Fail> {
    let (name, count) = last;
    let size = [heads, dim, count].iter().try_fold(batch, |product, &n| product.checked_mul(n));
    if size.is_some_and(|size| u32::try_from(size).is_ok()) {
        return Ok(());
    }
    Err(Fail::input(format!(
        "--batch {batch} x --heads {heads} x {name} {count} x --dim {dim} is 4294967296 elements or \
         more, which 32-bit indices do not reach"
    )))
}
