//! Parameters of the GPU stages.

use crate::gpu::params;

params! {
    /// Parameters of `wgsl/nsnquant/encode.wgsl`.
    pub(super) struct EncodeParams {
        pages: u32,
        chunk: u32,
        last_start: u32,
        dtype: u32,
        page_words: u32,
        sign_offset: u32,
        s1_offset: u32,
        s2_offset: u32,
        o_offset: u32,
        grid_offset: u32,
        scale: f32,
        last_scale: u32,
    }
}

params! {
    /// Parameters of `wgsl/nsnquant/decode.wgsl`.
    pub(super) struct DecodeParams {
        pages: u32,
        chunk: u32,
        last_start: u32,
        dtype: u32,
        page_words: u32,
        sign_offset: u32,
        s1_offset: u32,
        s2_offset: u32,
        o_offset: u32,
        grid_offset: u32,
        scale: f32,
        norm: f32,
        last_scale: u32,
    }
}

params! {
    /// Parameters of `wgsl/nsnquant/squares.wgsl`.
    pub(super) struct SquaresParams {
        first: u32,
        count: u32,
        head_dim: u32,
        dtype: u32,
        row_words: u32,
        words: u32,
        rows: u32,
    }
}

params! {
    /// Parameters of `wgsl/nsnquant/key_scale.wgsl`.
    pub(super) struct KeyScaleParams {
        first: u32,
        count: u32,
        head_dim: u32,
        rows: u32,
        words: u32,
    }
}
