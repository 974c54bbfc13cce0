//! Threshold of the `count` highest keys of a row.

/// What separates the highest `count` keys of a row from the others: all keys above `key` and, by
/// position, the first `ties` of those equal to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threshold {
    /// Lowest key that is still taken; the highest key of the row when `count` is 0.
    pub key: u32,
    /// Keys equal to `key` that are taken.
    pub ties: u32,
    /// Keys equal to `key` in all.
    pub equal: u32,
    /// Keys above `key`.
    pub above: u32,
}

/// The threshold of the `count` highest of `keys`; `count` is clamped to the number of keys.
pub fn threshold(keys: &[u32], count: usize) -> Threshold {
    let count = count.min(keys.len());
    if keys.is_empty() {
        return Threshold { key: u32::MAX, ..Threshold::default() };
    }
    let mut scratch = keys.to_vec();
    let (_, &mut key, _) = scratch.select_nth_unstable_by(count.max(1) - 1, |a, b| b.cmp(a));
    let above = keys.iter().filter(|&&k| k > key).count() as u32;
    let equal = keys.iter().filter(|&&k| k == key).count() as u32;
    Threshold { key, ties: count as u32 - above.min(count as u32), equal, above }
}
