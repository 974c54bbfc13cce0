//! Recording, parameter slots, read-back and what is refused.

use std::future::Future;
use std::task::{Context as TaskContext, Poll, Waker};

use wgkv::Error;
use wgkv::gpu::{
    Binding, Context, ContextDescriptor, Groups, Kernel, Params, ParamsLayout, Recorder, Slice,
    Variant,
};
use wgkv::wgpu;

use crate::{shaders, support};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct PlaceParams {
    at: u32,
    value: u32,
    count: u32,
}

impl Params for PlaceParams {
    const LAYOUT: ParamsLayout =
        ParamsLayout { size: 12, fields: &[("at", 0), ("value", 4), ("count", 8)], parts: &[] };
}

/// Adds `value` at `at` from the first workgroup, and 1 at the place of every other below `count`.
static PLACE: Kernel = Kernel {
    name: "test/place",
    source: "
        override STEP: u32 = 1u;
        struct Params { at: u32, value: u32, count: u32 }
        @group(0) @binding(0) var<uniform> params: Params;
        @group(0) @binding(1) var<storage, read_write> output: array<u32>;
        @compute @workgroup_size(64)
        fn main(
            @builtin(workgroup_id) group: vec3<u32>,
            @builtin(num_workgroups) groups: vec3<u32>,
            @builtin(local_invocation_index) lane: u32,
        ) {
            let place = group.y * groups.x + group.x;
            if lane == 0u && place < params.count {
                let at = select(place, params.at, place == 0u);
                output[at] = output[at] + select(STEP, params.value, place == 0u);
            }
        }",
    bindings: &[Binding::Write("output")],
    params: PlaceParams::LAYOUT,
};

fn put(at: u32, value: u32) -> PlaceParams {
    PlaceParams { at, value, count: 1 }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}

fn zeros(context: &Context, count: usize) -> wgpu::Buffer {
    context.upload("zeros", &vec![0; 4 * count]).unwrap()
}

#[test]
fn read_back_returns_what_was_uploaded() {
    for length in [0, 1, 3, 4, 5, 8, 1003, 4096] {
        let bytes: Vec<u8> = (0..length).map(|i: u32| (i * 7 % 251) as u8).collect();
        let buffer = support::context().upload("odd length", &bytes).unwrap();
        assert_eq!(&support::download(&buffer)[..bytes.len()], &bytes[..]);
    }
}

#[test]
fn each_dispatch_has_parameters_of_its_own() {
    // More dispatches than a block of slots holds.
    let count = 150;
    let buffer = zeros(support::context(), count);
    let readback = support::run(|recorder| {
        for at in 0..count as u32 {
            let params = put(at, 1000 + at);
            recorder.dispatch(
                &PLACE,
                &Variant::default(),
                &params,
                &[(&buffer).into()],
                Groups(1),
            )?;
        }
        recorder.read_back(Slice::all(&buffer))
    })
    .unwrap();
    let expected: Vec<u32> = (0..count as u32).map(|at| 1000 + at).collect();
    assert_eq!(words(&support::wait(readback)), expected);
}

#[test]
fn dispatches_see_each_other_in_order() {
    let buffer = zeros(support::context(), 4);
    let readback = support::run(|recorder| {
        for value in 1..=10 {
            recorder.dispatch(
                &PLACE,
                &Variant::default(),
                &put(2, value),
                &[(&buffer).into()],
                Groups(1),
            )?;
        }
        recorder.read_back(Slice::all(&buffer))
    })
    .unwrap();
    assert_eq!(words(&support::wait(readback)), [0, 0, 55, 0]);
}

#[test]
fn two_recordings_in_one_encoder() {
    let context = support::context();
    let (first, second) = (zeros(context, 1), zeros(context, 1));
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut readbacks = Vec::new();
    for (buffer, value) in [(&first, 3), (&second, 4)] {
        let mut recorder = Recorder::new(context, &mut encoder);
        recorder
            .dispatch(&PLACE, &Variant::default(), &put(0, value), &[buffer.into()], Groups(1))
            .unwrap();
        readbacks.push(recorder.read_back(Slice::all(buffer)).unwrap());
        assert!(recorder.finish().unwrap().is_none());
    }
    context.queue().submit([encoder.finish()]);
    context.device().poll(wgpu::PollType::wait_indefinitely()).unwrap();
    let values: Vec<_> = readbacks.into_iter().map(|r| words(&support::wait(r))).collect();
    assert_eq!(values, [[3], [4]]);
}

