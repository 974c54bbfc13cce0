//! The CPU path of NestedKV: the reference.

pub mod anchor;
pub mod anomaly;
pub mod append;
pub mod blend;
pub mod budgets;
pub mod evict;
pub mod gate;
pub mod mean;
pub mod norm;
pub mod score;
pub mod spread;
pub mod state;
pub mod surprise;

pub use append::append;
pub use budgets::allocate_head_budgets;
pub use evict::{Evicted, Kept, compress_prefill, compress_prefill_per_head, gather, keep};
pub use score::{
    Scores, head_adaptive_blend, head_adaptive_blend_batched, per_scale_anomaly_scores,
    per_scale_anomaly_scores_batched, score, score_batched, surprise_gated_score,
    surprise_gated_score_batched,
};
pub use state::{KvRows, NestedKvState, full_fp16_bytes};
