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
        tokens: u32,
        member: u32,
        tokens_multiplier: u32,
        tokens_shift1: u32,
        tokens_shift2: u32,
        member_multiplier: u32,
        member_shift1: u32,
        member_shift2: u32,
        causal: u32,
        first: u32,
        own: u32,
        scaled_at: u32,
        row_multiplier: u32,
        row_shift1: u32,
        row_shift2: u32,
        sinks_at: u32,
        sink_shift: u32,
        sink_mask: u32,
        sink_slab: u32,
        sink_pages: u32,
        sink_words: u32,
        sink_offset: u32,
        bytes_at: u32,
        turned: u32,
        _pad0: u32,
        _pad1: u32,
    }
}

params! {
    /// What `wgsl/common/attend.wgsl` reads; 80 bytes.
    pub(super) struct AttendParams {
        per_row: u32,
        queries_first: u32,
        queries_end: u32,
        span: u32,
        stride: u32,
        slot_base: u32,
        head_dim_v: u32,
        pieces_v: u32,
        groups: u32,
        pieces_multiplier: u32,
        pieces_shift1: u32,
        pieces_shift2: u32,
        causal: u32,
        window: u32,
        cap: f32,
        cap_inverse: f32,
        blocks: u32,
        blocks_multiplier: u32,
        blocks_shift1: u32,
        blocks_shift2: u32,
    }
}

params! {
    /// What `wgsl/common/attend_packed.wgsl` reads; 112 bytes.
    pub(super) struct PackedPageParams {
        chunk: u32,
        norm_k: f32,
        norm_v: f32,
        key_form: u32,
        value_form: u32,
        key_width: u32,
        value_width: u32,
        key_sign: u32,
        key_s1: u32,
        key_s2: u32,
        key_o: u32,
        key_grid: u32,
        value_sign: u32,
        value_s1: u32,
        value_s2: u32,
        value_o: u32,
        value_grid: u32,
        key_words: u32,
        value_words: u32,
        position_words: u32,
        values_at: u32,
        positions_at: u32,
        key_book: u32,
        value_book: u32,
        scaled_at: u32,
        span: u32,
        subs: u32,
        subs_multiplier: u32,
        subs_shift1: u32,
        subs_shift2: u32,
        head_dim: u32,
        bytes_at: u32,
    }
}

params! {
    /// What `wgsl/common/attend_paged.wgsl` reads; 48 bytes.
    pub(super) struct PagedParams {
        units: u32,
        units_at: u32,
        pages_at: u32,
        shift: u32,
        mask: u32,
        pages: u32,
        slab_0: u32,
        slab_1: u32,
        slab_2: u32,
        slab_3: u32,
        _pad0: u32,
        _pad1: u32,
    }
}

params! {
    /// Parameters of `wgsl/attention/raw.wgsl`.
    pub(super) struct RawParams {
        @part attend: AttendParams,
        kv_rows: u32,
        total: u32,
        key_dtype: u32,
        value_dtype: u32,
        splits: u32,
        slots: u32,
        splits_multiplier: u32,
        splits_shift1: u32,
        splits_shift2: u32,
    }
}

params! {
    /// Parameters of `wgsl/attention/packed.wgsl`.
    pub(super) struct PackedParams {
        @part attend: AttendParams,
        @part packed: PackedPageParams,
        kv_rows: u32,
        total: u32,
        splits: u32,
        slots: u32,
        slots_first: u32,
        splits_multiplier: u32,
        splits_shift1: u32,
        splits_shift2: u32,
    }
}

params! {
    /// Parameters of `wgsl/attention/paged_raw.wgsl`.
    pub(super) struct PagedRawParams {
        @part attend: AttendParams,
        @part paged: PagedParams,
        dtype: u32,
        rows: u32,
        page_fours: u32,
        values_at: u32,
        positions_at: u32,
        counts_at: u32,
    }
}

params! {
    /// Parameters of `wgsl/attention/paged_raw_collect.wgsl`.
    pub(super) struct CollectParams {
        first: u32,
        count: u32,
        page_fours: u32,
        shift: u32,
        mask: u32,
        pages: u32,
        slab_0: u32,
        slab_1: u32,
        slab_2: u32,
        slab_3: u32,
    }
}

params! {
    /// Parameters of `wgsl/attention/paged_packed.wgsl`.
    pub(super) struct PagedPackedParams {
        @part attend: AttendParams,
        @part packed: PackedPageParams,
        @part paged: PagedParams,
    }
}

params! {
    /// Parameters of `wgsl/attention/merge.wgsl`.
    pub(super) struct MergeParams {
        rows: u32,
        rows_first: u32,
        per_row: u32,
        queries_first: u32,
        span: u32,
        span_multiplier: u32,
        span_shift1: u32,
        span_shift2: u32,
        stride: u32,
        base_0: u32,
        base_1: u32,
        base_2: u32,
        base_3: u32,
        base_4: u32,
        slots_at: u32,
        places_at: u32,
        slots: u32,
        packed_first: u32,
        hadamard_scale: f32,
        plain: u32,
    }
}
