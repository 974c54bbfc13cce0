//! Codecs as the judge knows them.

use wgkv::judge::codec::{Form, Length, Rules, Turn};
use wgkv::layout::{Family, Gain, MeanDomain, Metadata};
use wgkv::nsnquant::{Codec, Pairing};

/// What the judge must know of a codec.
pub fn rules(codec: &Codec) -> Rules {
    let (layout, scheme) = (codec.layout(), codec.scheme());
    Rules {
        d: layout.head_dim(),
        r: layout.chunk(),
        bits: layout.bits().get(),
        plain: scheme.family == Family::Plain,
        form: match scheme.metadata {
            Metadata::Half => Form::Half,
            Metadata::Four => Form::Four,
            Metadata::Linear => Form::Linear,
        },
        length: match scheme.gain {
            Gain::TokenNorm => Length::Token,
            Gain::Unbiased => Length::Unbiased,
            Gain::NormPreserving => Length::Norm,
        },
        turned: scheme.mean == MeanDomain::Hadamard,
        seed: scheme.signs,
        turn: codec.rope().map(|rope| Turn {
            halves: rope.pairing() == Pairing::Halves,
            frequencies: rope.frequencies().iter().map(|f| f64::from(*f)).collect(),
        }),
    }
}
