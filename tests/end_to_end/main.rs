//! The main job through the library: evict, pack and attend on a real model's cache, on both paths,
//! held to the judge in f64 stage by stage and as a whole.
#[path = "../support/mod.rs"]
mod support;

mod cost;
mod job;
mod limits;
mod memory;
mod pages;
mod paths;
mod sample;
mod together;
