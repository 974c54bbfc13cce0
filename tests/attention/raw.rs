//! Raw rows.

use wgkv::Error;
use wgkv::attention::{AttendConfig, NO_KEY, cpu};
use wgkv::shape::Dtype;

use crate::common::{Case, Data, Kind, PATHS, Shape};

/// Each query head must read KV head `j * H / heads`, which holds a value of its own.
pub fn groups(packed: bool, check: impl Fn(&Case)) {
    for (heads, kv_heads) in [(3, 3), (9, 3), (10, 2), (12, 1), (14, 2), (28, 4), (33, 1), (64, 1)]
    {
        for tokens in [1, 4] {
            let mut shape = Shape::simple(0, 64, Dtype::F16);
            shape.kv_heads = kv_heads;
            shape.group = heads / kv_heads;
            shape.tokens = tokens;
            shape.raw = vec![70; kv_heads];
            if packed {
                shape.chunk = 32;
                shape.pages = vec![2; kv_heads];
            }
            check(&Case::new(shape, [Kind::Normal; 3], 7));
        }
    }
}

/// Gives each KV head the constant value of its number.
pub fn constant_heads(case: &mut Case) {
    let per_head = case.shape.raw[0] * case.shape.dim_v;
    let values: Vec<f32> =
        (0..case.shape.kv_heads * per_head).map(|at| (at / per_head + 1) as f32).collect();
    case.values = Data::new(case.shape.dtype, &values);
}

#[test]
fn query_heads_read_the_head_of_their_group() {
    groups(false, |case| {
        let mut case = Case::new(case.shape.clone(), [Kind::Normal; 3], 8);
        constant_heads(&mut case);
        let per_head = case.shape.tokens * case.shape.dim_v;
        for path in PATHS {
            for (at, value) in case.run(path).out.iter().enumerate() {
                let expected = (at / per_head / case.shape.group + 1) as f32;
                assert!((value - expected).abs() <= 1e-6 * expected, "at {at}: {value}");
            }
        }
    });
}

#[test]
fn query_heads_that_do_not_divide_are_refused_with_both_counts() {
    for (heads, kv_heads) in [(33, 2), (3, 2), (2, 4), (0, 2)] {
        let mut shape = Shape::simple(0, 64, Dtype::F32);
        shape.kv_heads = kv_heads;
        shape.raw = vec![5; kv_heads];
        let case = Case::new(shape, [Kind::Normal; 3], 9);
        let data = Data::new(Dtype::F32, &vec![1.0; heads * 64]);
        let mut queries = case.query_view();
        (queries.heads, queries.data) = (heads, data.elements());
        let error = cpu::attend(&case.view(), &queries, &case.config).expect_err("bad heads");
        assert!(matches!(error, Error::QueryHeads { .. }));
        let text = error.to_string();
        assert!(
            text.contains(&heads.to_string()) && text.contains(&kv_heads.to_string()),
            "{text}"
        );
    }
}

#[test]
fn keys_and_values_may_differ_in_width() {
    for (dim_k, dim_v) in [(192, 128), (64, 256), (256, 64), (8, 512), (512, 8)] {
        let mut shape = Shape::simple(0, dim_k, Dtype::F16);
        (shape.dim_v, shape.batch, shape.kv_heads, shape.group) = (dim_v, 2, 3, 2);
        shape.raw = vec![200, 1, 0, 199, 33, 64];
        let case = Case::new(shape, [Kind::Normal, Kind::Offset, Kind::Offset], 10);
        case.judge_paths(2.0);
    }
    let mut case = Case::new(Shape::simple(4, 512, Dtype::F16), [Kind::Normal; 3], 11);
    case.shape.dim_k = 576;
    let error = cpu::attend(&case.view(), &case.query_view(), &case.config).expect_err("576");
    assert!(matches!(error, Error::HeadDim { got: 576, .. }), "{error}");
}

#[test]
fn causal_attention_goes_by_positions() {
    let mut shape = Shape::simple(300, 64, Dtype::F32);
    (shape.group, shape.tokens) = (3, 9);
    let mut case = Case::new(shape, [Kind::Normal, Kind::Offset, Kind::Normal], 12);
    for first in [0, 5, 250, 291, 299] {
        case.config.causal = Some(first);
        case.judge_paths(2.0);
    }
    // Positions 0 to 9 are gone: the first queries see nothing.
    case.positions.iter_mut().for_each(|p| *p += 10);
    case.config.causal = Some(5);
    for path in PATHS {
        let got = case.run(path);
        assert_eq!(got.lse[4], NO_KEY);
        assert!(got.out[4 * 64..5 * 64].iter().all(|v| *v == 0.0));
        assert!(got.lse[5] > -1e3);
        case.judge(&got, 2.0);
    }
    case.config.causal = Some(u32::MAX);
    let error = cpu::attend(&case.view(), &case.query_view(), &case.config);
    assert!(matches!(error, Err(Error::OutOfRange { argument: "causal", .. })));
}

#[test]
fn non_finite_elements_read_as_zero_and_harm_no_neighbour() {
    let mut shape = Shape::simple(200, 64, Dtype::F16);
    shape.group = 4;
    let case = Case::new(shape.clone(), [Kind::Holes; 3], 13);
    case.judge_paths(2.0);
    let clean = Case::new(shape, [Kind::Normal; 3], 14);
    let mut spoiled = Case::new(clean.shape.clone(), [Kind::Normal; 3], 14);
    if let Data::F16(queries) = &mut spoiled.queries {
        queries[64 + 3] = half::f16::NAN;
    }
    for path in PATHS {
        let (a, b) = (clean.run(path), spoiled.run(path));
        assert_eq!(a.out[..64], b.out[..64]);
        assert_eq!(a.out[128..], b.out[128..]);
    }
}

#[test]
fn parts_that_do_not_fit_are_refused_by_name() {
    let case = Case::new(Shape::simple(9, 64, Dtype::F32), [Kind::Normal; 3], 15);
    let queries = case.query_view();
    let config = AttendConfig { causal: Some(3), ..AttendConfig::default() };
    let mut view = case.view();
    view.raw_positions = &[];
    assert!(cpu::attend(&view, &queries, &AttendConfig::default()).is_ok());
    let error = cpu::attend(&view, &queries, &config).expect_err("no positions");
    assert_eq!(error.to_string(), "raw_positions holds 0 elements, expected 9");
    let mut view = case.view();
    view.raw_values = view.raw_values.slice(0..64);
    let error = cpu::attend(&view, &queries, &config).expect_err("few values");
    assert_eq!(error.to_string(), "raw_values holds 64 elements, expected 576");
    let mut view = case.view();
    view.raw_offsets = &[1, 9];
    assert!(matches!(
        cpu::attend(&view, &queries, &config),
        Err(Error::Offsets { argument: "raw_offsets", index: 0, .. })
    ));
    let mut other = queries;
    other.head_dim = 32;
    assert!(matches!(cpu::attend(&case.view(), &other, &config), Err(Error::Mismatch { .. })));
}
