//! How the pages of two paths are compared: scales and means to one step of f16, codes exactly
//! wherever the margin of the choice exceeds what rounding can do.

use std::sync::atomic::{AtomicU64, Ordering};

use wgkv::layout::Bits;
use wgkv::nsnquant::{Codec, Codes, cpu};
use wgkv::shape::Elements;

use crate::common::steps;

/// Codes compared, and codes that differ, over all comparisons of the process: of rows whose second
/// scale says that something is left once the mean is gone, and of the others, whose codes are those
/// of rounding noise.
static SEEN: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static DIFFERENT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// Second scale below which a row is noise.
const NOISE: f32 = 1e-3;

/// Error that rounding leaves in a value of the Hadamard domain whose row was divided by `s2`: the
/// normalised values before are of the order of `top` and known to a few units of 2^-24.
fn rounding(s2: f32, top: f32) -> f32 {
    2e-6 * (1.0 + top) / s2 + 1e-5
}

/// Compares `pages` of some path with those of the CPU; `label` goes into the messages.
pub fn same_pages(
    label: &str,
    codec: &Codec,
    data: Elements<'_>,
    starts: &[u32],
    pages: &[u32],
    reference: &[u32],
) -> Result<(), String> {
    let layout = codec.layout();
    let (ours, theirs) = (
        Codes::unpack(codec, pages).map_err(|e| e.to_string())?,
        Codes::unpack(codec, reference).map_err(|e| e.to_string())?,
    );
    let fail = |what: String| Err(format!("{label}: {what}"));
    let codes = layout.chunk() * layout.pieces();
    let planes = if layout.bits() == Bits::Two { 2 } else { 1 };
    for (page, start) in starts.iter().enumerate() {
        let known = cpu::analyse(codec, data, *start).map_err(|e| e.to_string())?;
        for t in 0..layout.chunk() {
            let at = page * layout.chunk() + t;
            let (a, b) = (ours.s1[at], theirs.s1[at]);
            if steps(a, b) > 1 {
                return fail(format!("page {page} s1[{t}] {a:#x} against {b:#x}"));
            }
            let tiny = rounding(1.0, 2.0) / 5.0;
            let (a, b) = (ours.s2[at], theirs.s2[at]);
            let near = (half(a) - half(b)).abs() <= tiny;
            if steps(a, b) > 1 && !near {
                return fail(format!("page {page} s2[{t}] {} against {}", half(a), half(b)));
            }
        }
        for c in 0..layout.head_dim() {
            let at = page * layout.head_dim() + c;
            let (a, b) = (ours.o[at], theirs.o[at]);
            if steps(a, b) > 1 && (half(a) - half(b)).abs() > 1e-6 {
                return fail(format!("page {page} o[{c}] {} against {}", half(a), half(b)));
            }
        }
        let book = codec.codebook().rows(layout.bits());
        for (i, y) in known.y.chunks_exact(8).enumerate() {
            let at = page * codes + i;
            let token = i / layout.pieces();
            let noise = usize::from(known.s2[token] < NOISE);
            let mut different = 0;
            let top = known.o.iter().fold(0.0f32, |a, b| a.max(b.abs()));
            let slack = rounding(known.s2[token], top);
            let mut target = [0.0; 8];
            target.copy_from_slice(y);
            if let (Some(ours), Some(theirs)) = (&ours.signs, &theirs.signs) {
                let differing = ours[at] ^ theirs[at];
                different += u64::from(differing != 0);
                for (channel, value) in y.iter().enumerate() {
                    if differing >> channel & 1 == 1 && value.abs() > slack {
                        return fail(format!("page {page} piece {i} sign {channel} of {value}"));
                    }
                }
                target.iter_mut().for_each(|v| *v = v.abs());
            }
            let (a, b) = (ours.idx[at], theirs.idx[at]);
            if a != b {
                different += 1;
                let dot = |index: u8| -> f32 {
                    let row = &book[usize::from(index) * 8..][..8];
                    row.iter().zip(&target).map(|(a, b)| a * b).sum()
                };
                // A unit row turns an error of `slack` a channel into at most sqrt(8) of it.
                if (dot(a) - dot(b)).abs() > 6.0 * slack {
                    return fail(format!("page {page} piece {i}: {a} against {b}, slack {slack}"));
                }
            }
            SEEN[noise].fetch_add(planes, Ordering::Relaxed);
            DIFFERENT[noise].fetch_add(different, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn half(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

/// Prints how many of the codes compared so far differ, and checks that they are few.
pub fn report() {
    for (noise, of) in ["rows", "rows of noise"].into_iter().enumerate() {
        let seen = SEEN[noise].load(Ordering::Relaxed);
        let different = DIFFERENT[noise].load(Ordering::Relaxed);
        let share = different as f64 / seen.max(1) as f64;
        println!("{different} of {seen} codes of {of} differ between the paths ({share:.1e})");
        assert!(noise == 1 || share <= 1e-3, "{different} of {seen} codes differ");
    }
}
