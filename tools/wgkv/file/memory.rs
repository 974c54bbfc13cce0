//! Memory that is not there: a refusal in place of an abort.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::TryReserveError;
use std::io::Write;
use std::sync::OnceLock;

thread_local! {
    /// Whether the caller takes no for an answer.
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// The first file that was opened for reading, escaped.
static INPUT: OnceLock<String> = OnceLock::new();

/// The system's memory. Where there is no more the program ends in one line and with 2, as with any
/// input that it cannot take.
pub struct Memory;

/// Says whose size is the likely cause.
pub fn blame(input: String) {
    let _ = INPUT.set(input);
}

/// An empty list with room for `count` items; an error when there is no such memory.
pub fn room<T>(count: usize) -> Result<Vec<T>, TryReserveError> {
    let mut list = Vec::new();
    ASKED.set(true);
    let reserved = list.try_reserve_exact(count);
    ASKED.set(false);
    reserved.map(|()| list)
}

/// The block as it is, unless it is none and nobody asked whether there is one.
fn there(block: *mut u8, size: usize) -> *mut u8 {
    if block.is_null() && !ASKED.try_with(Cell::get).unwrap_or(false) {
        let mut out = std::io::stderr();
        // Nothing here allocates.
        let _ = match INPUT.get() {
            Some(input) => writeln!(out, "error: {input}: {size} bytes more do not fit in memory"),
            None => writeln!(out, "error: {size} bytes more do not fit in memory"),
        };
        std::process::exit(2);
    }
    block
}

#[allow(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: every call goes on to the system's allocator as it came, and `there` does not unwind.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract, which is the same.
        there(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        there(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        there(unsafe { System.realloc(block, layout, size) }, size)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}
