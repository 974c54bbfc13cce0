//! The command line program, run from outside.

mod bad;
mod conformance;
mod file;
mod good;
mod help;
mod limits;
mod odd;
mod packed;
mod plot;
mod replay;
mod support;
mod sweep;
mod trials;
