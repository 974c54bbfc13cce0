//! The GPU path of NestedKV. Nothing here submits or waits: every function records into the caller's
//! encoder and returns the buffers that its work fills.

pub mod anchor;
pub mod anomaly;
pub mod blend;
pub mod budgets;
mod evict;
pub mod gate;
pub mod mean;
pub mod norm;
mod score;
pub mod spread;
pub mod surprise;

pub use crate::primitives::gpu::gather::{Gathered, first_beyond};
pub use budgets::allocate_head_budgets;
pub use evict::{DeviceEvicted, DeviceKept, compress_prefill, gather, keep};
pub use score::{DeviceScores, score};

use crate::gpu::{Kernel, Variant};

/// Every kernel of this folder with its variants.
pub fn kernels() -> Vec<(&'static Kernel, Vec<Variant>)> {
    [
        &norm::KERNEL,
        &anchor::KERNEL,
        &mean::KERNEL,
        &anomaly::KERNEL,
        &spread::KERNEL,
        &blend::KERNEL,
        &surprise::KERNEL,
        &gate::KERNEL,
        &budgets::KERNEL,
    ]
    .into_iter()
    .map(|kernel| (kernel, vec![Variant::default()]))
    .collect()
}