#[test]
fn more_workgroups_than_one_dimension_holds() {
    // Prime, so that the fold leaves places past the end.
    let count = 70_001;
    let buffer = zeros(support::context(), count);
    let readback = support::run(|recorder| {
        let params = PlaceParams { at: 0, value: 1, count: count as u32 };
        let groups = Groups(count as u64);
        recorder.dispatch(&PLACE, &Variant::default(), &params, &[(&buffer).into()], groups)?;
        recorder.read_back(Slice::all(&buffer))
    })
    .unwrap();
    let got = words(&support::wait(readback));
    assert_eq!(got.iter().position(|&word| word != 1), None);
    assert_eq!(got.len(), count);
}

#[test]
fn overrides_make_pipelines_of_their_own() {
    let buffer = zeros(support::context(), 3);
    let readback = support::run(|recorder| {
        for step in [1, 10, 100] {
            let variant = Variant { constants: vec![], overrides: vec![("STEP", step)] };
            let params = PlaceParams { at: 0, value: 0, count: 3 };
            recorder.dispatch(&PLACE, &variant, &params, &[(&buffer).into()], Groups(3))?;
        }
        recorder.read_back(Slice::all(&buffer))
    })
    .unwrap();
    assert_eq!(words(&support::wait(readback)), [0, 111, 111]);
}

#[test]
fn pipelines_are_made_through_a_cache_that_the_caller_keeps() {
    let (device, queue) = support::device(&wgpu::Limits::default());
    if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
        // Metal and Direct3D 12 keep caches of their own.
        return;
    }
    let make = |data: Option<&[u8]>| {
        let descriptor =
            wgpu::PipelineCacheDescriptor { label: Some("test"), data, fallback: true };
        // SAFETY: the data, if any, is what a cache of the same adapter and driver returned.
        unsafe { device.create_pipeline_cache(&descriptor) }
    };
    let run = |cache: &wgpu::PipelineCache| {
        let descriptor =
            ContextDescriptor { pipeline_cache: Some(cache), ..ContextDescriptor::default() };
        let context = Context::new(&device, &queue, &descriptor).unwrap();
        let buffer = zeros(&context, 2);
        let readback = support::run_on(&context, |recorder| {
            let slices = [(&buffer).into()];
            recorder.dispatch(&PLACE, &Variant::default(), &put(1, 7), &slices, Groups(1))?;
            recorder.read_back(Slice::all(&buffer))
        })
        .unwrap();
        assert_eq!(words(&support::wait(readback)), [0, 7]);
    };
    let first = make(None);
    run(&first);
    let kept = first.get_data().expect("a cache with pipelines in it");
    // How much a driver puts into it is its own affair: Mesa's software one writes a header alone.
    assert!(!kept.is_empty());
    run(&make(Some(&kept)));
}

#[test]
fn parts_clears_and_copies() {
    let context = support::context();
    let align = u64::from(context.device().limits().min_storage_buffer_offset_alignment);
    let size = 4 * align;
    let buffer = context.upload("parts", &vec![0xff; size as usize]).unwrap();
    let copy = context.create("copy", size).unwrap();
    let (whole, part) = support::run(|recorder| {
        recorder.clear(Slice { buffer: &buffer, offset: align, size: 2 * align })?;
        let slice = Slice { buffer: &buffer, offset: 2 * align, size: align };
        recorder.dispatch(&PLACE, &Variant::default(), &put(1, 9), &[slice], Groups(1))?;
        recorder.copy(&buffer, 0, &copy, 0, size)?;
        recorder.copy(&buffer, 0, &copy, 0, 0)?;
        let part = Slice { buffer: &copy, offset: 2 * align, size: 8 };
        Ok((recorder.read_back(Slice::all(&copy))?, recorder.read_back(part)?))
    })
    .unwrap();
    let mut expected = vec![0xffu8; size as usize];
    expected[align as usize..3 * align as usize].fill(0);
    expected[2 * align as usize + 4] = 9;
    assert_eq!(support::wait(whole), expected);
    assert_eq!(words(&support::wait(part)), [0, 9]);
}

