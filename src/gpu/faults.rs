//! Faults that a context plants on purpose, so that a test can see who notices.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::kernel::{Kernel, Variant};

/// One fault in one kernel.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Other WGSL: `from`, which the kernel's source must hold exactly once, becomes `to`.
    Text {
        /// Name of the kernel, such as `nestedkv/anchor`.
        kernel: &'static str,
        /// Text of the kernel's source, its fragments included.
        from: &'static str,
        /// What stands there instead.
        to: &'static str,
    },
    /// Another value in the parameters of every dispatch.
    Parameter {
        /// Name of the kernel.
        kernel: &'static str,
        /// Name of a field of its parameters, or of one of their parts.
        field: &'static str,
        /// Makes the wrong word of the right one.
        change: fn(u32) -> u32,
    },
    /// Every dispatch but the first of the kernel has the parameters of the one before.
    Stale {
        /// Name of the kernel.
        kernel: &'static str,
    },
    /// Every dispatch has a workgroup less: the last is lost.
    Short {
        /// Name of the kernel.
        kernel: &'static str,
    },
}

impl Fault {
    /// Name of the kernel that has it.
    pub fn kernel(&self) -> &'static str {
        match self {
            Self::Text { kernel, .. }
            | Self::Parameter { kernel, .. }
            | Self::Stale { kernel }
            | Self::Short { kernel } => kernel,
        }
    }

    /// Byte offset of the field that it changes.
    pub(crate) fn offset(&self, kernel: &Kernel) -> Option<usize> {
        let Self::Parameter { field, .. } = self else { return None };
        let find = |fields: &[(&str, usize)]| {
            fields.iter().find(|(name, _)| name == field).map(|(_, offset)| *offset)
        };
        let whole = kernel.params;
        find(whole.fields).or_else(|| {
            whole.parts.iter().find_map(|(part, layout)| {
                let start = whole.fields.iter().find(|(name, _)| name == part)?.1;
                Some(start + find(layout.fields)?)
            })
        })
    }
}

/// The faults of a context.
#[derive(Debug, Default)]
pub(super) struct Planted {
    faults: Vec<Fault>,
    /// Parameters of the latest dispatch of each kernel that has stale ones.
    latest: Mutex<HashMap<&'static str, Vec<u8>>>,
}

impl Planted {
    pub(super) fn new(faults: &[Fault]) -> Self {
        Self { faults: faults.to_vec(), latest: Mutex::default() }
    }

    fn of(&self, kernel: &Kernel) -> impl Iterator<Item = &Fault> {
        let name = kernel.name;
        self.faults.iter().filter(move |fault| fault.kernel() == name)
    }

    /// The text of a kernel.
    pub(super) fn text(&self, kernel: &Kernel, variant: &Variant) -> String {
        let mut text = kernel.text(variant);
        for fault in self.of(kernel) {
            if let Fault::Text { from, to, .. } = fault {
                text = text.replacen(from, to, 1);
            }
        }
        text
    }

    /// The parameters of a dispatch.
    pub(super) fn params(&self, kernel: &Kernel, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for fault in self.of(kernel) {
            match fault {
                Fault::Parameter { change, .. } => {
                    let place = fault.offset(kernel).and_then(|at| bytes.get_mut(at..at + 4));
                    if let Some(place) = place {
                        let word = u32::from_le_bytes([place[0], place[1], place[2], place[3]]);
                        place.copy_from_slice(&change(word).to_le_bytes());
                    }
                }
                Fault::Stale { .. } => {
                    let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
                    let own = bytes.clone();
                    if let Some(before) = latest.insert(kernel.name, own) {
                        bytes = before;
                    }
                }
                Fault::Text { .. } | Fault::Short { .. } => {}
            }
        }
        bytes
    }

    /// The workgroups of a dispatch, of which there is at least one.
    pub(super) fn groups(&self, kernel: &Kernel, groups: u64) -> u64 {
        let short = self.of(kernel).any(|fault| matches!(fault, Fault::Short { .. }));
        groups - u64::from(short)
    }
}
