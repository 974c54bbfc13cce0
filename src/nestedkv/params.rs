//! Parameters of the NestedKV kernels.
