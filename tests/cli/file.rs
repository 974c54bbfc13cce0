//! The file reader itself, on files cut and changed at many places.

#[allow(dead_code, unused_imports, reason = "the program uses the rest")]
#[path = "../../tools/wgkv/file/mod.rs"]
mod reader;

use std::io::Cursor;

use proptest::prelude::*;
use reader::{FileDtype, Source};

use crate::support::{File, Folder, pair};

/// Reads all that a file holds, as the program would; must not panic, whatever the bytes.
fn read_all(bytes: &[u8]) -> bool {
    let Ok(mut source) = Source::new("x.st", Cursor::new(bytes)) else {
        return false;
    };
    let names: Vec<String> = source.header().tensors.keys().cloned().collect();
    let mut all = true;
    for name in names {
        for rank in 0..5 {
            let floats = source.floats(&name, rank);
            let words = source.exactly::<u32>(&name, FileDtype::U32, rank);
            if let Ok((shape, data)) = &floats {
                assert_eq!(shape.iter().product::<usize>(), data.elements().len());
            }
            all &= source.entry(&name, rank).is_err() || floats.is_ok() || words.is_ok();
        }
    }
    all
}

fn sample() -> Vec<u8> {
    pair([1, 2, 3, 8])
        .u32("layers.0.positions", &[1, 2, 3])
        .meta(serde_json::json!({"format": "x", "note": "\u{e9}"}))
        .bytes()
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = sample();
    assert!(read_all(&whole));
    for end in 0..whole.len() {
        assert!(Source::new("x.st", Cursor::new(&whole[..end])).is_err(), "cut at {end}");
    }
}

#[test]
fn the_program_refuses_a_file_cut_at_many_places() {
    let folder = Folder::new();
    let whole = pair([1, 2, 3, 8]).bytes();
    for step in 0..12 {
        let end = whole.len() * step / 12;
        let path = folder.write("cut.st", &whole[..end]);
        folder.refuses("quantize", &path, &[], &["cut.st"]);
    }
}

#[test]
fn a_file_that_shrinks_after_it_was_opened_is_refused() {
    let folder = Folder::new();
    let path = folder.write("x.st", &sample());
    let mut source = Source::open(&path).expect("it is whole");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
    file.set_len(300).expect("it can be cut");
    assert!(source.floats("layers.0.v", 4).is_err());
}

/// One change of a file.
#[derive(Clone, Debug)]
enum Change {
    Set(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let tokens = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "0",
        "-1",
        "1e9",
        "18446744073709551615",
        "\"shape\":",
        "\"dtype\":",
        "\"F32\"",
        "\"data_offsets\":",
        "null",
        "\\u0000",
        "true",
        "\"__metadata__\":",
    ]);
    prop_oneof![
        (0usize..700, any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (0usize..9, any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (0usize..700, tokens).prop_map(|(at, text)| Change::Insert(at, text.into())),
        (0usize..700, 1usize..20).prop_map(|(at, count)| Change::Remove(at, count)),
        (0usize..700, 1usize..80).prop_map(|(at, count)| Change::Repeat(at, count)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Set(at, value) => {
            if let Some(byte) = bytes.get_mut(*at) {
                *byte = *value;
            }
        }
        Change::Insert(at, text) => {
            let at = (*at).min(bytes.len());
            bytes.splice(at..at, text.iter().copied());
        }
        Change::Remove(at, count) => {
            let at = (*at).min(bytes.len());
            let end = (at + count).min(bytes.len());
            bytes.drain(at..end);
        }
        Change::Repeat(at, count) => {
            let at = (*at).min(bytes.len());
            let end = (at + count).min(bytes.len());
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn changed_files_do_no_harm(changes in prop::collection::vec(change(), 1..6), mend: bool) {
        let mut bytes = sample();
        for change in &changes {
            apply(&mut bytes, change);
        }
        if mend && bytes.len() >= 8 {
            // A header length that fits again, so that the change is met further in.
            let end = bytes.iter().rposition(|&b| b == b'}').unwrap_or(0).max(8);
            let length = (end as u64 - 7).to_le_bytes();
            bytes[..8].copy_from_slice(&length);
        }
        read_all(&bytes);
    }

    #[test]
    fn bytes_of_any_kind_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_all(&bytes);
    }

    #[test]
    fn headers_of_any_text_do_no_harm(text in "[\\PC\\x00-\\x1f]{0,120}") {
        read_all(&crate::support::raw_file(format!("{{{text}").as_bytes(), &[0; 16]));
    }
}

#[test]
fn what_is_written_is_read_again() {
    use half::{bf16, f16};
    use reader::{Output, Payload};
    let folder = Folder::new();
    let path = folder.path("x.st");
    let mut output = Output::create(&path, &[]).expect("the folder is there");
    output.put("a", &[3], Payload::U8(vec![1, 2, 3]));
    output.put("b", &[2], Payload::F32(vec![1.5, f32::NAN]));
    output.put("c", &[1, 1], Payload::F16(vec![f16::from_bits(0x7c01)]));
    output.put("d", &[0, 9], Payload::U32(vec![]));
    output.put("e", &[1], Payload::Bf16(vec![bf16::from_f32(3.0)]));
    output.note("key", "a \"value\" \u{e9}");
    assert!(!path.exists(), "nothing has its name before it is whole");
    let bytes = output.finish().expect("it is written");
    assert_eq!(bytes, std::fs::metadata(&path).expect("there").len());
    let mut source = Source::open(&path).expect("it is whole");
    assert_eq!(source.header().metadata["key"], "a \"value\" \u{e9}");
    assert_eq!(source.exactly::<u8>("a", FileDtype::U8, 1).expect("there").1, [1, 2, 3]);
    assert_eq!(source.exactly::<u32>("d", FileDtype::U32, 2).expect("there").0, [0, 9]);
    let (_, data) = source.floats("c", 2).expect("there");
    assert!(matches!(data, reader::Data::F16(x) if x[0].to_bits() == 0x7c01));
    // Another reader agrees.
    let (_, shape, data) = crate::support::tensor(&path, "b");
    assert_eq!((shape, &data[..4]), (vec![2], 1.5f32.to_le_bytes().as_slice()));
    let _ = File::new();
}
