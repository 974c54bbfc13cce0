//! A case under way: its random numbers, its device, its account.

use core::future::Future;
use core::pin::Pin;

use super::checks::Checks;
use super::draw::Random;
use crate::error::{Error, Result};
use crate::gpu::{Context, Recorder, Slice};

/// A stage at work on a case.
pub(crate) type Job<'r> = Pin<Box<dyn Future<Output = Result<()>> + 'r>>;

/// Where a case comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A reference case, by its number within the stage.
    Reference(usize),
    /// One of the cases that go through the variants.
    Cover(usize),
    /// A random case.
    Property,
}

/// A case under way.
pub(crate) struct Run<'a> {
    pub context: &'a Context,
    pub origin: Origin,
    pub random: Random,
    pub checks: Checks,
    /// How large the case may get, in percent.
    pub size: usize,
    /// What is left of the number of a covering case.
    place: usize,
}

impl<'a> Run<'a> {
    pub fn new(context: &'a Context, origin: Origin, seed: u64, size: usize) -> Self {
        let place = if let Origin::Cover(place) = origin { place } else { 0 };
        Self { context, origin, random: Random(seed), checks: Checks::default(), size, place }
    }

    /// One of a list: covering cases go through all of them, others draw.
    pub fn cover<T: Copy>(&mut self, list: &[T]) -> T {
        if let Origin::Cover(_) = self.origin {
            let at = self.place % list.len();
            self.place /= list.len();
            return list[at];
        }
        self.random.pick(list)
    }

    /// Whether the case goes through the variants.
    pub fn covers(&self) -> bool {
        matches!(self.origin, Origin::Cover(_))
    }

    /// The number of a covering case.
    pub fn number(&self) -> Option<usize> {
        if let Origin::Cover(number) = self.origin { Some(number) } else { None }
    }

    /// A count from `low` to `high`, which grows with the size of the case.
    pub fn count(&mut self, low: usize, high: usize) -> usize {
        let high = low + (high - low) * self.size / 100;
        self.random.between(low, high)
    }

    pub fn upload<T: bytemuck::NoUninit>(&self, values: &[T]) -> Result<wgpu::Buffer> {
        self.context.upload("conformance", bytemuck::cast_slice(values))
    }

    /// Records and submits.
    pub fn record<T>(&self, record: impl FnOnce(&mut Recorder<'_>) -> Result<T>) -> Result<T> {
        let device = self.context.device();
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut recorder = Recorder::new(self.context, &mut encoder);
        let value = record(&mut recorder)?;
        recorder.finish()?;
        self.context.queue().submit([encoder.finish()]);
        Ok(value)
    }

    /// The first `count` items of a buffer.
    pub async fn read<T: bytemuck::Pod>(
        &self,
        buffer: &wgpu::Buffer,
        count: usize,
    ) -> Result<Vec<T>> {
        let bytes = self.record(|rec| rec.read_back(Slice::all(buffer)))?.await?;
        let mut items: Vec<T> = bytemuck::pod_collect_to_vec(&bytes);
        if items.len() < count {
            let (argument, got) = ("an answer", items.len());
            return Err(Error::Length { argument, got, expected: count });
        }
        items.truncate(count);
        Ok(items)
    }
}

/// Has a future of this module run to its end, polling the context's device meanwhile. For native
/// callers: a browser polls by itself and awaits the future as it is.
#[cfg(not(target_arch = "wasm32"))]
pub fn wait<F: Future>(context: &Context, future: F) -> F::Output {
    let mut future = core::pin::pin!(future);
    let mut task = core::task::Context::from_waker(core::task::Waker::noop());
    loop {
        if let core::task::Poll::Ready(output) = future.as_mut().poll(&mut task) {
            return output;
        }
        // What was submitted is over, or the device is lost, which the read-backs say too.
        let _ = context.device().poll(wgpu::PollType::wait_indefinitely());
    }
}
