//! Tables that name what is not there: kernels built without guards of bounds (`GUARDED` in
//! `src/gpu/kernel.rs`) answer as those that have them.

use wgkv::Error;
use wgkv::attention::Causal;
use wgkv::attention::PagedAttend;
use wgkv::layout::pool::{PageClass, PageId};
use wgkv::layout::{Bits, Profile, Scheme};
use wgkv::shape::Dtype;

use crate::common::{Case, Kind, PATHS, Path, Random, Shape as FlatShape};
use crate::packed::SLACK;
use crate::paged::{Batch, Member, Shape};

/// Plain books, which the unguarded kernels read.
fn plain() -> [Scheme; 2] {
    [Bits::Three, Bits::Two].map(|bits| Profile::Tuned.scheme(bits))
}

/// Pages of plain books, in one slab or in two, asked by so many query heads a KV head.
fn batch(slab_pages: usize, group: usize) -> Batch {
    let schemes = Some(plain());
    let shape = Shape { schemes, chunk: 32, slab_pages, group, ..Shape::simple(64) };
    let heads = vec![(4, 7, 30), (4, 1, 0)];
    Batch::new(&shape, &[Member { seed: 31, heads }], 0)
}

#[test]
fn packed_pages_beyond_their_slab_are_left_out_by_every_kernel() -> wgkv::Result<()> {
    let class = PageClass::Packed;
    // Each of the kernels, with one slab and with several; all of them are slow to compile in software.
    let cases =
        [(1, 2, Causal::All), (1, 1, Causal::Newest), (2, 1, Causal::All), (4, 1, Causal::Newest)];
    for (group, slab_pages, causal) in cases {
        let mut batch = batch(slab_pages, group);
        let layout = batch.layout.clone();
        let config = PagedAttend { causal, ..PagedAttend::default() };
        let whole = batch.run(Path::Gpu, &config);
        batch.judge(&whole, &config, SLACK);
        let slabs = batch.slabs[class.index()].len();
        assert_eq!(slabs > 1, slab_pages == 1, "{slabs} slabs");
        // The first place that there is not, and the last that a number can name.
        let (first, last) = (layout.pages_per_slab(class), (1u32 << layout.shift(class)) - 1);
        assert!(first <= last);
        let good = batch.tables.packed[2];
        let slab = layout.slab_of(class, good);
        let missing = [first, last].map(|index| layout.page(class, slab, index));
        let mut rows = batch.rows.clone();
        for list in [&mut rows.keys[0], &mut rows.values[0]] {
            list.drain((4 + 2 * 32) * 64..(4 + 3 * 32) * 64);
        }
        rows.positions[0].drain(4 + 2 * 32..4 + 3 * 32);
        batch.rows = rows;
        for page in missing {
            batch.tables.packed[2] = page;
            let (got, _) = batch.gpu_counted(&config)?;
            batch.judge(&got, &config, SLACK);
            // The other head does not notice.
            assert_eq!(got.out[group * 64..], whole.out[group * 64..]);
            let error = batch.cpu(&config).expect_err("a page outside");
            assert!(matches!(error, Error::Offsets { argument: "page table", .. }));
        }
        // A slab that is not there is refused on both paths.
        for page in [layout.page(class, 40, 0), PageId::NONE] {
            batch.tables.packed[2] = page;
            assert!(matches!(batch.cpu(&config), Err(Error::Offsets { .. })));
            assert!(matches!(batch.gpu_counted(&config), Err(Error::Offsets { .. })));
        }
        // So is one that is shorter than the layout says.
        batch.tables.packed[2] = good;
        if let Some(Some(words)) = batch.slabs[class.index()].first_mut() {
            words.truncate(words.len() / 2);
        }
        assert!(matches!(batch.gpu_counted(&config), Err(Error::Length { .. })));
    }
    Ok(())
}

/// Rows side by side in plain pages and raw: three rows of 3, 0 and 2 pages.
fn flat(group: usize) -> Case {
    let shape = FlatShape {
        batch: 1,
        kv_heads: 3,
        group,
        tokens: 1,
        dim_k: 64,
        dim_v: 64,
        raw: vec![40, 7, 0],
        pages: vec![3, 0, 2],
        chunk: 32,
        bits: (2, 2),
        dtype: Dtype::F16,
    };
    let mut case = Case::new(shape, [Kind::Normal; 3], 32);
    case.repack(plain(), [Kind::Normal; 2], 32);
    case
}

#[test]
fn offsets_on_the_device_past_the_rows_end_there() {
    for group in [1, 2, 4] {
        let good = flat(group);
        let want = good.gpu();
        good.judge(&want, SLACK);
        // The last row claims four billion pages and tokens, and gets those that there are.
        let mut case = flat(group);
        *case.page_offsets.last_mut().expect("an offset") = u32::MAX;
        *case.raw_offsets.last_mut().expect("an offset") = u32::MAX;
        let got = case.gpu();
        assert_eq!((&got.out, &got.lse), (&want.out, &want.lse));
        // Rows that end before they begin hold nothing; the row after them begins where it says.
        case.page_offsets = vec![5, 2, 3, 5];
        case.raw_offsets = vec![u32::MAX, 40, 40, 47];
        let got = case.gpu();
        assert!(got.out.iter().chain(&got.lse).all(|x| x.is_finite()));
        assert!(got.out[..group * 64].iter().all(|x| *x == 0.0));
        assert!(got.out[group * 64..].iter().any(|x| *x != 0.0));
        // Only beyond the end.
        case.page_offsets = vec![9, u32::MAX, 6, 8];
        case.raw_offsets = vec![48, 50, 1 << 31, u32::MAX];
        assert!(case.gpu().out.iter().all(|x| *x == 0.0));
    }
}

#[test]
fn plain_pages_that_no_encoder_made_give_finite_outputs() {
    for group in [1, 2, 4] {
        let mut case = flat(group);
        let mut random = Random(33);
        for pages in [&mut case.key_pages, &mut case.value_pages] {
            pages.iter_mut().for_each(|word| *word = random.bits() as u32);
        }
        for path in PATHS {
            let got = case.run(path);
            assert!(got.out.iter().chain(&got.lse).all(|x| x.is_finite()), "{path:?}: {got:?}");
        }
    }
}
