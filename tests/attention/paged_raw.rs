//! Raw and sink pages against the judge, and what may not change a bit.

use wgkv::attention::{Causal, NO_KEY, PagedAttend};
use wgkv::layout::pool::{PageClass, PageId};
use wgkv::shape::Dtype;
use wgkv::{Error, Result};

use crate::common::{Kind, PATHS, Path};
use crate::paged::{Batch, Head, Member, Shape};

/// See [`crate::common::Ruled::judge`].
const SLACK: f64 = 2.0;

fn member(seed: u64, heads: &[Head]) -> Member {
    Member { seed, heads: heads.to_vec() }
}

fn raw_only(dim: usize) -> Shape {
    Shape { bits: None, ..Shape::simple(dim) }
}

#[test]
fn every_head_dimension_and_type() {
    let config = PagedAttend::default();
    for (dims, raw) in [
        ([8, 512], Dtype::F16),
        ([64, 64], Dtype::Bf16),
        ([80, 112], Dtype::F16),
        ([128, 128], Dtype::Bf16),
        ([256, 256], Dtype::F16),
        ([192, 128], Dtype::F16),
        ([512, 8], Dtype::Bf16),
    ] {
        let shape = Shape { dims, raw, ..raw_only(64) };
        let batch = Batch::new(&shape, &[member(1, &[(4, 0, 100), (4, 0, 0)])], 0);
        for path in PATHS {
            batch.judge_on(path, &config, SLACK);
        }
    }
}

#[test]
fn heads_of_any_length() {
    for (chunk, sinks) in [(64, 4), (128, 0), (33, 70), (2, 1), (200, 130)] {
        let shape = Shape { chunk, sinks, group: 3, ..raw_only(64) };
        let heads = [
            (sinks, 0, 3 * chunk + 1),
            (0, 0, 0),
            (sinks, 0, 0),
            (sinks, 0, chunk),
            (sinks / 2, 0, 0),
            (sinks, 0, 1),
        ];
        let long = [(sinks, 0, 18 * chunk + 5); 6];
        let batch = Batch::new(&shape, &[member(2, &heads), member(3, &long)], 5);
        for path in PATHS {
            let config = PagedAttend { causal: Causal::All, ..PagedAttend::default() };
            batch.judge_on(path, &config, SLACK);
            batch.judge_on(path, &PagedAttend::default(), SLACK);
        }
    }
}

#[test]
fn settings_hold_for_every_query_token() {
    for kind in [Kind::Normal, Kind::Scaled(30.0), Kind::Scaled(1e-3)] {
        let kinds = [kind, Kind::Offset, Kind::Normal];
        let shape = Shape { tokens: 5, group: 5, kinds, ..raw_only(64) };
        let members = [member(4, &[(4, 0, 300), (4, 0, 10)]), member(5, &[(4, 0, 0), (4, 0, 70)])];
        let batch = Batch::new(&shape, &members, 0);
        let [first, second] = [batch.tables.next[0] - 9, batch.tables.next[1] - 60];
        let firsts = [first, second];
        for causal in [Causal::Newest, Causal::From(&firsts), Causal::From(&[0, 3]), Causal::All] {
            for (soft_cap, window) in [
                (None, None),
                (Some(30.0), None),
                (Some(0.5), Some(1)),
                (None, Some(100)),
                (Some(50.0), Some(u32::MAX)),
            ] {
                let window = window.filter(|_| causal != Causal::All);
                let config = PagedAttend { scale: Some(0.2), causal, soft_cap, window };
                for path in PATHS {
                    batch.judge_on(path, &config, SLACK);
                }
            }
        }
    }
}

#[test]
fn a_query_that_sees_nothing_says_so() {
    let shape = raw_only(64);
    let batch = Batch::new(&shape, &[member(6, &[(0, 0, 0), (0, 0, 9)])], 0);
    for path in PATHS {
        let got = batch.run(path, &PagedAttend::default());
        assert_eq!(got.lse[..2], [NO_KEY; 2]);
        assert!(got.out[..2 * 64].iter().all(|x| *x == 0.0));
        assert!(got.lse[2] > NO_KEY);
    }
}

