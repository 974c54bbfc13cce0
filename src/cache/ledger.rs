//! Bytes that a cache and its forks hold together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The account of one family of caches: a cache and all that were forked from it.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<AtomicU64>);

impl Ledger {
    /// Books `bytes` until the receipt is dropped.
    pub(super) fn hold(&self, bytes: u64) -> Held {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Held { ledger: self.clone(), bytes }
    }

    /// Bytes held now.
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bytes on the account; they lie beside the memory they stand for and go with it.
#[derive(Debug)]
pub(super) struct Held {
    ledger: Ledger,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ledger.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
