//! What the page asks of the library: a device, a compressed file, a report of conformance.

mod compress;
mod device;
mod errors;
mod file;

use js_sys::{Function, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use wgkv::conformance::{Config, Suite};

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
        let tell =
            async |done: usize, all: usize, what: String| tell(&progress, done, all, &what).await;
        let figures = compress::compress(&self.device, &file, target_bits, keep, tell).await;
        figures.map(|value| value.to_string()).map_err(|e| JsError::new(&e))
    }

    /// Runs the conformance suite with some random cases of each stage; the report as JSON.
    pub async fn conform(&self, cases: u32, progress: Function) -> Result<String, JsError> {
        let context = self.device.context();
        let mut suite = Suite::new(&Config { cases, ..Config::default() })?;
        let all = suite.remaining() as usize;
        let mut done = 0;
        while let Some(case) = suite.next_case() {
            tell(&progress, done, all.max(done + 1), case.stage()).await;
            let mut outcome = case.run(context).await;
            if let Some(fault) = self.device.refused() {
                outcome.failure = Some(format!("the GPU refused the work: {fault}"));
            }
            suite.add(&case, outcome);
            done += 1;
        }
        Ok(suite.report(context).to_json())
    }
}

/// Tells the page how far the work is, and leaves it the time to show that.
async fn tell(progress: &Function, done: usize, all: usize, what: &str) {
    let count = |n: usize| JsValue::from_f64(n as f64);
    let told = progress.call3(&JsValue::NULL, &count(done), &count(all), &JsValue::from_str(what));
    if let Ok(value) = told {
        // What the page answers does not bear on the work.
        let _ = JsFuture::from(Promise::resolve(&value)).await;
    }
}
