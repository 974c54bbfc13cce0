//! Codecs as the judge knows them.

use wgkv::judge::codec::{Length, Rules};
use wgkv::layout::{Family, Gain, MeanDomain, Metadata};
use wgkv::nsnquant::Codec;

/// What the judge must know of a codec.
pub fn rules(codec: &Codec) -> Rules {
    let (layout, scheme) = (codec.layout(), codec.scheme());
    Rules {
        d: layout.head_dim(),
        r: layout.chunk(),
        bits: layout.bits().get(),
        plain: scheme.family == Family::Plain,
        four: scheme.metadata == Metadata::Four,
        length: match scheme.gain {
            Gain::TokenNorm => Length::Token,
            Gain::Unbiased => Length::Unbiased,
            Gain::NormPreserving => Length::Norm,
        },
        turned: scheme.mean == MeanDomain::Hadamard,
        seed: scheme.signs,
    }
}