/// The answers of member `at` of a batch.
pub fn part(batch: &Batch, values: &[f32], at: usize) -> Vec<f32> {
    let each = values.len() / batch.tables.next.len();
    values[at * each..(at + 1) * each].to_vec()
}

/// Holds each member's answers in a batch to those that it gets alone, whatever the slabs.
pub fn alone_and_together(shape: &Shape, members: &[Member], config: &PagedAttend<'_>) {
    let batch = Batch::new(shape, members, 0);
    let roomy = Shape { slab_pages: 100, ..shape.clone() };
    let narrow = Shape { slab_pages: 1, ..shape.clone() };
    for path in PATHS {
        let together = batch.run(path, config);
        batch.judge(&together, config, SLACK);
        for other in [Batch::new(&roomy, members, 0), Batch::new(&narrow, members, 77)] {
            assert_eq!(other.run(path, config), together, "{path:?}");
        }
        for (at, own) in members.iter().enumerate() {
            let alone = Batch::new(shape, core::slice::from_ref(own), 9 + at as u64);
            let alone = alone.run(path, config);
            assert_eq!(alone.out, part(&batch, &together.out, at), "{path:?} {at}");
            assert_eq!(alone.lse, part(&batch, &together.lse, at), "{path:?} {at}");
        }
    }
}

#[test]
fn a_member_is_answered_alike_alone_in_a_batch_and_wherever_its_pages_lie() {
    let shape = Shape { tokens: 3, slab_pages: 5, ..raw_only(64) };
    let members = [
        member(7, &[(4, 0, 1300), (4, 0, 40)]),
        member(8, &[(4, 0, 7), (2, 0, 0)]),
        member(9, &[(4, 0, 100), (4, 0, 330)]),
    ];
    alone_and_together(&shape, &members, &PagedAttend::default());
    let config = PagedAttend { soft_cap: Some(20.0), window: Some(700), ..PagedAttend::default() };
    alone_and_together(&shape, &members, &config);
    let wide = Shape { dims: [128, 256], chunk: 33, ..shape };
    alone_and_together(&wide, &members, &PagedAttend::default());
}

#[test]
fn dispatches_do_not_grow_with_the_batch() -> Result<()> {
    let shape = raw_only(64);
    let one = [member(1, &[(4, 0, 200), (4, 0, 30)])];
    let many: Vec<Member> = (0..9).map(|seed| member(seed, &[(4, 0, 130), (4, 0, 70)])).collect();
    let config = PagedAttend::default();
    let count = |members: &[Member], slab_pages| {
        let shape = Shape { slab_pages, ..shape.clone() };
        Batch::new(&shape, members, 0).gpu_counted(&config).map(|(_, count)| count)
    };
    assert_eq!(count(&one, 20)?, 4);
    assert_eq!(count(&many, 20)?, 4);
    // Six slabs: two groups, and where a unit lies in both, its pages are copied out of each and read.
    assert_eq!(count(&many, 8)?, 8);
    Ok(())
}

#[test]
fn counts_move_without_the_lists() -> Result<()> {
    let shape = Shape { tokens: 2, ..raw_only(64) };
    let members = [member(11, &[(4, 0, 130), (4, 0, 66)]), member(12, &[(4, 0, 30), (4, 0, 64)])];
    let full = Batch::new(&shape, &members, 3);
    let mut before = Batch::new(&shape, &members, 3);
    for rows in &mut before.tables.tail_rows {
        *rows -= 1;
    }
    for next in &mut before.tables.next {
        *next -= 1;
    }
    let config = PagedAttend::default();
    let context = crate::support::context();
    let tables = &full.tables;
    let (later, _) = before.gpu_with(&config, |device| {
        let (lists, counts) = device.bytes();
        assert!(lists > 4 * 9 && counts == 4 * (2 + 4 + 4));
        device.recounted(context, &tables.next, &tables.sink_rows, &tables.tail_rows)
    })?;
    assert_eq!(later, full.run(Path::Gpu, &config));
    let few = before.gpu_with(&config, |device| device.recounted(context, &[1], &[], &[]));
    assert!(matches!(few, Err(Error::Length { .. })));
    Ok(())
}

