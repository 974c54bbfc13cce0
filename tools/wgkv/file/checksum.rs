//! What tells that a file is the one that was written.

use wgkv::files::{Entry, Header};
use xxhash_rust::xxh3::Xxh3;

/// Where the metadata hold it.
pub const CHECKSUM: &str = "checksum";

/// XXH3-128 in the making over what a file says, however it is laid out: the metadata without the
/// checksum by their names, then the tensors by theirs. Every text comes after its length.
pub struct Checksum(Xxh3);

impl Checksum {
    /// Begins with the metadata.
    pub fn new(header: &Header) -> Self {
        let mut sum = Self(Xxh3::new());
        for (key, value) in header.metadata.iter().filter(|(key, _)| *key != CHECKSUM) {
            sum.text(key);
            sum.text(value);
        }
        sum.0.update(&u64::MAX.to_le_bytes());
        sum
    }

    fn text(&mut self, text: &str) {
        self.0.update(&(text.len() as u64).to_le_bytes());
        self.0.update(text.as_bytes());
    }

    /// Goes on with a tensor, whose bytes follow.
    pub fn tensor(&mut self, name: &str, entry: &Entry) {
        self.text(name);
        self.text(entry.dtype.name());
        self.0.update(&(entry.shape.len() as u64).to_le_bytes());
        for extent in &entry.shape {
            self.0.update(&(*extent as u64).to_le_bytes());
        }
    }

    /// Goes on with bytes of the tensor.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// 32 digits.
    pub fn digits(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}
