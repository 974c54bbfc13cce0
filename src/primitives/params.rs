//! Parameters of the shared kernels.

use crate::gpu::params;

params! {
    /// Parameters of `primitives/select`.
    pub struct SelectParams {
        /// Rows.
        rows: u32,
        /// Tokens of the longest row, at least.
        longest: u32,
        /// First tokens of each row, which have the top key.
        sinks: u32,
    }
}

params! {
    /// Parameters of `primitives/compact`.
    pub struct CompactParams {
        /// Rows.
        rows: u32,
        /// Tokens of each row.
        tokens: u32,
        /// First tokens of each row, which have the top key.
        sinks: u32,
        /// Positions of all rows together.
        total: u32,
    }
}

params! {
    /// Parameters of `primitives/scan`.
    pub struct ScanParams {
        /// Counts.
        count: u32,
    }
}

params! {
    /// Parameters of `primitives/gather`.
    pub struct GatherParams {
        /// Words to write: pairs of channels.
        words: u32,
        /// Token rows of the source.
        token_rows: u32,
        /// Channels of a token row.
        dim: u32,
        /// [`crate::shape::Dtype::code`] of the source.
        dtype: u32,
        /// Division by the pairs of a token row.
        pairs_multiplier: u32,
        /// Division by the pairs of a token row.
        pairs_shift1: u32,
        /// Division by the pairs of a token row.
        pairs_shift2: u32,
    }
}
