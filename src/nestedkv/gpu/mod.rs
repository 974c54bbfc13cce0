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
mod score;
pub mod spread;
mod state;

pub use crate::primitives::gpu::gather::{Gathered, first_beyond};
pub use budgets::allocate_head_budgets;
pub use evict::{DeviceEvicted, DeviceKept, compress_prefill, gather, keep};
pub(crate) use score::check_limits;
pub use score::{DeviceScores, score};
pub use state::{DeviceAppended, DeviceKv, NestedKvState};

use crate::gpu::{Kernel, Variant};

/// Every kernel of this folder with its variants.
pub fn kernels() -> Vec<(&'static Kernel, Vec<Variant>)> {
    let plain = [&mean::KERNEL, &blend::KERNEL, &gate::KERNEL, &append::KERNEL];
    let mut kernels = vec![(&anchor::KERNEL, anchor::variants())];
    kernels.extend(anomaly::kernels());
    let (kernel, variant) = spread::short();
    kernels.push((kernel, vec![variant]));
    let plain = plain.into_iter().chain(spread::kernels()).chain(budgets::kernels());
    kernels.extend(plain.map(|kernel| (kernel, vec![Variant::default()])));
    kernels
}
