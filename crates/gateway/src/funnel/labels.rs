//! Labels of the funnel's metrics. Models, classes and tenants are bounded as everywhere; the words are fixed lists.

use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Cell {
    pub model: String,
    pub class: &'static str,
    pub tenant: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct CellLayer {
    pub model: String,
    pub class: &'static str,
    pub tenant: String,
    pub layer: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct CellCause {
    pub model: String,
    pub class: &'static str,
    pub tenant: String,
    pub cause: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ModelTier {
    pub model: String,
    pub tier: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ModelWhy {
    pub model: String,
    pub why: &'static str,
}

/// A pool of `times` the fleet's size.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ModelTimes {
    pub model: String,
    pub times: String,
}