#[test]
fn marks_return_one_span_each() {
    let buffer = zeros(support::context(), 1);
    let context = support::context();
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    for label in ["first", "second"] {
        recorder.mark(label);
        recorder
            .dispatch(&PLACE, &Variant::default(), &put(0, 1), &[(&buffer).into()], Groups(1))
            .unwrap();
    }
    let timing = recorder.finish().unwrap();
    context.queue().submit([encoder.finish()]);
    context.device().poll(wgpu::PollType::wait_indefinitely()).unwrap();
    let stamps = context.device().features().contains(wgpu::Features::TIMESTAMP_QUERY);
    assert_eq!(timing.is_some(), stamps);
    if let Some(timing) = timing {
        let spans = pollster::block_on(timing.spans()).unwrap();
        let labels: Vec<_> = spans.iter().map(|span| span.label).collect();
        assert_eq!(labels, ["first", "second"]);
        assert!(spans.iter().all(|span| span.nanoseconds.is_none_or(|ns| ns > 0.0)));
    }
}

#[test]
fn no_workgroups_is_no_work() {
    let buffer = zeros(support::context(), 1);
    let readback = support::run(|recorder| {
        recorder.dispatch(
            &PLACE,
            &Variant::default(),
            &put(0, 5),
            &[(&buffer).into()],
            Groups(0),
        )?;
        recorder.read_back(Slice::all(&buffer))
    })
    .unwrap();
    assert_eq!(words(&support::wait(readback)), [0]);
}

/// The error of a dispatch over `slices`.
fn refused(context: &Context, slices: &[Slice<'_>], groups: Groups) -> Error {
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    recorder
        .dispatch(&PLACE, &Variant::default(), &put(0, 0), slices, groups)
        .expect_err("the dispatch is refused")
}

#[test]
fn wrong_slices_are_refused_by_name() {
    let context = support::context();
    let buffer = zeros(context, 1024);
    let all = Slice::all(&buffer);
    let one = Groups(1);
    let error = refused(context, &[], one);
    assert!(matches!(error, Error::Length { argument: "test/place", got: 0, expected: 1 }));
    let error = refused(context, &[all, all], one);
    assert!(matches!(error, Error::Length { got: 2, expected: 1, .. }));
    let error = refused(context, &[Slice { offset: 4, size: 4, ..all }], one);
    assert!(matches!(error, Error::Offsets { argument: "output", got: 4, .. }), "{error}");
    for size in [0, 6] {
        let error = refused(context, &[Slice { size, ..all }], one);
        assert!(matches!(error, Error::Offsets { argument: "output", .. }), "{error}");
    }
    for (offset, size) in [(0, 4100), (256, 4096), (4096, 4), (u64::MAX - 255, 512)] {
        let error = refused(context, &[Slice { buffer: &buffer, offset, size }], one);
        assert!(matches!(error, Error::Offsets { argument: "output", .. }), "{error}");
    }
    let plain = context.device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage: wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let error = refused(context, &[Slice::all(&plain)], one);
    assert!(matches!(error, Error::BufferUsage { argument: "output", usage: "STORAGE" }));
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let error = Recorder::new(context, &mut encoder).read_back(Slice::all(&plain)).unwrap_err();
    assert!(matches!(error, Error::BufferUsage { usage: "COPY_SRC", .. }));
}

#[test]
fn more_than_the_device_allows_is_refused_by_name() {
    let context = support::context();
    let limits = context.device().limits();
    let buffer = zeros(context, 1);
    let side = u64::from(limits.max_compute_workgroups_per_dimension);
    let error = refused(context, &[Slice::all(&buffer)], Groups(side * side + 1));
    let limit = "max_compute_workgroups_per_dimension";
    assert!(
        matches!(error, Error::DeviceLimit { argument: "test/place", limit: l, .. } if l == limit)
    );
    let size = limits.max_storage_buffer_binding_size;
    let error = context.create("too large", size + 4).unwrap_err();
    let expected = "too large needs";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert!(matches!(
        error,
        Error::DeviceLimit { limit: "max_storage_buffer_binding_size", allowed, .. }
            if allowed == size
    ));
    let beyond = Slice { buffer: &buffer, offset: 0, size: size + 4 };
    let error = refused(context, &[beyond], Groups(1));
    assert!(matches!(error, Error::DeviceLimit { argument: "output", .. }));
}

#[test]
fn a_device_that_is_too_small_is_refused_by_name() {
    let adapter = pollster::block_on(
        wgpu::Instance::new({
            let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
            descriptor.backends = wgpu::Backends::NOOP;
            descriptor.backend_options.noop.enable = true;
            descriptor
        })
        .request_adapter(&wgpu::RequestAdapterOptions::default()),
    )
    .unwrap();
    let small = wgpu::DeviceDescriptor {
        required_limits: wgpu::Limits {
            max_storage_buffers_per_shader_stage: 4,
            ..wgpu::Limits::default()
        },
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&small)).unwrap();
    let error = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap_err();
    assert!(matches!(
        error,
        Error::DeviceLimit { limit: "max_storage_buffers_per_shader_stage", allowed: 4, .. }
    ));
}

