//! Reading and writing safetensors files.

mod checksum;
mod fail;
mod memory;
mod source;
mod write;

pub use fail::{Fail, readable, told};
pub use memory::{Memory, room};
pub use source::{Source, said};
pub use wgkv::files::{Data, FileDtype, Header, shown};
pub use write::{Output, Payload, make_folder, try_place, write_whole};
