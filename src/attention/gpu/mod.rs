//! Attention on the GPU.
