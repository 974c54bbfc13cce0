//! The one error type of the library.

/// What a call of this library can refuse, and why.
///
/// Every variant names the argument, what came and what was expected. An error is returned before
/// anything is recorded or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slice or buffer does not hold as many elements as its shape says.
    #[error("{argument} holds {got} elements, expected {expected}")]
    Length {
        /// Name of the argument.
        argument: &'static str,
        /// Elements that came.
        got: usize,
        /// Elements that the shape asks for.
        expected: usize,
    },
    /// A dimension is zero.
    #[error("{argument} is 0, expected at least 1")]
    Empty {
        /// Name of the dimension.
        argument: &'static str,
    },
    /// Two arguments must agree and do not.
    #[error("{argument} is {got}, expected {expected} as in {reference}")]
    Mismatch {
        /// Name of the argument.
        argument: &'static str,
        /// Value that came.
        got: usize,
        /// Value that was expected.
        expected: usize,
        /// Name of the argument that sets the expectation.
        reference: &'static str,
    },
    /// A head dimension that has no Hadamard matrix here.
    #[error(
        "{argument} is {got}, expected a multiple of 8, at most 512, of the form m * 2^k with m in 1, 12, 20, 28"
    )]
    HeadDim {
        /// Name of the argument.
        argument: &'static str,
        /// Head dimension that came.
        got: usize,
    },
    /// An integer parameter is outside its range.
    #[error("{argument} is {got}, expected {min} to {max}")]
    OutOfRange {
        /// Name of the argument.
        argument: &'static str,
        /// Value that came.
        got: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// A real parameter is outside its range or not finite.
    #[error("{argument} is {got}, expected {expected}")]
    Parameter {
        /// Name of the argument.
        argument: &'static str,
        /// Value that came.
        got: f64,
        /// What is allowed, in words.
        expected: &'static str,
    },
    /// A tensor of another element type than asked for.
    #[error("{argument} is {got}, expected {expected}")]
    Dtype {
        /// Name of the tensor.
        argument: &'static str,
        /// Type that came.
        got: &'static str,
        /// Type that was expected.
        expected: &'static str,
    },
    /// The query heads do not divide among the KV heads.
    #[error("{query_heads} query heads do not divide evenly among {kv_heads} KV heads")]
    QueryHeads {
        /// Query heads that came.
        query_heads: usize,
        /// KV heads of the cache.
        kv_heads: usize,
    },
    /// Offsets that do not start at 0, decrease, or end elsewhere than the data.
    #[error("{argument}[{index}] is {got}, expected {expected}")]
    Offsets {
        /// Name of the argument.
        argument: &'static str,
        /// Place in the list.
        index: usize,
        /// Value that came.
        got: u64,
        /// What is allowed, in words.
        expected: &'static str,
    },
    /// A codebook row that is not finite or not of unit norm.
    #[error("{argument} row {row} has norm {norm}, expected 1")]
    Codebook {
        /// Name of the codebook.
        argument: &'static str,
        /// Row of the codebook.
        row: usize,
        /// Its norm.
        norm: f64,
    },
    /// A codec with a choice that it cannot have here.
    #[error("the {argument} is not one that can be used here: expected {expected}")]
    Codec {
        /// Which codec.
        argument: &'static str,
        /// What is allowed, in words.
        expected: &'static str,
    },
    /// A value that must be stored as f16 and is beyond its range.
    #[error("{argument}: {value} at token row {row} is beyond f16 (65504)")]
    BeyondF16 {
        /// Name of the tensor.
        argument: String,
        /// Token row, counted over all heads.
        row: usize,
        /// The value.
        value: f32,
    },
    /// A limit of the device is too small for the work asked for.
    #[error("{argument} needs {needed} of {limit}, the device allows {allowed}")]
    DeviceLimit {
        /// What is too large.
        argument: &'static str,
        /// Name of the limit, as wgpu spells it.
        limit: &'static str,
        /// What the work needs.
        needed: u64,
        /// What the device allows.
        allowed: u64,
    },
    /// The device has not the memory for a buffer.
    #[error("the device has no memory for {argument}, {needed} bytes")]
    OutOfDeviceMemory {
        /// Name of the buffer.
        argument: &'static str,
        /// Bytes of the buffer.
        needed: u64,
    },
    /// The host has not the memory for something.
    #[error("there is no memory for {argument}, {needed} bytes")]
    OutOfHostMemory {
        /// What there is no memory for.
        argument: &'static str,
        /// Bytes of it.
        needed: u64,
    },
    /// Something of one cache, or on one device, was given to another.
    #[error("{argument} belongs to another {owner}")]
    Foreign {
        /// What belongs elsewhere.
        argument: &'static str,
        /// To what it belongs.
        owner: &'static str,
    },
    /// The device lacks a feature that was asked for.
    #[error("the device lacks {feature}, which {argument} needs")]
    MissingFeature {
        /// What needs it.
        argument: &'static str,
        /// Name of the feature, as wgpu spells it.
        feature: &'static str,
    },
    /// A buffer was made without a usage that the work needs.
    #[error("{argument} was made without the buffer usage {usage}")]
    BufferUsage {
        /// Name of the buffer.
        argument: &'static str,
        /// The missing usage.
        usage: &'static str,
    },
    /// The work of a submit did not reach its end: the completion word is not the one that was sent.
    #[error(
        "the GPU did not finish the submit: completion word {got:#010x}, expected {expected:#010x}"
    )]
    Incomplete {
        /// Word that was read.
        got: u32,
        /// Word that the last dispatch should have written.
        expected: u32,
    },
    /// The device was lost or its memory could not be read back.
    #[error("the GPU's answer could not be read: {reason}")]
    DeviceLost {
        /// What wgpu said.
        reason: String,
    },
    /// Something was to be continued that has been declared finished.
    #[error("{argument} was already finished")]
    Finished {
        /// What has ended already.
        argument: &'static str,
    },
    /// More tokens were to be dropped than there are.
    #[error("trim of {got} tokens, the cache holds {held}")]
    TrimTooLong {
        /// Tokens to drop.
        got: usize,
        /// Tokens held.
        held: usize,
    },
    /// A pool has not the memory for what was asked; nothing has changed.
    #[error("{needed} bytes of new slabs are needed, the budget leaves {available}")]
    OutOfBudget {
        /// Bytes of the slabs that would have to be made.
        needed: u64,
        /// Bytes that the budget leaves for new slabs once all empty ones are dropped.
        available: u64,
    },
    /// A sequence that a pool does not hold, or no longer.
    #[error("{argument} {index} is not in the pool")]
    UnknownSequence {
        /// Name of the argument.
        argument: &'static str,
        /// Place of the sequence in the pool, as its id says.
        index: u32,
    },
    /// A sequence that was named twice where each may come once.
    #[error("{argument}[{index}] names a sequence that came before")]
    Repeated {
        /// Name of the list.
        argument: &'static str,
        /// Place in the list.
        index: usize,
    },
    /// Something needs a prompt that is declared finished.
    #[error("{argument} is not finished in layer {layer}")]
    Unfinished {
        /// What has not ended yet.
        argument: &'static str,
        /// First layer where it is not.
        layer: usize,
    },
    /// Which positions were kept of an evicted prompt has not been told.
    #[error("the positions kept in layer {layer} are not known; the cache must be told")]
    PositionsUnknown {
        /// The first such layer.
        layer: usize,
    },
    /// A file that is not what it should be.
    #[error("{reason}")]
    File {
        /// What is wrong with it, with the name of the tensor or of the line of its metadata.
        reason: String,
    },
    /// A head has lost rows where all are asked for.
    #[error(
        "layer {layer}, head {head} of sequence {index} holds {got} rows of {seen} tokens, {argument} holds all"
    )]
    NotWhole {
        /// What asks for all.
        argument: &'static str,
        /// Place of the sequence in the list.
        index: usize,
        /// Number of the layer, from 0.
        layer: usize,
        /// Number of the KV head, from 0.
        head: usize,
        /// Rows that are held.
        got: u32,
        /// Tokens that the sequence has seen.
        seen: u32,
    },
    /// A step was planned on a state that has changed since.
    #[error("the plan was made at revision {planned}, the pool is at {current}")]
    StalePlan {
        /// Revision of the pool when the step was planned.
        planned: u64,
        /// Revision of the pool now.
        current: u64,
    },
}

/// Result of a call of this library.
pub type Result<T, E = Error> = core::result::Result<T, E>;
