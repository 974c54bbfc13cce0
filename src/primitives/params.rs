//! Parameters of the shared kernels.

use crate::gpu::params;

params! {
    /// Parameters of `primitives/select_count`.
    pub struct SelectCountParams {
        /// Rows.
        rows: u32,
        /// Tokens of the longest row, at least.
        longest: u32,
        /// First tokens of each row, which have the top key.
        sinks: u32,
        /// Step: 0 to 2.
        step: u32,
        /// 1 where the rows of a line compete.
        compete: u32,
        /// Rows of a line.
        heads: u32,
        /// Division by `heads`.
        heads_multiplier: u32,
        /// Division by `heads`.
        heads_shift1: u32,
        /// Division by `heads`.
        heads_shift2: u32,
        /// Workgroups of a row.
        parts: u32,
        /// Division by `parts`.
        parts_multiplier: u32,
        /// Division by `parts`.
        parts_shift1: u32,
        /// Division by `parts`.
        parts_shift2: u32,
    }
}

params! {
    /// Parameters of `primitives/select`.
    pub struct SelectParams {
        /// Rows.
        rows: u32,
        /// Tokens of the longest row, at least.
        longest: u32,
    }
}

params! {
    /// Parameters of `primitives/select_short`.
    pub struct SelectShortParams {
        /// Rows.
        rows: u32,
        /// Tokens of the longest row, at least.
        longest: u32,
        /// First tokens of each row, which have the top key.
        sinks: u32,
    }
}

params! {
    /// Parameters of `primitives/compact_count` and `primitives/compact`.
    pub struct CompactParams {
        /// Rows.
        rows: u32,
        /// Tokens of each row.
        tokens: u32,
        /// First tokens of each row, which have the top key.
        sinks: u32,
        /// Positions of all rows together.
        total: u32,
        /// Workgroups of a row.
        parts: u32,
        /// Division by `parts`.
        parts_multiplier: u32,
        /// Division by `parts`.
        parts_shift1: u32,
        /// Division by `parts`.
        parts_shift2: u32,
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
        /// Parts to write, 8 channels each.
        parts: u32,
        /// Token rows of the source.
        token_rows: u32,
        /// Parts of a token row.
        row_parts: u32,
        /// [`crate::shape::Dtype::code`] of the source.
        dtype: u32,
        /// Division by the parts of a token row.
        row_multiplier: u32,
        /// Division by the parts of a token row.
        row_shift1: u32,
        /// Division by the parts of a token row.
        row_shift2: u32,
    }
}
