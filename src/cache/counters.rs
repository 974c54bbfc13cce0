//! What a cache reports about itself.

use super::plan::Frontier;
use crate::layout::PageLayout;
use crate::nsnquant::assigned_avg_bits;

/// What a cache holds, in tokens and bytes. The names are those of the peer's properties
/// (VeloxQuant-MLX, `NSNQuantKVCache`), so that scripts can read either.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// Tokens of each row.
    pub len: usize,
    /// Tokens of each row behind the frontier.
    pub quantized_tokens: usize,
    /// Bytes of the packed keys: codes, scales and means of all rows.
    pub compressed_key_bytes: u64,
    /// Bytes of the packed values.
    pub compressed_value_bytes: u64,
    /// Bytes of the raw rows, keys and values: sinks and tail.
    pub residual_fp16_bytes: u64,
    /// Bytes that the keys would take as f16.
    pub fp16_key_bytes: u64,
    /// Bytes that the values would take as f16.
    pub fp16_value_bytes: u64,
    /// Bits per element of what is packed, scales and means included; 16 when nothing is.
    pub assigned_avg_bits: f64,
    /// Bytes allocated for rows, pages and key scales by this cache and all its forks, shared ones once.
    pub device_bytes: u64,
}

impl Counters {
    /// The counters of a cache of `rows` rows; `raw_bytes` are those of one raw element.
    pub fn new(
        frontier: &Frontier,
        rows: usize,
        keys: &PageLayout,
        values: &PageLayout,
        raw_bytes: usize,
        device_bytes: u64,
    ) -> Self {
        let product = |factors: &[usize]| {
            factors.iter().fold(1u64, |product, &n| product.saturating_mul(n as u64))
        };
        let pages = product(&[rows, frontier.chunks()]);
        let width = (keys.head_dim() + values.head_dim()) as u64;
        let elements = |tokens: usize, channels: usize| product(&[rows, tokens, channels]);
        let compressed = |layout: &PageLayout| pages.saturating_mul(layout.data_bytes() as u64);
        let (key_bytes, value_bytes) = (compressed(keys), compressed(values));
        Self {
            len: frontier.len(),
            quantized_tokens: frontier.packed(),
            compressed_key_bytes: key_bytes,
            compressed_value_bytes: value_bytes,
            residual_fp16_bytes: product(&[rows, frontier.raw(), raw_bytes]).saturating_mul(width),
            fp16_key_bytes: elements(frontier.len(), keys.head_dim()).saturating_mul(2),
            fp16_value_bytes: elements(frontier.len(), values.head_dim()).saturating_mul(2),
            assigned_avg_bits: assigned_avg_bits(keys, values, frontier.packed()),
            device_bytes,
        }
    }
}
