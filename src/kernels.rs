//! Every kernel of the library with every variant that can occur, for tests that translate and lint
//! them all and for callers who want to build pipelines ahead of their first use.

use crate::cache;
use crate::gpu::{self, Kernel, Variant};
use crate::{attention, nestedkv, nsnquant, primitives};

/// All kernels, each with its variants.
pub fn kernels() -> Vec<(&'static Kernel, Vec<Variant>)> {
    let mut kernels = vec![
        (gpu::completion_kernel(), vec![Variant::default()]),
        (gpu::self_test_kernel(), vec![Variant::default()]),
        (cache::gpu::rows::kernel(), cache::gpu::rows::variants()),
        (cache::gpu::copy::kernel(), cache::gpu::copy::variants()),
        (cache::gpu::write::kernel(), cache::gpu::write::variants()),
        (cache::gpu::keep::kernel(), cache::gpu::keep::variants()),
        (cache::gpu::pack::kernel(), cache::gpu::pack::variants()),
        (cache::gpu::restore::kernel(), cache::gpu::restore::variants()),
        (cache::gpu::fetch::kernel(), cache::gpu::fetch::variants()),
        (cache::gpu::scales::kernel(), cache::gpu::scales::variants()),
        (nsnquant::gpu::encode_kernel(), nsnquant::gpu::encode_variants()),
        (nsnquant::gpu::decode_kernel(), nsnquant::gpu::decode_variants()),
        (nsnquant::gpu::squares_kernel(), nsnquant::gpu::squares_variants()),
        (nsnquant::gpu::key_scale_kernel(), nsnquant::gpu::key_scale_variants()),
    ];
    kernels.extend(primitives::gpu::kernels());
    kernels.extend(nestedkv::gpu::kernels());
    kernels.extend(attention::gpu::kernels());
    kernels
}
