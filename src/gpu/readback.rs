//! Read-back as a future, with a completion word that tells finished work from lost work: some
//! backends report a GPU fault or time-out as success.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context as TaskContext, Poll, Waker};
use std::sync::{Arc, Mutex, PoisonError};

use super::kernel::{Binding, Kernel};
use super::params::{Params, params};
use crate::error::{Error, Result};

params! {
    /// Parameters of the completion kernel.
    pub struct CompleteParams {
        /// Word to write.
        nonce: u32,
    }
}

/// Writes the completion word; the last dispatch of every recording that reads back.
pub(super) static KERNEL: Kernel = Kernel {
    name: "common/complete",
    source: include_str!("../../wgsl/common/complete.wgsl"),
    bindings: &[Binding::Write("word")],
    params: CompleteParams::LAYOUT,
};

/// The kernel that writes the completion word, for tests that list every kernel.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// What a read-back and its promise share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    answer: Option<Result<Vec<u8>>>,
    waker: Option<Waker>,
    done: bool,
}

/// Answers a read-back, with an error when it is dropped on the way: the recording, its encoder or
/// its device has gone.
#[derive(Debug)]
pub(super) struct Promise {
    shared: Arc<Shared>,
}

impl Promise {
    pub(super) fn new() -> (Self, Readback) {
        let shared = Arc::new(Shared::default());
        (Self { shared: shared.clone() }, Readback { shared })
    }

    /// Answers, unless that was done.
    fn set(&self, answer: impl FnOnce() -> Result<Vec<u8>>) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.answer.is_some() || state.done {
            return;
        }
        state.answer = Some(answer());
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.set(|| Err(Error::DeviceLost { reason: "its recording never ran".into() }));
    }
}

/// Bytes on their way back from the GPU. Resolves once the submit that holds the recording has run
/// and the caller has polled the device.
///
/// # Errors
/// Resolves to [`Error::Incomplete`] when the work did not reach its end and to
/// [`Error::DeviceLost`] when the memory could not be mapped or the recording never ran.
#[derive(Debug)]
#[must_use = "a read-back is a future"]
pub struct Readback {
    shared: Arc<Shared>,
}

impl Future for Readback {
    type Output = Result<Vec<u8>>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.answer.take() {
            Some(answer) => {
                state.done = true;
                Poll::Ready(answer)
            }
            None if state.done => Poll::Ready(Err(Error::DeviceLost {
                reason: "the read-back was already taken".into(),
            })),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Has the staging buffer mapped after the submit and its parts handed out.
pub(super) fn schedule(
    encoder: &wgpu::CommandEncoder,
    staging: &wgpu::Buffer,
    nonce: u32,
    waiting: Vec<(Promise, u64, u64)>,
) {
    let buffer = staging.clone();
    encoder.map_buffer_on_submit(staging, wgpu::MapMode::Read, .., move |mapped| {
        let answers = mapped
            .map_err(|e| Error::DeviceLost { reason: e.to_string() })
            .and_then(|()| parts(&buffer, nonce, &waiting));
        match answers {
            Ok(answers) => {
                for ((promise, ..), bytes) in waiting.iter().zip(answers) {
                    promise.set(|| Ok(bytes));
                }
            }
            Err(error) => {
                for (promise, ..) in &waiting {
                    promise.set(|| Err(again(&error)));
                }
            }
        }
        // Unlike unmapping, this is no error on a device that was lost meanwhile.
        buffer.destroy();
    });
}

fn parts(
    buffer: &wgpu::Buffer,
    expected: u32,
    waiting: &[(Promise, u64, u64)],
) -> Result<Vec<Vec<u8>>> {
    let view =
        buffer.get_mapped_range(..).map_err(|e| Error::DeviceLost { reason: e.to_string() })?;
    let got = u32::from_le_bytes([view[0], view[1], view[2], view[3]]);
    if got != expected {
        return Err(Error::Incomplete { got, expected });
    }
    Ok(waiting
        .iter()
        .map(|(_, offset, size)| view[*offset as usize..(offset + size) as usize].to_vec())
        .collect())
}

/// The same error once more, for the next read-back of the submit.
fn again(error: &Error) -> Error {
    match error {
        Error::Incomplete { got, expected } => Error::Incomplete { got: *got, expected: *expected },
        other => Error::DeviceLost { reason: other.to_string() },
    }
}
