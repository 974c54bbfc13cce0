//! Tables that name what is not there: kernels built without guards of bounds (`GUARDED` in
//! `src/gpu/kernel.rs`) answer as those that have them.

use wgkv::layout::{Bits, Profile, Scheme};
use wgkv::shape::Dtype;

use crate::common::{Case, Kind, PATHS, Random, Shape as FlatShape};
use crate::packed::SLACK;

/// Plain books, which the unguarded kernels read.
fn plain() -> [Scheme; 2] {
    [Bits::Three, Bits::Two].map(|bits| Profile::Tuned.scheme(bits))
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
