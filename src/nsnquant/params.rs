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
    }
}
