//! Packed pages between sinks and tails, against the judge, and what may not change a bit.

use proptest::prelude::*;
use wgkv::attention::cpu::Attended;
use wgkv::attention::{Causal, PagedAttend};
use wgkv::gpu::{Context, ContextDescriptor};
use wgkv::layout::{Bits, Profile};
use wgkv::nsnquant::{Pairing, Rope};
use wgkv::shape::Dtype;
use wgkv::wgpu;

use crate::common::{Kind, PATHS, Path};
use crate::integers::{INTEGER_SLACK, devices};
use crate::packed::SLACK;
use crate::paged::{Batch, Head, Member, Shape};
use crate::paged_raw::alone_and_together;
use crate::schemes::SCALED_SLACK;
use crate::support;

fn members(
    heads: usize,
    sinks: usize,
    packed: usize,
    tail: usize,
) -> impl Strategy<Value = Vec<Member>> {
    let head = (0..=packed, 0..=tail, 0..8u32).prop_map(move |(packed, tail, odd)| match odd {
        0 => (0, 0, 0),
        1 => (sinks, 0, 0),
        _ => (sinks, packed, tail),
    });
    let heads = proptest::collection::vec(head, heads);
    let member = (any::<u64>(), heads).prop_map(|(seed, heads)| Member { seed, heads });
    proptest::collection::vec(member, 1..4)
}

fn shape(dims: &'static [usize]) -> impl Strategy<Value = Shape> {
    let dim = || proptest::sample::select(dims);
    let kind = || {
        prop_oneof![
            Just(Kind::Normal),
            Just(Kind::Offset),
            Just(Kind::Scaled(100.0)),
            Just(Kind::Scaled(1e-3)),
        ]
    };
    let rate = || 1..=2u32;
    let bits = proptest::option::weighted(0.8, (rate(), rate()));
    let chunk = proptest::sample::select(vec![2usize, 5, 16, 33, 64, 128]);
    let raw = prop_oneof![Just(Dtype::F16), Just(Dtype::Bf16)];
    let numbers = (0..6usize, 1..20usize, 1..6usize, 1..4usize);
    let pairing = proptest::option::of(proptest::sample::select(Pairing::ALL.to_vec()));
    let kinds = ([kind(), kind(), kind()], any::<bool>(), pairing);
    ((dim(), dim()), bits, chunk, raw, numbers, kinds).prop_map(
        |(
            (dim_k, dim_v),
            bits,
            chunk,
            raw,
            (sinks, slab_pages, group, tokens),
            (kinds, scaled, pairing),
        )| Shape {
            dims: [dim_k, dim_v],
            bits,
            schemes: None,
            chunk,
            sinks,
            raw,
            slab_pages,
            group,
            tokens,
            query_dtype: raw,
            kinds,
            scaled,
            rope: pairing.and_then(|pairing| Rope::with_theta(pairing, 1e4, dim_k / 2).ok()),
        },
    )
}

