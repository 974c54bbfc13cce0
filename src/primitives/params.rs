//! Parameters of the shared kernels.