#[test]
fn work_that_did_not_run_is_told_from_work_that_did() {
    // The noop backend copies and maps, and reports success, but runs no shader: as a GPU does
    // whose fault the driver hides.
    let (device, queue) = shaders::noop();
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
    let buffer = zeros(&context, 2);
    let (first, second) = support::run_on(&context, |recorder| {
        Ok((recorder.read_back(Slice::all(&buffer))?, recorder.read_back(Slice::all(&buffer))?))
    })
    .unwrap();
    for readback in [first, second] {
        let error = pollster::block_on(readback).unwrap_err();
        assert!(matches!(error, Error::Incomplete { got: 0, expected } if expected != 0));
    }
}

#[test]
fn a_lost_device_is_an_error() {
    let (device, queue) = support::device(&wgpu::Limits::default());
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
    let buffer = zeros(&context, 2);
    let mut encoder = device.create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(&context, &mut encoder);
    let readback = recorder.read_back(Slice::all(&buffer)).unwrap();
    recorder.finish().unwrap();
    let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
    device.destroy();
    queue.submit([encoder.finish()]);
    let _ = device.poll(wgpu::PollType::Poll);
    let _ = pollster::block_on(scope.pop());
    let error = pollster::block_on(readback).expect_err("a read-back from a lost device");
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
}

#[test]
fn a_read_back_waits_for_its_submit() {
    // A device of its own: where threads share one, another's poll may still be at the callback.
    let (device, queue) = support::device(&wgpu::Limits::default());
    let context = &Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
    let buffer = zeros(context, 1);
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(context, &mut encoder);
    let mut readback = std::pin::pin!(recorder.read_back(Slice::all(&buffer)).unwrap());
    recorder.finish().unwrap();
    let mut task = TaskContext::from_waker(Waker::noop());
    assert!(readback.as_mut().poll(&mut task).is_pending());
    context.queue().submit([encoder.finish()]);
    context.device().poll(wgpu::PollType::wait_indefinitely()).unwrap();
    assert!(matches!(readback.as_mut().poll(&mut task), Poll::Ready(Ok(bytes)) if bytes == [0; 4]));
    assert!(matches!(
        readback.as_mut().poll(&mut task),
        Poll::Ready(Err(Error::DeviceLost { .. }))
    ));
}

#[test]
fn the_baseline_runs_without_a_complaint() {
    let (device, queue) = support::device(&wgpu::Limits::default());
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
    let scopes = [wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::Internal]
        .map(|filter| device.push_error_scope(filter));
    let count = 66_000;
    let buffer = zeros(&context, count);
    let readback = support::run_on(&context, |recorder| {
        let params = PlaceParams { at: 0, value: 1, count: count as u32 };
        let groups = Groups(count as u64);
        recorder.dispatch(&PLACE, &Variant::default(), &params, &[(&buffer).into()], groups)?;
        recorder.read_back(Slice::all(&buffer))
    })
    .unwrap();
    assert!(words(&support::wait(readback)).iter().all(|&word| word == 1));
    for scope in scopes.into_iter().rev() {
        assert_eq!(pollster::block_on(scope.pop()).map(|e| e.to_string()), None);
    }
}

#[test]
fn read_backs_beyond_one_staging_buffer_come_in_several() {
    const BYTES: usize = 64 << 20;
    let context = support::context();
    let pattern: Vec<u32> = (0..BYTES as u32 / 4).map(|n| n.wrapping_mul(0x9e37_79b9)).collect();
    let buffer = context.upload("pattern", bytemuck::cast_slice(&pattern)).unwrap();
    // 320 MiB, and small ones between that share a buffer with what is before them.
    let parts = support::run(|recorder| {
        (0..5u64)
            .flat_map(|place| {
                [Slice::all(&buffer), Slice { offset: 4 * place, size: 4, ..Slice::all(&buffer) }]
            })
            .map(|slice| recorder.read_back(slice))
            .collect::<wgkv::Result<Vec<_>>>()
    })
    .unwrap();
    for (place, part) in parts.into_iter().enumerate() {
        let got = words(&support::wait(part));
        if place % 2 == 0 {
            assert!(got == pattern, "{place}");
        } else {
            assert_eq!(got, [pattern[place / 2]]);
        }
    }
}
