use wgkv::nsnquant::Hadamard;

use crate::support::golden::Golden;

const DIMS: [usize; 16] = [8, 16, 24, 32, 40, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512];

fn matrix(dim: usize, apply: impl Fn(&Hadamard, &mut [f32])) -> Vec<Vec<f32>> {
    let hadamard = Hadamard::new("head_dim", dim).expect("a transform");
    (0..dim)
        .map(|column| {
            let mut x = vec![0.0; dim];
            x[column] = 1.0;
            apply(&hadamard, &mut x);
            x
        })
        .collect()
}

#[test]
fn is_orthogonal_and_its_inverse_is_the_transpose() {
    for dim in DIMS {
        let forward = matrix(dim, |h, x| h.forward(x));
        let inverse = matrix(dim, |h, x| h.inverse(x));
        let entry = (1.0 / (dim as f64).sqrt()) as f32;
        for i in 0..dim {
            for j in 0..dim {
                assert_eq!(forward[i][j].abs(), entry, "dim {dim}");
                assert_eq!(forward[i][j], inverse[j][i], "dim {dim}");
            }
            for k in 0..dim {
                let dot: f64 =
                    (0..dim).map(|j| f64::from(forward[i][j]) * f64::from(forward[k][j])).sum();
                let expected = f64::from(u8::from(i == k));
                assert!((dot - expected).abs() < 1e-6, "dim {dim}, columns {i} and {k}: {dot}");
            }
        }
    }
}

#[test]
fn equals_the_reference_matrices() {
    let file = Golden::open("nsn_codebooks.safetensors");
    for dim in [48, 96] {
        let reference = file.numbers(&format!("hadamard_matrix_{dim}"));
        let ours = matrix(dim, |h, x| h.forward(x));
        for row in 0..dim {
            for column in 0..dim {
                let difference = reference[row * dim + column] - f64::from(ours[column][row]);
                assert!(difference.abs() < 1e-6, "dim {dim}, {row}, {column}");
            }
        }
    }
}

#[test]
fn other_dimensions_are_refused_by_name() {
    for dim in [0, 4, 12, 20, 60, 72, 104, 144, 640, 1024] {
        let error = Hadamard::new("head_dim", dim).expect_err("no such transform");
        assert!(error.to_string().contains(&format!("head_dim is {dim}")), "{error}");
    }
}
