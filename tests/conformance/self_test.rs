//! The start-up self-test.

use std::future::Future;
use std::pin::pin;
use std::task::{Context as Task, Poll, Waker};

use wgkv::conformance::with_faults;
use wgkv::gpu::{Context, ContextDescriptor, Fault, SelfTest, SelfTestPart};
use wgkv::wgpu;

use crate::support;

/// Records and submits a test.
fn start(context: &Context) -> impl Future<Output = wgkv::Result<SelfTest>> {
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let test = context.self_test(&mut encoder).expect("a recording");
    context.queue().submit([encoder.finish()]);
    test
}

fn run(context: &Context) -> SelfTest {
    let test = start(context);
    context.device().poll(wgpu::PollType::wait_indefinitely()).expect("the device polls");
    pollster::block_on(test).expect("answers")
}

#[test]
fn this_device_passes() {
    let test = run(support::context());
    assert!(test.passed(), "{:?}", test.faults);
    let again = run(support::context());
    assert_eq!(test, again);
}

#[test]
fn nothing_blocks_before_the_device_is_polled() {
    let context = support::context();
    let mut test = pin!(start(context));
    let mut task = Task::from_waker(Waker::noop());
    // Somebody else's poll may have answered it already.
    let early = test.as_mut().poll(&mut task);
    context.device().poll(wgpu::PollType::wait_indefinitely()).expect("the device polls");
    let test = match early {
        Poll::Ready(test) => test,
        Poll::Pending => pollster::block_on(test),
    };
    assert!(test.expect("answers").passed());
}

#[test]
fn subgroups_are_looked_at_where_the_device_has_them() {
    let instance = wgpu::Instance::new(
        wgpu::InstanceDescriptor {
            backends: wgpu::Backends::PRIMARY,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        }
        .with_env(),
    );
    let adapter = pollster::block_on(instance.request_adapter(&Default::default()));
    let adapter = adapter.expect("an adapter");
    let has = adapter.features() & wgpu::Features::SUBGROUP;
    let descriptor = wgpu::DeviceDescriptor {
        required_features: has,
        required_limits: wgkv::gpu::required_limits(&adapter.limits()),
        ..Default::default()
    };
    let (device, queue) =
        pollster::block_on(adapter.request_device(&descriptor)).expect("a device");
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).expect("a context");
    let test = run(&context);
    assert!(test.passed(), "{:?}", test.faults);
    assert_eq!(test.subgroup_size.is_some(), !has.is_empty());
}

#[test]
fn every_part_is_told_when_it_is_wrong() {
    let kernel = "common/self_test";
    let (device, queue) = (support::context().device(), support::context().queue());
    for (part, from, to) in [
        (SelfTestPart::NonFinite, "(bits & 0x7f800000u) != 0x7f800000u", "bits != 0x7f800000u"),
        (SelfTestPart::NonFinite, "select(0u, bits, element_finite(bits))", "bits"),
        (SelfTestPart::Order, "return select(key, 0u, magnitude > 0x7f800000u);", "return key;"),
        (SelfTestPart::Order, "select(signed_key, 0x80000000u, magnitude == 0u)", "signed_key"),
        (SelfTestPart::Rounding, "((rebased >> 13u) & 1u)) >> 13u", "1u) >> 13u"),
        (SelfTestPart::Division, "+ (cross >> 16u)", ""),
        (SelfTestPart::Barrier, "if lane == turn {", "if lane == (turn ^ 1u) {"),
        (SelfTestPart::Tie, "other == keys[lane] && theirs < places[lane]", "other == keys[lane]"),
        (SelfTestPart::Lane, "answers[at + 7u] = lane;", "answers[at + 7u] = lane + 1u;"),
    ] {
        let fault = Fault::Text { kernel, from, to };
        let context = with_faults(device, queue, &Default::default(), &[fault]);
        let test = run(&context.unwrap_or_else(|e| panic!("{from}: {e}")));
        let parts: Vec<SelfTestPart> = test.faults.iter().map(|fault| fault.part).collect();
        assert!(parts.contains(&part), "{from}: {parts:?}");
        assert!(test.faults[0].to_string().contains(test.faults[0].part.name()));
    }
}
