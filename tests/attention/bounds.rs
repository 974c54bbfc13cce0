//! Tables that name what is not there: kernels built without guards of bounds (`GUARDED` in
//! `src/gpu/kernel.rs`) answer as those that have them.

use wgkv::Error;
use wgkv::attention::{Causal, PagedAttend};
use wgkv::layout::pool::{PageClass, PageId};
use wgkv::layout::{Bits, Profile, Scheme};
use wgkv::shape::Dtype;

use crate::common::{Case, Kind, PATHS, Path, Random, Shape as FlatShape};
use crate::integers;
use crate::packed::SLACK;
use crate::paged::{Batch, Head, Member, Shape};

/// Plain books, which the unguarded kernels read.
fn plain() -> [Scheme; 2] {
    [Bits::Three, Bits::Two].map(|bits| Profile::Tuned.scheme(bits))
}

/// Channels, tokens of a page and the two heads of a batch in pages.
const DIM: usize = 64;
const CHUNK: usize = 32;
const HEADS: [Head; 2] = [(4, 5, 40), (4, 3, 0)];

/// Pages of plain books, so many raw ones to a slab, asked by so many query heads a KV head.
fn paged(slab_pages: usize, group: usize) -> Batch {
    let schemes = Some(plain());
    let shape = Shape { schemes, chunk: CHUNK, slab_pages, group, ..Shape::simple(DIM) };
    Batch::new(&shape, &[Member { seed: 31, heads: HEADS.to_vec() }], 0)
}

/// The table of a class, in which the first head's page at `place` stands, and the rows of that page.
fn entry(
    batch: &mut Batch,
    class: PageClass,
    place: usize,
) -> (&mut PageId, std::ops::Range<usize>) {
    let (sinks, packed, tail) = HEADS[0];
    let (table, first, rows) = match class {
        PageClass::Sink => (&mut batch.tables.sinks, 0, sinks),
        PageClass::Packed => (&mut batch.tables.packed, sinks + place * CHUNK, CHUNK),
        PageClass::Raw => {
            let first = sinks + packed * CHUNK + place * CHUNK;
            (&mut batch.tables.tail, first, CHUNK.min(tail - place * CHUNK))
        }
    };
    (&mut table[place], first..first + rows)
}

#[test]
fn pages_beyond_their_slab_are_left_out() -> wgkv::Result<()> {
    let mut tried = [0; 3];
    // In one slab of each class, and in several.
    for (slab_pages, group, causal) in [(7, 1, Causal::All), (1, 4, Causal::Newest)] {
        let config = PagedAttend { causal, ..PagedAttend::default() };
        let whole = paged(slab_pages, group).run(Path::Gpu, &config);
        paged(slab_pages, group).judge(&whole, &config, SLACK);
        for (class, place) in [(PageClass::Sink, 0), (PageClass::Packed, 1), (PageClass::Raw, 0)] {
            let mut batch = paged(slab_pages, group);
            let layout = batch.layout.clone();
            let several = batch.slabs[PageClass::Packed.index()].len() > 1;
            assert_eq!(several, slab_pages == 1);
            let (good, gone) = entry(&mut batch, class, place);
            let good = *good;
            for list in [&mut batch.rows.keys[0], &mut batch.rows.values[0]] {
                list.drain(gone.start * DIM..gone.end * DIM);
            }
            batch.rows.positions[0].drain(gone);
            // The first place that there is not, and the last that a number can name.
            let (first, last) = (layout.pages_per_slab(class), (1 << layout.shift(class)) - 1);
            // A slab of a power of two pages has a place for every number.
            for index in [first, last].into_iter().filter(|index| (first..=last).contains(index)) {
                tried[class.index()] += 1;
                let page = layout.page(class, layout.slab_of(class, good), index);
                *entry(&mut batch, class, place).0 = page;
                let (got, _) = batch.gpu_counted(&config)?;
                batch.judge(&got, &config, SLACK);
                // The other head does not notice.
                assert_eq!(got.out[group * DIM..], whole.out[group * DIM..], "{class:?} {index}");
                let error = batch.cpu(&config).expect_err("a page outside");
                assert!(matches!(error, Error::Offsets { argument: "page table", .. }), "{error}");
            }
            // A slab that is not there is refused on both paths, and one that is too short.
            *entry(&mut batch, class, place).0 = layout.page(class, 40, 0);
            assert!(matches!(batch.cpu(&config), Err(Error::Offsets { .. })));
            assert!(matches!(batch.gpu_counted(&config), Err(Error::Offsets { .. })));
            *entry(&mut batch, class, place).0 = good;
            if let Some(Some(words)) = batch.slabs[class.index()].first_mut() {
                words.truncate(words.len() / 2);
            }
            assert!(matches!(batch.gpu_counted(&config), Err(Error::Length { .. })));
        }
    }
    assert!(
        tried[PageClass::Packed.index()] == 4 && tried.iter().all(|count| *count >= 2),
        "{tried:?}"
    );
    Ok(())
}

#[test]
fn integers_leave_a_page_beyond_its_slab_out() -> wgkv::Result<()> {
    let device = integers::integers();
    let config = PagedAttend::default();
    for group in integers::GROUPS {
        let short = Shape { slab_pages: 7, ..integers::shape(integers::pairs()[1], group) };
        let mut batch = Batch::new(&short, &integers::members(&[(0, 9, 0), (0, 2, 0)]), 0);
        let (whole, _) = batch.gpu_on(&device, &config, Ok)?;
        let class = PageClass::Packed;
        let beyond = (1 << batch.layout.shift(class)) - 1;
        assert!(batch.layout.pages_per_slab(class) <= beyond);
        let slab = batch.layout.slab_of(class, batch.tables.packed[2]);
        batch.tables.packed[2] = batch.layout.page(class, slab, beyond);
        for list in [&mut batch.rows.keys[0], &mut batch.rows.values[0]] {
            list.drain(2 * integers::CHUNK * DIM..3 * integers::CHUNK * DIM);
        }
        batch.rows.positions[0].drain(2 * integers::CHUNK..3 * integers::CHUNK);
        let (got, _) = batch.gpu_on(&device, &config, Ok)?;
        batch.judge(&got, &config, integers::INTEGER_SLACK);
        // The other row does not notice.
        assert_eq!(got.out[group * DIM..], whole.out[group * DIM..]);
    }
    assert!(integers::built(&device, integers::PAGED) >= 3);
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
