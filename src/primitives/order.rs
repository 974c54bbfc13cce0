//! The order in which scores compete, as integers, so that it is the same on every backend.

/// The key that every sink competes with: above the key of any number.
pub const SINK_KEY: u32 = u32::MAX;

/// Maps a score to an integer that orders as scores do: a higher score has a higher key, -0 and +0
/// have the same key, and NaN of either sign has key 0, below every number.
pub fn order_key(score: f32) -> u32 {
    let bits = score.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return 0;
    }
    if magnitude == 0 {
        return 0x8000_0000;
    }
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}
