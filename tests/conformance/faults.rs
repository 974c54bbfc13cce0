//! Faults planted one at a time: the suite sees each, and names the stage.
//!
//! A missing barrier shows where the device runs part of a workgroup ahead of the rest up to the next
//! barrier, as Mesa's software driver does with 8 lanes of it. Whether a GPU's subgroups run ahead far
//! enough is chance (on an NVIDIA H200 two of three were not seen), so there it may stay unseen.

use std::time::Instant;

use wgkv::conformance::{Case, Config, Fixed, Suite, wait, with_faults};
use wgkv::gpu::Fault;

use crate::support;

/// A fault that shows for certain on software devices alone.
const BARRIER: &str = "missing barrier";
/// Cases that a fault may hide from.
const CASES: u32 = 40;

struct Planted {
    /// What is wrong, in words.
    what: &'static str,
    /// The stage that must say so.
    stage: &'static str,
    fault: Fault,
    /// The kind and number of a fixed case that must show it, where a random one would need many
    /// shaders.
    case: Option<(&'static str, usize)>,
}

impl Planted {
    /// To be seen by one of the cases that go through the variants.
    fn by_variant(self, number: usize) -> Self {
        Self { case: Some(("variant", number)), ..self }
    }

    /// To be seen by a reference case.
    fn by_reference(self, number: usize) -> Self {
        Self { case: Some(("reference", number)), ..self }
    }
}

fn text(
    what: &'static str,
    stage: &'static str,
    kernel: &'static str,
    from: &'static str,
    to: &'static str,
) -> Planted {
    Planted { what, stage, fault: Fault::Text { kernel, from, to }, case: None }
}

fn parameter(
    what: &'static str,
    stage: &'static str,
    kernel: &'static str,
    field: &'static str,
    change: fn(u32) -> u32,
) -> Planted {
    Planted { what, stage, fault: Fault::Parameter { kernel, field, change }, case: None }
}

fn stale(stage: &'static str, kernel: &'static str) -> Planted {
    Planted { what: "stale parameter slot", stage, fault: Fault::Stale { kernel }, case: None }
}

fn short(stage: &'static str, kernel: &'static str) -> Planted {
    Planted { what: "lost last workgroup", stage, fault: Fault::Short { kernel }, case: None }
}

fn more(word: u32) -> u32 {
    word.wrapping_add(1)
}

fn less(word: u32) -> u32 {
    word.saturating_sub(1)
}

fn flipped(word: u32) -> u32 {
    word ^ 1
}

fn more_by_float(word: u32) -> u32 {
    (f32::from_bits(word) * 1.01).to_bits()
}

fn primitives() -> Vec<Planted> {
    let (count, select) = ("primitives/select_count", "primitives/select");
    vec![
        text(
            "off by one bin",
            select,
            select,
            "BINS - 1u - 8u * lane - i",
            "BINS - 2u - 8u * lane - i",
        ),
        text(
            "swapped counts",
            select,
            select,
            "found.x, ties, found.w, found.z",
            "found.x, ties, found.z, found.w",
        ),
        text(
            "a sink too many",
            select,
            count,
            "tokens < vec4<u32>(params.sinks)",
            "tokens <= vec4<u32>(params.sinks)",
        ),
        text(
            "NaN above numbers",
            select,
            count,
            "return select(key, 0u, magnitude > 0x7f800000u);",
            "return key;",
        ),
        text(
            "two zeros",
            select,
            count,
            "select(signed_key, 0x80000000u, magnitude == 0u)",
            "signed_key",
        ),
        stale(select, count),
        text(
            "wrong rank in short rows",
            select,
            "primitives/select_short",
            "rank <= above + equal",
            "rank < above + equal",
        )
        .by_variant(1),
        text(
            "dropped carry",
            "primitives/scan",
            "primitives/scan",
            "carry += sums.y;",
            "carry = sums.y;",
        ),
        text(
            BARRIER,
            "primitives/scan",
            "primitives/scan",
            "prefix_values[lane] = value;\n    workgroupBarrier();",
            "prefix_values[lane] = value;",
        ),
        parameter("lost last count", "primitives/scan", "primitives/scan", "count", less),
        text(
            "wrong tie",
            "primitives/compact",
            "primitives/compact",
            "ties < threshold.y)",
            "ties <= threshold.y)",
        ),
        short("primitives/compact", "primitives/compact"),
        text(
            "rounding up",
            "primitives/gather",
            "primitives/gather",
            "rebased + 0xfffu",
            "rebased + 0x1fffu",
        ),
        parameter("wrong stride", "primitives/gather", "primitives/gather", "row_parts", more),
    ]
}

fn nestedkv() -> Vec<Planted> {
    let (anchor, anomaly, aligned) =
        ("nestedkv/anchor", "nestedkv/anomaly", "nestedkv/anomaly_aligned");
    let (spread, blend, gate) = ("nestedkv/spread", "nestedkv/blend", "nestedkv/gate");
    let budgets = "nestedkv/budgets";
    vec![
        text("unmarked NaN", anchor, anchor, "select(1u, 0x80000001u, key_is_broken(words))", "1u"),
        parameter("wrong block", anchor, anchor, "block", more),
        short(anchor, anchor),
        text("dropped run", "nestedkv/mean", "nestedkv/mean", "run += 32u", "run += 33u"),
        text(
            BARRIER,
            "nestedkv/mean",
            "nestedkv/mean",
            "wg_bottom[lane] = bottom;\n    workgroupBarrier();",
            "wg_bottom[lane] = bottom;",
        ),
        parameter("wrong divisor", "nestedkv/mean", "nestedkv/mean", "tokens", more_by_float),
        text(
            "lost last piece of a block",
            anomaly,
            aligned,
            "if params.pieces > 1u {",
            "if params.pieces > 2u {",
        ),
        parameter("window a token too long", anomaly, anomaly, "window", more),
        text("wrong bin", spread, "nestedkv/spread_count", "level >> 11u", "level >> 12u"),
        parameter("tenth a token too large", spread, spread, "group", more),
        text(
            "a token too many in short lines",
            spread,
            "nestedkv/spread_short",
            "select(0u, own, above < params.group)",
            "select(0u, own, above <= params.group)",
        ),
        text(
            "missing softmax shift",
            blend,
            blend,
            "exp2(max(logit_s - top, -87.0) * LOG2_E)",
            "exp2(max(logit_s, -87.0) * LOG2_E)",
        ),
        text(
            "prior of another scale",
            blend,
            blend,
            "let w_e = params.prior_e",
            "let w_e = params.prior_s",
        ),
        text("lost complement", blend, blend, "max(found.y, ~key)", "max(found.y, key)"),
        parameter("rectified the wrong way", gate, gate, "rectify", flipped),
        text("NaN scores 0", gate, gate, "select(score, -1.0,", "select(score, 0.0,"),
        text("ties given out twice", budgets, budgets, "ties -= taken;", ""),
        parameter("nothing shared out", budgets, budgets, "rest", |_| 0),
        text(
            "budget rounded up",
            budgets,
            budgets,
            "budget += higher + taken;",
            "budget += higher + taken + 1u;",
        ),
        text(
            "ties of one head alone",
            "nestedkv/keep",
            budgets,
            "let taken = min(tied, ties);",
            "let taken = tied;",
        ),
        text(
            "wrong row",
            "nestedkv/append",
            "nestedkv/append",
            "+ row * params.tokens;",
            "+ (row + 1u) * params.tokens;",
        ),
        text(
            "mean of three by four",
            "nestedkv/score",
            blend,
            "(s + e + c) * (1.0 / 3.0)",
            "(s + e + c) * 0.25",
        ),
    ]
}

fn nsnquant() -> Vec<Planted> {
    let (encode, decode) = ("nsnquant/encode", "nsnquant/decode");
    vec![
        text("swapped sign bit", encode, encode, "v >= vec4<f32>(0.0)", "v < vec4<f32>(0.0)")
            .by_variant(1),
        text(
            "skipped centroids",
            encode,
            encode,
            "return coarse_two(c, at + 3u, highest);",
            "return coarse_two(c, at + 2u, highest);",
        )
        .by_variant(1),
        text("no slack", encode, encode, "let limit = top - four.slack;", "let limit = top;")
            .by_variant(1),
        text(
            "lost mean",
            encode,
            encode,
            "wg_mean[c] = wg_mean[c] / f32(params.chunk);",
            "wg_mean[c] = 0.0;",
        )
        .by_variant(1),
        text(
            "wrong key scale",
            encode,
            encode,
            "piece.low / key_scale_four(key_scale, channel),",
            "piece.low * key_scale_four(key_scale, channel),",
        )
        .by_variant(1),
        parameter("wrong page", encode, encode, "page_words", less).by_variant(1),
        text(
            "zeros at the second centroid",
            encode,
            encode,
            "return select(found, vec4<u32>(0u), found == vec4<u32>(ROWS));",
            "return select(found, vec4<u32>(1u), found == vec4<u32>(ROWS));",
        )
        .by_reference(11),
        text(
            "missing mean",
            decode,
            decode,
            "(value * wg_gain[token]) + own_mean(token, channel)",
            "(value * wg_gain[token])",
        )
        .by_variant(1),
        text(
            "wrong key scale",
            decode,
            decode,
            "value *= key_scale_factor(key_scale, channel);",
            "value /= key_scale_factor(key_scale, channel);",
        )
        .by_variant(1),
        text(
            "signs of a neighbour",
            decode,
            decode,
            "page_signed(high, signs >> 4u)",
            "page_signed(high, signs >> 3u)",
        )
        .by_variant(1),
        text(
            "pages swapped",
            decode,
            decode,
            "decode_chunk(lane, chunk, page * params.page_words,",
            "decode_chunk(lane, chunk, (page ^ 1u) * params.page_words,",
        )
        .by_variant(1),
        short(decode, decode).by_variant(1),
        text(
            "turned the wrong way",
            "nsnquant/rope",
            decode,
            "select(other, -other, place.first)",
            "select(-other, other, place.first)",
        ),
        text(
            "another sequence of signs",
            "nsnquant/signs",
            decode,
            "HADAMARD_SEED + channel * 0x9e3779b9u",
            "HADAMARD_SEED + (channel + 1u) * 0x9e3779b9u",
        ),
        text(
            "not squared",
            "nsnquant/squares",
            "nsnquant/squares",
            "sum += rest * rest;",
            "sum += abs(rest);",
        ),
        text(
            "half the prior",
            "nsnquant/key_scale",
            "nsnquant/key_scale",
            "PRIOR: f32 = 8.0",
            "PRIOR: f32 = 4.0",
        ),
    ]
}

fn attention() -> Vec<Planted> {
    let (raw, rotate, merge) = ("attention/raw", "attention/rotate", "attention/merge");
    vec![
        text(
            "lost last token",
            raw,
            raw,
            "for (; token < count; token += groups) {",
            "for (; token + 1u < count; token += groups) {",
        ),
        text(
            "pieces swapped",
            raw,
            raw,
            "let at = (tile.x + token) * ATTEND_PIECES + piece;",
            "let at = (tile.x + token) * ATTEND_PIECES + (piece ^ 1u);",
        ),
        text(
            "lost last tile",
            raw,
            raw,
            "let length = (share + SOFTMAX_LANES - 1u) & ~(SOFTMAX_LANES - 1u);",
            "let length = share & ~(SOFTMAX_LANES - 1u);",
        ),
        text(
            "half the cap's slope",
            raw,
            raw,
            "exp2(size * -2.8853901)",
            "exp2(size * -1.4426951)",
        ),
        short(raw, raw),
        text(
            "a power of two too much",
            rotate,
            rotate,
            "let lost = exponent - QUERY_EXPONENT;",
            "let lost = exponent - QUERY_EXPONENT + 1;",
        ),
        text(
            "a query sees its successor",
            raw,
            rotate,
            "return first + (query - head * params.tokens);",
            "return first + 1u + (query - head * params.tokens);",
        ),
        text(
            "wrong shift of weights",
            merge,
            merge,
            "const SHIFT: f32 = 1048576.0;",
            "const SHIFT: f32 = 524288.0;",
        ),
        text(
            BARRIER,
            merge,
            merge,
            "wg_weight[lane] = weight;\n        workgroupBarrier();",
            "wg_weight[lane] = weight;",
        ),
        parameter("lost last part", merge, merge, "slots", less),
        parameter(
            "wrong scale of the transform",
            "attention/packed",
            merge,
            "hadamard_scale",
            more_by_float,
        )
        .by_variant(1),
    ]
}

fn packed_attention() -> Vec<Planted> {
    let (packed, paged_raw) = ("attention/packed", "attention/paged_raw");
    let paged = "attention/paged_packed";
    vec![
        text(
            "swapped sign bits",
            packed,
            packed,
            "(vec4<u32>(~signs) << ",
            "(vec4<u32>(signs) << ",
        )
        .by_variant(1),
        text(
            "missing mean of keys",
            packed,
            packed,
            "part += attend_real(block.query, shown + c) * packed_key_mean(page, c);",
            "part += 0.0;",
        )
        .by_variant(1),
        text(
            "wrong length",
            packed,
            packed,
            "norm / max(sqrt(square), PACKED_MIN_NORM)",
            "norm / max(square, PACKED_MIN_NORM)",
        )
        .by_variant(1),
        text(
            "half of a centroid twice",
            packed,
            packed,
            "page_signed(packed_key_row(2u * index + 1u), signs >> 4u)",
            "page_signed(packed_key_row(2u * index), signs >> 4u)",
        )
        .by_variant(1),
        text(
            "missing softmax shrink",
            paged_raw,
            paged_raw,
            "let shrink = softmax_power((*run).top - top);",
            "let shrink = softmax_power(top - top);",
        ),
        text(
            "keys for values",
            paged_raw,
            paged_raw,
            "first + params.values_at + tile * params.attend.pieces_v,",
            "first + tile * params.attend.pieces_v,",
        ),
        text(
            "wrong slab",
            paged_raw,
            paged_raw,
            "select(bound, 1u, slab == params.paged.slab_1)",
            "select(bound, 0u, slab == params.paged.slab_1)",
        ),
        text(
            "keys for values",
            paged,
            paged,
            "return slab_word(page.w, page.y + word);",
            "return slab_word(page.w, page.x + word);",
        )
        .by_variant(1),
        text(
            "wrong page",
            paged,
            paged,
            "let index = id & params.paged.mask;",
            "let index = (id ^ 1u) & params.paged.mask;",
        )
        .by_variant(1),
        text(
            "quarter turns the same",
            "attention/paged_rope",
            "attention/paged_packed+rope",
            "let odd = (quarter & 1u) == 1u;",
            "let odd = false;",
        ),
    ]
}

fn cache() -> Vec<Planted> {
    let (pack, restore, keep) = ("cache/pack", "cache/restore", "cache/keep");
    vec![
        parameter("wrong row", "cache/rows", "cache/rows", "to_first", more),
        text(
            "one position for all",
            "cache/write",
            "cache/write",
            "= position + i;",
            "= position;",
        ),
        parameter("a row past the page", "cache/write", "cache/write", "page_rows", more),
        text(
            "positions not copied",
            "cache/copy",
            "cache/copy",
            "copy_words(lane, read + params.positions, write + params.positions, rows);",
            "",
        ),
        text(
            "wrong page of the prompt",
            keep,
            keep,
            "params.table_pages) + page;",
            "params.table_pages) + (page ^ 1u);",
        ),
        parameter("sinks not skipped", keep, keep, "sinks", more),
        parameter("page beyond the slab", "cache/fetch", "cache/fetch", "pages", more),
        text(
            "keys for values",
            "cache/fetch",
            "cache/fetch",
            "fetched(start + params.values, i)",
            "fetched(start, i)",
        ),
        parameter("lost last token", pack, pack, "chunk", less),
        parameter("values in the place of keys", restore, restore, "from_side", more),
        text(
            "next factor",
            "cache/scales",
            "cache/scales",
            "slab[start + i]",
            "slab[start + i + 1u]",
        ),
    ]
}

fn whole() -> Vec<Planted> {
    vec![
        text(
            "wrong source row",
            "whole/compress",
            "primitives/compact",
            "sources[at] = base + token;",
            "sources[at] = token;",
        ),
        text(
            "a kept row too far",
            "whole/life",
            "cache/keep",
            "let slot = behind - page * params.chunk;",
            "let slot = (behind + 1u) - page * params.chunk;",
        ),
        text(
            "row of a neighbour",
            "whole/life",
            "cache/write",
            "key_word(row * params.key_words + i)",
            "key_word((row + 1u) * params.key_words + i)",
        ),
    ]
}

/// Whether the stage's cases show the fault, and in how many.
fn seen(planted: &Planted) -> Result<u32, String> {
    let (device, queue) = (support::context().device(), support::context().queue());
    let context = with_faults(device, queue, &Default::default(), &[planted.fault])
        .map_err(|e| format!("was not planted: {e}"))?;
    let stages = vec![planted.stage.into()];
    let config = Config { cases: CASES, fixed: Fixed::Nothing, stages, seed: 5 };
    let mut suite = Suite::new(&config).map_err(|e| e.to_string())?;
    let mut pinned = match planted.case {
        Some((kind, number)) => {
            let stage = planted.stage;
            let text = format!(
                r#"{{"format":"wgkv-case","stage":"{stage}","case":"{kind}","number":{number},"seed":1,"size":100}}"#
            );
            Some(Case::from_json(&text).map_err(|e| e.to_string())?)
        }
        None => None,
    };
    let mut tried = 0;
    let mut next = |suite: &mut Suite| match planted.case {
        Some(_) => pinned.take(),
        None => suite.next_case(),
    };
    while let Some(case) = next(&mut suite) {
        let outcome = wait(&context, case.run(&context));
        let failed = outcome.failure.is_some();
        suite.add(&case, outcome);
        tried += 1;
        if failed {
            let report = suite.report(&context);
            let first = report.stages.iter().find(|stage| stage.failed > 0);
            let named = first.map(|stage| stage.stage);
            return match named {
                Some(stage) if stage == planted.stage && !report.passed() => Ok(tried),
                other => Err(format!("was laid to {other:?}")),
            };
        }
    }
    Err(format!("was not seen in {tried} cases"))
}

/// Whether the lanes of a workgroup run one part after the other.
fn runs_ahead() -> bool {
    support::context().device().adapter_info().device_type == wgkv::wgpu::DeviceType::Cpu
}

fn each_is_seen(list: &[Planted]) {
    let mut missed = Vec::new();
    for planted in list {
        let kernel = planted.fault.kernel();
        let name = format!("{} in {kernel}, by {}", planted.what, planted.stage);
        let start = Instant::now();
        let chance = planted.what == BARRIER && !runs_ahead();
        match seen(planted) {
            Err(why) if chance && why.starts_with("was not seen") => println!("{name} {why}"),
            Ok(tried) => println!("{name}: case {tried}, {:.1} s", start.elapsed().as_secs_f32()),
            Err(why) => missed.push(format!("{name} {why}")),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn in_selection_sums_and_copies() {
    each_is_seen(&primitives());
}

#[test]
fn in_the_score() {
    each_is_seen(&nestedkv());
}

#[test]
fn in_packing() {
    each_is_seen(&nsnquant());
}

#[test]
fn in_attention() {
    each_is_seen(&attention());
}

#[test]
fn in_attention_to_pages() {
    each_is_seen(&packed_attention());
}

#[test]
fn in_the_cache() {
    each_is_seen(&cache());
}

#[test]
fn in_whole_jobs() {
    each_is_seen(&whole());
}

#[test]
fn what_would_plant_nothing_is_refused() {
    let (device, queue) = (support::context().device(), support::context().queue());
    let refused = |fault| {
        let context = with_faults(device, queue, &Default::default(), &[fault]);
        context.expect_err("nothing is planted").to_string()
    };
    let kernel = "nestedkv/gate";
    for from in ["no such text", "let"] {
        let message = refused(Fault::Text { kernel, from, to: "" });
        assert!(message.contains("text of a fault"), "{message}");
    }
    assert!(refused(Fault::Stale { kernel: "nestedkv/gat" }).contains("kernel"));
    let change: fn(u32) -> u32 = more;
    assert!(refused(Fault::Parameter { kernel, field: "tokns", change }).contains("field"));
}
