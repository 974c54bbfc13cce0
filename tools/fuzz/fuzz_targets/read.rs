//! Reads any bytes as a file of the program; must neither panic nor allocate beyond the input.
#![no_main]

#[allow(dead_code, unused_imports, reason = "the program uses the rest")]
#[path = "../../wgkv/file/mod.rs"]
mod reader;

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use reader::{FileDtype, Source};

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut source) = Source::new("fuzz.st", Cursor::new(bytes)) else { return };
    let names: Vec<String> = source.header().tensors.keys().cloned().collect();
    for name in names {
        for rank in 0..5 {
            if let Ok((shape, data)) = source.floats(&name, rank) {
                assert_eq!(shape.iter().product::<usize>(), data.elements().len());
                data.nonfinite();
            }
            let _ = source.exactly::<u32>(&name, FileDtype::U32, rank);
        }
    }
});
