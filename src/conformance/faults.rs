//! Contexts with faults, for those who want to see them noticed.

use crate::error::{Error, Result};
use crate::gpu::{Context, ContextDescriptor, Fault};
use crate::kernels::kernels;

/// Adopts a device and plants faults in what runs on it.
///
/// # Errors
/// As [`Context::new`]; [`Error::Codec`] for a kernel or a field that there is not and
/// [`Error::Length`] for a text that the kernel does not hold exactly once: what would plant nothing is
/// refused.
pub fn with_faults(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    descriptor: &ContextDescriptor<'_>,
    faults: &[Fault],
) -> Result<Context> {
    faults.iter().try_for_each(check)?;
    Ok(Context::new(device, queue, descriptor)?.planted(faults))
}

fn check(fault: &Fault) -> Result<()> {
    let all = kernels();
    let Some((kernel, _)) = all.iter().find(|(kernel, _)| kernel.name == fault.kernel()) else {
        return Err(Error::Codec { argument: "kernel", expected: "the name of a kernel" });
    };
    match fault {
        Fault::Text { from, .. } => match kernel.source.matches(from).count() {
            1 => Ok(()),
            got => Err(Error::Length { argument: "the text of a fault", got, expected: 1 }),
        },
        Fault::Parameter { .. } if fault.offset(kernel).is_none() => {
            Err(Error::Codec { argument: "field", expected: "a field of the parameters" })
        }
        _ => Ok(()),
    }
}
