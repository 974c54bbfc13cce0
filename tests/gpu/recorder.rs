//! Recording, parameter slots and read-back.

use crate::support;

#[test]
fn read_back_returns_what_was_uploaded() {
    let bytes: Vec<u8> = (0..1003u32).map(|i| (i * 7 % 251) as u8).collect();
    let buffer = support::context().upload("odd length", &bytes).unwrap();
    assert_eq!(&support::download(&buffer)[..1003], &bytes[..]);
}