fn case(
    dims: &'static [usize],
    packed: usize,
) -> impl Strategy<Value = (Shape, Vec<Member>, u64, Option<f32>, Option<u32>, bool)> {
    (shape(dims), 1..4usize).prop_flat_map(move |(shape, heads)| {
        let packed = if shape.bits.is_some() { packed } else { 0 };
        let members = members(heads, shape.sinks, packed, 3 * shape.chunk);
        let cap = proptest::option::weighted(0.3, prop_oneof![Just(0.7f32), Just(50.0)]);
        let window = proptest::option::weighted(0.3, 1..200u32);
        (Just(shape), members, 0..5u64, cap, window, any::<bool>())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn rows_in_pages_are_attended_as_decoded(
        (shape, members, placing, soft_cap, window, all) in case(&[16, 64, 80, 112, 128, 256], 5),
    ) {
        let batch = Batch::new(&shape, &members, placing);
        let window = window.filter(|_| !all);
        let causal = if all { Causal::All } else { Causal::Newest };
        let config = PagedAttend { scale: None, causal, soft_cap, window };
        let slack = if shape.scaled { SCALED_SLACK } else { SLACK };
        batch.judge_on(Path::Cpu, &config, slack);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn the_gpu_agrees_with_the_decoded_pages(
        (shape, members, placing, soft_cap, window, all) in case(&[64, 80, 128], 4),
    ) {
        let batch = Batch::new(&shape, &members, placing);
        let window = window.filter(|_| !all);
        let causal = if all { Causal::All } else { Causal::Newest };
        let config = PagedAttend { scale: None, causal, soft_cap, window };
        let slack = if shape.scaled { SCALED_SLACK } else { SLACK };
        batch.judge_on(Path::Gpu, &config, slack);
    }
}

fn member(seed: u64, heads: &[Head]) -> Member {
    Member { seed, heads: heads.to_vec() }
}

#[test]
fn every_head_dimension_and_rate() {
    for (dim_k, dim_v) in [(64, 64), (80, 80), (112, 112), (128, 128), (256, 256), (64, 128)] {
        for bits in [(1, 1), (2, 2), (1, 2), (2, 1)] {
            let shape =
                Shape { dims: [dim_k, dim_v], bits: Some(bits), chunk: 16, ..Shape::simple(64) };
            let batch = Batch::new(&shape, &[member(1, &[(4, 3, 20)])], 0);
            for path in PATHS {
                batch.judge_on(path, &PagedAttend::default(), SLACK);
            }
        }
    }
}

#[test]
fn a_member_is_answered_alike_alone_in_a_batch_and_wherever_its_pages_lie() {
    let members = [
        member(2, &[(4, 20, 40), (4, 3, 5)]),
        member(3, &[(4, 0, 7), (2, 0, 0)]),
        member(4, &[(4, 17, 64), (4, 2, 30)]),
    ];
    let shape = Shape { chunk: 16, tokens: 3, ..Shape::simple(64) };
    alone_and_together(&shape, &members, &PagedAttend::default());
    let config = PagedAttend { soft_cap: Some(20.0), window: Some(300), ..PagedAttend::default() };
    let shape = Shape { dims: [80, 128], bits: Some((2, 1)), group: 5, ..shape };
    alone_and_together(&shape, &members, &config);
}

/// Merges two partial attentions as an engine does.
fn merged(a: &Attended, b: &Attended, dim: usize) -> Attended {
    let mut whole = Attended { out: Vec::new(), lse: Vec::new() };
    for (query, (x, y)) in a.lse.iter().zip(&b.lse).enumerate() {
        let top = f64::from(x.max(*y));
        let [p, q] = [x, y].map(|lse| (f64::from(*lse) - top).exp());
        whole.lse.push((top + (p + q).ln()) as f32);
        for channel in query * dim..(query + 1) * dim {
            let sum = p * f64::from(a.out[channel]) + q * f64::from(b.out[channel]);
            whole.out.push((sum / (p + q)) as f32);
        }
    }
    whole
}

#[test]
fn halves_merge_to_the_whole() {
    let shape = Shape { tokens: 2, ..Shape::simple(64) };
    let whole = Batch::new(&shape, &[member(5, &[(4, 6, 100), (4, 2, 3)])], 0);
    let config = PagedAttend { soft_cap: Some(30.0), ..PagedAttend::default() };
    let half = |first: bool| {
        let mut half = Batch::new(&shape, &[member(5, &[(4, 6, 100), (4, 2, 3)])], 0);
        let tables = &mut half.tables;
        // The sinks and the first packed pages, or the rest.
        let packed = [2usize, 1];
        let of = |row: usize| {
            whole.tables.packed_offsets[row] as usize..whole.tables.packed_offsets[row + 1] as usize
        };
        (tables.packed, tables.packed_offsets) = (Vec::new(), vec![0]);
        for row in 0..2 {
            let pages = &whole.tables.packed[of(row)];
            let (head, rest) = pages.split_at(packed[row]);
            tables.packed.extend(if first { head } else { rest });
            tables.packed_offsets.push(tables.packed.len() as u32);
        }
        if first {
            tables.tail.clear();
            tables.tail_offsets.fill(0);
            tables.tail_rows.fill(0);
        } else {
            tables.sink_rows.fill(0);
        }
        half
    };
    for path in PATHS {
        let [a, b] = [true, false].map(|first| half(first).run(path, &config));
        let got = whole.run(path, &config);
        whole.judge(&got, &config, SLACK);
        whole.judge(&merged(&a, &b, 64), &config, 2.0 * SLACK);
    }
}

#[test]
fn dispatches_do_not_grow_with_the_batch() -> wgkv::Result<()> {
    let shape = Shape { slab_pages: 40, ..Shape::simple(64) };
    for count in [1, 3, 12] {
        let members: Vec<Member> =
            (0..count).map(|seed| member(seed, &[(4, 2, 70), (4, 1, 30)])).collect();
        let batch = Batch::new(&shape, &members, 0);
        // Queries, sinks, packed pages, tails, merging.
        assert_eq!(batch.gpu_counted(&PagedAttend::default())?.1, 5);
    }
    Ok(())
}

/// A device that binds no more than so many bytes.
#[test]
fn a_few_pages_in_two_slabs_are_copied_and_answered_alike() -> wgkv::Result<()> {
    let members: Vec<Member> = (0..8).map(|seed| member(seed, &[(4, 3, 0); 8])).collect();
    let shape = Shape { slab_pages: 21, ..Shape::simple(64) };
    let counted = |shape: &Shape| {
        let batch = Batch::new(shape, &members, 0);
        let [_, packed, _] = batch.slabs.each_ref().map(Vec::len);
        batch
            .gpu_counted(&PagedAttend::default())
            .map(|(got, dispatches)| (got, packed, dispatches))
    };
    let (whole, one, fewest) = counted(&Shape { slab_pages: 100, ..shape.clone() })?;
    // Queries, sinks, packed pages, merging.
    assert_eq!((one, fewest), (1, 4));
    let (got, two, more) = counted(&shape)?;
    // The pages of one unit copied, then that unit, and the other slab.
    assert_eq!((two, more), (2, 7));
    assert_eq!(got, whole);
    Ok(())
}

fn narrow(bytes: u64) -> Context {
    let limits = wgpu::Limits { max_storage_buffer_binding_size: bytes, ..Default::default() };
    let (device, queue) = support::device(&limits);
    Context::new(&device, &queue, &ContextDescriptor::default()).expect("a context")
}

#[test]
fn partial_results_beyond_a_binding_are_made_in_rounds() -> wgkv::Result<()> {
    // Of 22 rows some have 5 slots of 520 bytes a query, some 3.
    let members: Vec<Member> =
        (0..11).map(|seed| member(seed, &[(4, 40, 70), (4, 6, 20)])).collect();
    for (tokens, slab_pages, bytes) in [(3, 60, 1 << 18), (3, 2, 1 << 18), (110, 8, 1 << 19)] {
        let shape = Shape { chunk: 16, tokens, slab_pages, ..Shape::simple(64) };
        let members = if tokens > 50 { &members[..2] } else { &members };
        let batch = Batch::new(&shape, members, slab_pages as u64 % 2);
        let config = PagedAttend::default();
        let (whole, few) = batch.gpu_counted(&config)?;
        let (got, many) = batch.gpu_on(&narrow(bytes), &config, Ok)?;
        assert_eq!(got, whole);
        assert!(many > few);
        batch.judge(&got, &config, SLACK);
    }
    let shape = Shape { chunk: 2, ..Shape::simple(64) };
    let batch = Batch::new(&shape, &[member(1, &[(4, 600, 3)])], 0);
    let refused = batch.gpu_on(&narrow(1 << 15), &PagedAttend::default(), Ok);
    let text = refused.map(|_| ()).expect_err("too small").to_string();
    assert!(text.starts_with("partial results of a row needs"), "{text}");
    Ok(())
}

#[test]
fn a_page_of_no_slab_is_left_out() -> wgkv::Result<()> {
    let shape = Shape { slab_pages: 5, ..Shape::simple(64) };
    let mut batch = Batch::new(&shape, &[member(6, &[(4, 5, 30), (4, 1, 0)])], 0);
    let layout = batch.layout.clone();
    let class = wgkv::layout::pool::PageClass::Packed;
    let beyond = (1 << layout.shift(class)) - 1;
    assert!(layout.pages_per_slab(class) <= beyond);
    let whole = batch.run(Path::Gpu, &PagedAttend::default());
    batch.tables.packed[2] = layout.page(class, 0, beyond);
    let (got, _) = batch.gpu_counted(&PagedAttend::default())?;
    assert!(got.out.iter().chain(&got.lse).all(|x| x.is_finite()));
    assert_eq!(got.out[2 * 64..], whole.out[2 * 64..]);
    assert_ne!(got.out[..2 * 64], whole.out[..2 * 64]);
    assert!(batch.cpu(&PagedAttend::default()).is_err());
    Ok(())
}

#[test]
fn plain_books_answer_alike_with_whatever_the_device_has() -> wgkv::Result<()> {
    let devices = devices();
    let rates = [[Bits::Three, Bits::Two], [Bits::Two; 2], [Bits::One; 2], [Bits::One, Bits::Four]];
    // One, two and four queries together; a chunk that leaves a rest, and one of many lanes.
    for (rates, group, chunk) in [
        (rates[0], 1, 64),
        (rates[0], 4, 64),
        (rates[1], 1, 100),
        (rates[1], 8, 64),
        (rates[2], 2, 600),
        (rates[2], 4, 64),
        (rates[3], 3, 6),
    ] {
        let schemes = Some(rates.map(|bits| Profile::Tuned.scheme(bits)));
        let shape = Shape { schemes, chunk, group, ..Shape::simple(128) };
        let members = [Member { seed: 5, heads: vec![(4, 3, 20), (0, 1, 0)] }];
        let batch = Batch::new(&shape, &members, 0);
        let config = PagedAttend::default();
        let mut kernels = Vec::new();
        for (device, slack) in devices.iter().zip([INTEGER_SLACK, SLACK, SLACK]) {
            let (got, _) = batch.gpu_on(device, &config, Ok)?;
            batch.judge(&got, &config, slack);
            let built = device.built().into_iter();
            kernels.push(built.filter(|(name, _)| name.contains("plain")).count());
        }
        assert!(kernels.iter().all(|built| *built > 0), "{kernels:?}");
        // Positions that are not seen, and a cap.
        let window = Some(90);
        let causal = Causal::Newest;
        for config in [
            PagedAttend { causal, window, ..PagedAttend::default() },
            PagedAttend { soft_cap: Some(2.0), ..PagedAttend::default() },
        ] {
            let (got, _) = batch.gpu_on(&devices[0], &config, Ok)?;
            batch.judge(&got, &config, INTEGER_SLACK);
        }
    }
    // Integers take rounds in which lanes have equal parts, and books that bytes hold: four of the seven.
    let integers = devices
        .map(|device| device.built().iter().filter(|(name, _)| name.contains("+bytes")).count());
    assert!(integers[0] >= 4 && integers[1..] == [0, 0], "{integers:?}");
    Ok(())
}
