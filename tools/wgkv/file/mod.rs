//! Reading and writing safetensors files.

mod fail;
mod header;
mod sniff;
mod source;
mod write;

pub use fail::{Fail, shown};
pub use header::{FileDtype, Header};
pub use source::{Data, Source, said};
pub use write::{Output, Payload};
