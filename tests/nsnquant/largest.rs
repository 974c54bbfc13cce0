//! The largest chunks: llvmpipe gives up an invocation's loops after 65,535 rounds in all, and leaves a
//! page whose last tokens are wrong.

use wgkv::nsnquant::cpu;
use wgkv::shape::Dtype;

use crate::common::Path;
use crate::generate::{Kind, Random, rows, typed};
use crate::schemes::codec_of;
use crate::support::schemes::named;

const CHUNK: usize = 1024;

/// Codes that rounding decides are one in some 100,000; a batch of tokens is 1 in 256 of the page or
/// more.
#[test]
fn every_profile_packs_1024_tokens_of_the_widest_heads() {
    for (name, scheme) in named() {
        // 40 and 448 channels have the transforms with the most rounds.
        for dim in [512, 448, 40] {
            let codec = codec_of(scheme, dim, CHUNK);
            let data = typed(&rows(&mut Random(dim as u64), Kind::Normal, CHUNK, dim), Dtype::F16);
            let [host, device] =
                [Path::Cpu, Path::Gpu].map(|path| path.encode(&codec, data.elements(), &[0]));
            let (host, device) = (host.expect("a page"), device.expect("a page"));
            let different = host.iter().zip(&device).filter(|(a, b)| a != b).count();
            println!("{name} {dim}: {different} of {} words differ", host.len());
            assert!(different * 1000 <= host.len(), "{name} {dim}: {different} of {}", host.len());
            let [host, device] = [
                cpu::decode(&codec, &device).expect("rows"),
                Path::Gpu.decode(&codec, &device).expect("rows"),
            ];
            let far = host.iter().zip(&device).position(|(a, b)| (a - b).abs() > 1e-4);
            assert!(far.is_none(), "{name} {dim}: value {far:?}");
        }
    }
}
