//! The codecs that the tests go through. A new choice of [`Scheme`] joins them all here.

use proptest::prelude::*;
use wgkv::layout::{Bits, Family, Gain, MeanDomain, Metadata, Profile, Scheme};

const METADATA: [Metadata; 3] = [Metadata::Half, Metadata::Four, Metadata::Linear];
const MEANS: [MeanDomain; 2] = [MeanDomain::Plain, MeanDomain::Hadamard];
const GAINS: [Gain; 3] = [Gain::TokenNorm, Gain::Unbiased, Gain::NormPreserving];
const SIGNS: [Option<u32>; 2] = [None, Some(20260)];

/// Books of every family and rate.
fn books() -> Vec<(Family, Bits)> {
    let families = [Family::Unit, Family::Plain].into_iter();
    let rates = |family: Family| {
        let has = move |bits: &Bits| family.rate("bits", bits.get() as u32).is_ok();
        Bits::ALL.into_iter().filter(has).map(move |bits| (family, bits))
    };
    families.flat_map(rates).collect()
}

fn scheme(
    (family, bits): (Family, Bits),
    metadata: Metadata,
    mean: MeanDomain,
    gain: Gain,
    signs: Option<u32>,
) -> Scheme {
    let mut scheme = Profile::Compat.scheme(bits);
    scheme.family = family;
    scheme.metadata = metadata;
    scheme.mean = mean;
    scheme.gain = gain;
    scheme.signs = signs;
    scheme
}

/// Every profile at every rate that it has, and one with signs, by what they are called.
pub fn named() -> Vec<(String, Scheme)> {
    let mut named = Vec::new();
    for profile in Profile::ALL {
        for bits in Bits::ALL {
            let scheme = profile.scheme(bits);
            if scheme.family.rate("bits", bits.get() as u32).is_ok() {
                named.push((format!("{} {}", profile.name(), bits.get()), scheme));
            }
        }
    }
    let mut signed = Profile::Tuned.scheme(Bits::Two);
    signed.signs = SIGNS[1];
    named.push(("tuned 2, signs".into(), signed));
    named
}

/// Every combination of the choices.
pub fn every() -> Vec<Scheme> {
    let mut all = Vec::new();
    for book in books() {
        for metadata in METADATA {
            for mean in MEANS {
                for gain in GAINS {
                    for signs in SIGNS {
                        all.push(scheme(book, metadata, mean, gain, signs));
                    }
                }
            }
        }
    }
    all
}

/// Combinations in which every pair of choices occurs.
pub fn covering() -> Vec<Scheme> {
    let mut some = Vec::new();
    for (at, book) in books().into_iter().enumerate() {
        for (number, metadata) in METADATA.into_iter().enumerate() {
            for (turned, mean) in MEANS.into_iter().enumerate() {
                let gain = (at + 2 * number + turned) % 3;
                let signs = SIGNS[(at / 3 + number + gain) % 2];
                some.push(scheme(book, metadata, mean, GAINS[gain], signs));
            }
        }
    }
    some
}

/// Any combination, with any seed of the signs.
pub fn any_scheme() -> impl Strategy<Value = Scheme> {
    let formats = (
        prop::sample::select(books()),
        prop::sample::select(METADATA.to_vec()),
        prop::sample::select(MEANS.to_vec()),
    );
    let rest = (prop::sample::select(GAINS.to_vec()), prop::option::of(any::<u32>()));
    (formats, rest).prop_map(|((book, metadata, mean), (gain, signs))| {
        scheme(book, metadata, mean, gain, signs)
    })
}
