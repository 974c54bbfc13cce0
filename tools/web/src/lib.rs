//! What the page asks of the library: a device, a compressed file, a report of conformance.

mod compress;
mod device;
mod errors;
mod file;

use js_sys::{Array, Function, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use wgkv::conformance::{Config, Fixed, Suite};

use device::Device;

/// A GPU of the visitor's, opened.
#[wasm_bindgen]
pub struct Lab {
    device: Device,
}

#[wasm_bindgen]
impl Lab {
    /// Opens the GPU.
    pub async fn open() -> Result<Lab, JsError> {
        Ok(Self { device: Device::open().await.map_err(|e| JsError::new(&e))? })
    }

    /// Its name and the limits that matter, as JSON.
    pub fn about(&self) -> String {
        self.device.about().to_string()
    }

    /// Whether it computes what every kernel stands on; the faults, one a line.
    pub async fn self_test(&self) -> Result<String, JsError> {
        self.device.self_test().await.map_err(|e| JsError::new(&e))
    }

    /// Compresses a safetensors file; `progress(done, all, what)` is awaited between the steps. Returns
    /// the figures as JSON.
    pub async fn compress(
        &self,
        file: Vec<u8>,
        target_bits: f64,
        keep: f64,
        progress: Function,
    ) -> Result<String, JsError> {
        let tell = async |done: usize, all: usize, what: String| {
            tell(&progress, done, all, &what, None).await;
        };
        let figures = compress::compress(&self.device, &file, target_bits, keep, tell).await;
        figures.map(|value| value.to_string()).map_err(|e| JsError::new(&e))
    }

    /// Runs the conformance suite: one or two cases of each stage if `quick`, else all fixed ones, then
    /// `cases` random ones of each. `progress(done, all, stage, compared, failure)` is awaited before each
    /// case and after it; it ends the run where it answers false. Returns the report as JSON.
    pub async fn conform(
        &self,
        quick: bool,
        cases: u32,
        progress: Function,
    ) -> Result<String, JsError> {
        let context = self.device.context();
        let fixed = if quick { Fixed::Few } else { Fixed::Everything };
        let mut suite = Suite::new(&Config { cases, fixed, ..Config::default() })?;
        let (mut done, mut all) = (0, suite.remaining() as usize);
        while let Some(case) = suite.next_case() {
            if !tell(&progress, done, all, case.stage(), None).await {
                break;
            }
            let mut outcome = case.run(context).await;
            if let Some(fault) = self.device.refused() {
                outcome.failure = Some(format!("the GPU refused the work: {fault}"));
            }
            done += 1;
            let told = (outcome.compared, outcome.failure.clone());
            suite.add(&case, outcome);
            // A failure is followed by smaller cases.
            all = done + suite.remaining() as usize;
            if !tell(&progress, done, all, case.stage(), Some(told)).await {
                break;
            }
        }
        Ok(suite.report(context).to_json())
    }
}

/// Tells the page how far the work is and what came of a case, and leaves it the time to show that.
/// Whether to go on.
async fn tell(
    progress: &Function,
    done: usize,
    all: usize,
    what: &str,
    outcome: Option<(u64, Option<String>)>,
) -> bool {
    let arguments = Array::of3(&(done as f64).into(), &(all as f64).into(), &what.into());
    if let Some((compared, failure)) = outcome {
        arguments.push(&(compared as f64).into());
        arguments.push(&failure.map_or(JsValue::NULL, JsValue::from));
    }
    let Ok(answer) = progress.apply(&JsValue::NULL, &arguments) else { return true };
    let answer = JsFuture::from(Promise::resolve(&answer)).await;
    answer.is_ok_and(|answer| answer != JsValue::FALSE)
}
