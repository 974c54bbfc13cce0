//! Parameters of the NestedKV kernels.

use crate::gpu::params;

params! {
    /// Parameters of `nestedkv/anchor`.
    pub struct AnchorParams {
        /// Rows.
        rows: u32,
        /// Tokens of each row.
        tokens: u32,
        /// Channels.
        dim: u32,
        /// Tokens of a block.
        block: u32,
        /// Runs of a block.
        pieces: u32,
        /// Division by `pieces`.
        pieces_multiplier: u32,
        /// Division by `pieces`.
        pieces_shift1: u32,
        /// Division by `pieces`.
        pieces_shift2: u32,
        /// Runs of a row.
        runs: u32,
        /// Division by `runs`.
        runs_multiplier: u32,
        /// Division by `runs`.
        runs_shift1: u32,
        /// Division by `runs`.
        runs_shift2: u32,
    }
}

params! {
    /// Parameters of `nestedkv/mean`.
    pub struct MeanParams {
        /// Rows.
        rows: u32,
        /// Channels.
        dim: u32,
        /// Runs of a row.
        runs: u32,
        /// Tokens of a row.
        tokens: f32,
        /// Workgroups of a row.
        groups: u32,
        /// Division by `groups`.
        groups_multiplier: u32,
        /// Division by `groups`.
        groups_shift1: u32,
        /// Division by `groups`.
        groups_shift2: u32,
    }
}

params! {
    /// Parameters of `nestedkv/anomaly`.
    pub struct AnomalyParams {
        /// Rows.
        rows: u32,
        /// Tokens of each row.
        tokens: u32,
        /// Channels.
        dim: u32,
        /// Tokens of a block.
        block: u32,
        /// Runs of a block.
        pieces: u32,
        /// Division by `pieces`.
        pieces_multiplier: u32,
        /// Division by `pieces`.
        pieces_shift1: u32,
        /// Division by `pieces`.
        pieces_shift2: u32,
        /// Runs of a row.
        runs: u32,
        /// Workgroups of a row.
        groups: u32,
        /// Division by `groups`.
        groups_multiplier: u32,
        /// Division by `groups`.
        groups_shift1: u32,
        /// Division by `groups`.
        groups_shift2: u32,
        /// Tokens of the trailing window, at most those of a row.
        window: u32,
    }
}

params! {
    /// Parameters of the three kernels that find spreads.
    pub struct SpreadParams {
        /// Scales times rows.
        lines: u32,
        /// Tokens of each row.
        tokens: u32,
        /// Tokens of the top and of the bottom group.
        group: u32,
        /// Largest span that counts as none.
        flat: f32,
        /// Workgroups of a line.
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
    /// Parameters of `nestedkv/blend`.
    pub struct BlendParams {
        /// Rows.
        rows: u32,
        /// Tokens of each row.
        tokens: u32,
        /// Workgroups of a row.
        parts: u32,
        /// Division by `parts`.
        parts_multiplier: u32,
        /// Division by `parts`.
        parts_shift1: u32,
        /// Division by `parts`.
        parts_shift2: u32,
        /// Weight of a gap.
        beta: f32,
        /// Prior of the stable scale.
        prior_s: f32,
        /// Prior of the episodic scale.
        prior_e: f32,
        /// Prior of the current scale.
        prior_c: f32,
    }
}

params! {
    /// Parameters of `nestedkv/gate`.
    pub struct GateParams {
        /// Rows.
        rows: u32,
        /// Tokens of each row.
        tokens: u32,
        /// Division by `tokens`.
        tokens_multiplier: u32,
        /// Division by `tokens`.
        tokens_shift1: u32,
        /// Division by `tokens`.
        tokens_shift2: u32,
        /// Surprise at which the gate is half open.
        tau: f32,
        /// Steepness of the gate.
        kappa: f32,
        /// 1 to cut surprise at 0.
        rectify: u32,
        /// Largest span that counts as none.
        flat: f32,
    }
}

params! {
    /// Parameters of `nestedkv/budgets_count` and `nestedkv/budgets`.
    pub struct BudgetsParams {
        /// Rows.
        rows: u32,
        /// Length of the longest row.
        longest: u32,
        /// First tokens of each row, which have the top key.
        sinks: u32,
        /// Tokens of a sequence beyond what its heads are sure of.
        rest: u32,
        /// Heads of a sequence.
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
    /// Parameters of `nestedkv/append`.
    pub struct AppendParams {
        /// Rows.
        rows: u32,
        /// Words of an item.
        width: u32,
        /// New items of each row.
        tokens: u32,
        /// Items held by all rows together.
        held: u32,
        /// Words of the joined rows.
        words: u32,
        /// Steps of the search for a row: bits of `rows`.
        steps: u32,
        /// Division by `width`.
        width_multiplier: u32,
        /// Division by `width`.
        width_shift1: u32,
        /// Division by `width`.
        width_shift2: u32,
    }
}
