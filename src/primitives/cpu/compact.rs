//! Positions of the keys that a threshold takes, in ascending order.

use super::select::Threshold;

/// Writes the positions that `threshold` takes from `keys`, ascending, to `out`, which must be as
/// long as there are such positions.
pub fn compact(keys: &[u32], threshold: Threshold, out: &mut [u32]) {
    let mut ties = threshold.ties;
    let mut next = 0;
    for (position, &key) in keys.iter().enumerate() {
        let tie = key == threshold.key && ties > 0;
        if (key > threshold.key || tie) && next < out.len() {
            out[next] = position as u32;
            next += 1;
            ties -= u32::from(tie);
        }
    }
}
