//! Range: what the scaling of queries and the split weights must survive.

use wgkv::attention::AttendConfig;
use wgkv::shape::Dtype;

use crate::common::{Case, Kind, PATHS, Shape};

#[test]
fn large_products_stay_finite() {
    let mut shape = Shape::simple(100, 128, Dtype::F16);
    shape.pages = vec![2];
    let kinds = [Kind::Constant(200.0), Kind::Constant(200.0), Kind::Normal];
    let case = Case::new(shape, kinds, 1);
    case.judge_paths(2.0);
}

#[test]
fn long_sums_of_large_values_stay_finite() {
    let kinds = [Kind::Normal, Kind::Normal, Kind::Constant(60000.0)];
    let case = Case::new(Shape::simple(40_000, 64, Dtype::F16), kinds, 2);
    for path in PATHS {
        let got = case.run(path);
        assert!(got.out.iter().all(|v| (v - 60000.0).abs() <= 0.6), "{}", got.out[0]);
    }
}

#[test]
fn the_ends_of_bfloat16_and_f32_survive() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for factor in [1e-38, 1e-30, 1e-7, 1e20, 1e37] {
            let mut shape = Shape::simple(70, 64, dtype);
            shape.tokens = 3;
            for kinds in [
                [Kind::Scaled(factor), Kind::Normal, Kind::Normal],
                [Kind::Normal, Kind::Scaled(factor), Kind::Normal],
                [Kind::Normal, Kind::Normal, Kind::Scaled(factor.max(1e-27))],
                [
                    Kind::Scaled(factor.min(1e30)),
                    Kind::Scaled(1.0 / factor.min(1e30)),
                    Kind::Normal,
                ],
            ] {
                let case = Case::new(shape.clone(), kinds, 3);
                case.judge_paths(2.0);
            }
        }
    }
}

#[test]
fn packed_rows_beyond_f16_survive() {
    for factor in [1e6, 1e30, 2e37] {
        let mut shape = Shape::simple(3, 64, Dtype::Bf16);
        shape.pages = vec![2];
        let kinds = [Kind::Scaled(1.0 / factor), Kind::Scaled(factor), Kind::Scaled(factor)];
        let case = Case::new(shape, kinds, 4);
        case.judge_paths(2.0);
    }
}

#[test]
fn zero_queries_weigh_all_keys_alike() {
    let kinds = [Kind::Constant(0.0), Kind::Offset, Kind::Normal];
    let case = Case::new(Shape::simple(333, 80, Dtype::F32), kinds, 5);
    for path in PATHS {
        let got = case.run(path);
        assert!((got.lse[0] - 333f32.ln()).abs() < 1e-5);
        case.judge(&got, 2.0);
    }
}

#[test]
fn any_finite_scale_is_kept_and_others_refused() {
    let kinds = [Kind::Normal; 3];
    let mut case = Case::new(Shape::simple(50, 64, Dtype::F32), kinds, 6);
    for scale in [0.0, -0.3, 1.0, 1e-20, 1000.0] {
        case.config = AttendConfig { scale: Some(scale), ..AttendConfig::default() };
        case.judge_paths(2.0);
    }
    for scale in [f32::NAN, f32::INFINITY, 2e6] {
        let config = AttendConfig { scale: Some(scale), ..AttendConfig::default() };
        let answer = wgkv::attention::cpu::attend(&case.view(), &case.query_view(), &config);
        assert!(answer.expect_err("a bad scale").to_string().starts_with("scale is"));
    }
}
