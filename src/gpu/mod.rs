//! GPU plumbing: adopts the caller's device, builds pipelines, records dispatches, reads back.
//!
//! Nothing here creates a device, submits, polls or blocks; the caller does.

mod buffer;
mod context;
mod dispatch;
#[cfg(feature = "conformance")]
mod faults;
mod kernel;
mod params;
mod readback;
mod requirements;
mod self_test;
mod tensor;
mod timing;

pub use buffer::{Slice, upload};
pub use context::{Context, ContextDescriptor};
pub use dispatch::{Groups, Recorder};
#[cfg(feature = "conformance")]
pub use faults::Fault;
pub use kernel::{Binding, Kernel, Variant};
#[allow(unused_imports, reason = "methods declare their parameters with it")]
pub(crate) use params::params;
pub use params::{Magic, Params, ParamsLayout};
pub use readback::{Readback, kernel as completion_kernel};
pub(crate) use requirements::binding_limit;
pub use requirements::{optional_features, required_features, required_limits};
pub use self_test::{SelfTest, SelfTestFault, SelfTestPart, self_test_kernel};
pub use tensor::DeviceTensor;
pub use timing::{Span, Timing};
