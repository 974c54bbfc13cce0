//! The GPU path of NestedKV. Nothing here submits or waits: every function records into the caller's
//! encoder and returns the buffers that its work fills.

pub mod anchor;
pub mod anomaly;
pub mod append;
pub mod blend;
pub mod budgets;
mod evict;
pub mod gate;
pub mod mean;
pub mod norm;
mod score;
pub mod spread;
mod state;
pub mod surprise;

pub use crate::primitives::gpu::gather::{Gathered, first_beyond};
pub use budgets::allocate_head_budgets;
pub use evict::{DeviceEvicted, DeviceKept, compress_prefill, gather, keep};
pub(crate) use score::check_limits;
pub use score::{DeviceScores, score};
pub use state::{DeviceAppended, DeviceKv, NestedKvState};

use crate::gpu::{Kernel, Variant};
use crate::primitives::gpu::lane_variants;

/// Every kernel of this folder with its variants.
pub fn kernels() -> Vec<(&'static Kernel, Vec<Variant>)> {
    let plain = [
        &norm::KERNEL,
        &anchor::KERNEL,
        &mean::KERNEL,
        &anomaly::KERNEL,
        &blend::KERNEL,
        &gate::KERNEL,
        &append::KERNEL,
    ];
    let by_row = [&spread::KERNEL, &surprise::KERNEL, &budgets::KERNEL];
    let plain = plain.into_iter().map(|kernel| (kernel, vec![Variant::default()]));
    plain.chain(by_row.into_iter().map(|kernel| (kernel, lane_variants()))).collect()
}