#[test]
fn pages_outside_their_slab_are_never_read() -> Result<()> {
    // Five pages a slab: three bits of a number are its place, of which 5 to 7 name none.
    let shape = Shape { slab_pages: 5, ..raw_only(64) };
    let mut batch = Batch::new(&shape, &[member(13, &[(4, 0, 300), (4, 0, 100)])], 0);
    let (class, layout) = (PageClass::Raw, batch.layout.clone());
    assert_eq!((layout.pages_per_slab(class), layout.shift(class)), (5, 3));
    let whole = batch.run(Path::Gpu, &PagedAttend::default());
    batch.tables.tail[1] = layout.page(class, 0, 7);
    let config = PagedAttend::default();
    let (got, _) = batch.gpu_counted(&config)?;
    assert!(got.out.iter().all(|x| x.is_finite()));
    // The other head does not notice.
    assert_eq!(got.out[2 * 64..], whole.out[2 * 64..]);
    assert_ne!(got.out[..2 * 64], whole.out[..2 * 64]);
    // As if the page's rows were not there.
    let mut rows = batch.rows.clone();
    for (list, dim) in [(&mut rows.keys[0], 64), (&mut rows.values[0], 64)] {
        list.drain((4 + 64) * dim..(4 + 128) * dim);
    }
    rows.positions[0].drain(4 + 64..4 + 128);
    batch.rows = rows;
    batch.judge(&got, &config, SLACK);
    let error = batch.cpu(&config).expect_err("a page outside");
    assert!(matches!(error, Error::Offsets { argument: "page table", index: 1, .. }), "{error}");
    // A slab that is not there is refused on both paths.
    for page in [layout.page(class, 40, 0), PageId::NONE] {
        batch.tables.tail[1] = page;
        assert!(matches!(batch.cpu(&config), Err(Error::Offsets { .. })));
        assert!(matches!(batch.gpu_counted(&config), Err(Error::Offsets { .. })));
    }
    Ok(())
}

#[test]
fn parts_that_do_not_fit_are_refused_by_name() {
    let shape = Shape { tokens: 2, ..raw_only(64) };
    let batch = || Batch::new(&shape, &[member(14, &[(4, 0, 30)])], 0);
    let both = |batch: &Batch, config: &PagedAttend<'_>| {
        let gpu = batch.gpu_counted(config).map(|_| ()).expect_err("refused").to_string();
        let cpu = batch.cpu(config).expect_err("refused").to_string();
        assert_eq!(cpu, gpu);
        cpu
    };
    let config = PagedAttend::default();
    let mut wrong = batch();
    wrong.tables.tail_rows[0] = 65;
    assert_eq!(both(&wrong, &config), "tail_rows[0] is 65, expected at most what the pages hold");
    let mut wrong = batch();
    wrong.tables.sink_rows[0] = 5;
    assert!(both(&wrong, &config).starts_with("sink_rows[0] is 5"));
    let mut wrong = batch();
    wrong.tables.tail_offsets[1] = 7;
    assert!(both(&wrong, &config).starts_with("tail_offsets[1] is 7"));
    let mut wrong = batch();
    wrong.tables.next[0] = 1;
    assert_eq!(both(&wrong, &config), "query tokens is 2, expected 1 to 1");
    let mut wrong = batch();
    wrong.tables.next.push(9);
    assert!(both(&wrong, &config).starts_with("page table rows is 1"));
    let mut wrong = batch();
    wrong.shape.raw = Dtype::F32;
    assert_eq!(both(&wrong, &config), "raw is f32, expected f16");
    let good = batch();
    for (config, text) in [
        (PagedAttend { soft_cap: Some(0.0), ..config }, "soft_cap is 0"),
        (PagedAttend { soft_cap: Some(f32::NAN), ..config }, "soft_cap is NaN"),
        (PagedAttend { window: Some(0), ..config }, "window is 0"),
        (PagedAttend { window: Some(3), causal: Causal::All, ..config }, "window is 3"),
        (PagedAttend { causal: Causal::From(&[1, 2]), ..config }, "first positions holds 2"),
        (PagedAttend { causal: Causal::From(&[u32::MAX]), ..config }, "causal is 4294967295"),
        (PagedAttend { scale: Some(f32::INFINITY), ..config }, "scale is inf"),
    ] {
        let got = both(&good, &config);
        assert!(got.starts_with(text), "{got}");
    }
}
