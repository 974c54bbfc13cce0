//! Parameters of the GPU stages.

use crate::gpu::params;

params! {
    /// Parameters of `wgsl/attention/rotate.wgsl`.
    pub(super) struct RotateParams {
        queries: u32,
        dtype: u32,
        packed: u32,
        hadamard_scale: f32,
        scale: f32,
        limit: i32,
    }
}

params! {
    /// Parameters of `wgsl/attention/raw.wgsl`.
    pub(super) struct RawParams {
        kv_rows: u32,
        per_row: u32,
        tokens: u32,
        head_dim_v: u32,
        total: u32,
        key_dtype: u32,
        value_dtype: u32,
        causal: u32,
        first: u32,
        blocks: u32,
        splits: u32,
        groups: u32,
        blocks_multiplier: u32,
        blocks_shift1: u32,
        blocks_shift2: u32,
        splits_multiplier: u32,
        splits_shift1: u32,
        splits_shift2: u32,
        tokens_multiplier: u32,
        tokens_shift1: u32,
        tokens_shift2: u32,
        pairs_multiplier: u32,
        pairs_shift1: u32,
        pairs_shift2: u32,
    }
}

params! {
    /// Parameters of `wgsl/attention/packed.wgsl`.
    pub(super) struct PackedParams {
        kv_rows: u32,
        per_row: u32,
        tokens: u32,
        head_dim_v: u32,
        total: u32,
        chunk: u32,
        causal: u32,
        first: u32,
        blocks: u32,
        splits: u32,
        groups: u32,
        pieces_v: u32,
        norm_k: f32,
        norm_v: f32,
        key_bits: u32,
        value_bits: u32,
        key_words: u32,
        key_sign: u32,
        key_s1: u32,
        key_s2: u32,
        key_o: u32,
        value_words: u32,
        value_sign: u32,
        value_s1: u32,
        value_s2: u32,
        value_o: u32,
        blocks_multiplier: u32,
        blocks_shift1: u32,
        blocks_shift2: u32,
        splits_multiplier: u32,
        splits_shift1: u32,
        splits_shift2: u32,
        tokens_multiplier: u32,
        tokens_shift1: u32,
        tokens_shift2: u32,
        pieces_multiplier: u32,
        pieces_shift1: u32,
        pieces_shift2: u32,
    }
}

params! {
    /// Parameters of `wgsl/attention/merge.wgsl`.
    pub(super) struct MergeParams {
        queries: u32,
        raw_splits: u32,
        packed_splits: u32,
        hadamard_scale: f32,
    }
}
