//! The GPU path of NestedKV.
