//! The functions of templates: Go's, sprig's and Helm's.

mod builtin;
mod certificates;
mod crypto;
mod data;
mod dates;
mod defaults;
mod dicts;
mod durations;
mod encoding;
mod lists;
mod math;
mod merge;
mod passwords;
mod paths;
mod reflection;
mod regexes;
mod slices;
mod strings;
mod urls;
mod versions;
mod words;

use sorting::CompactSort as _;
pub use versions::{Constraints, Version};

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::function::Function;

const GROUPS: &[&[Function]] = &[
    builtin::FUNCTIONS,
    certificates::FUNCTIONS,
    crypto::FUNCTIONS,
    data::FUNCTIONS,
    dates::FUNCTIONS,
    defaults::FUNCTIONS,
    dicts::FUNCTIONS,
    durations::FUNCTIONS,
    encoding::FUNCTIONS,
    lists::FUNCTIONS,
    math::FUNCTIONS,
    passwords::FUNCTIONS,
    paths::FUNCTIONS,
    reflection::FUNCTIONS,
    regexes::FUNCTIONS,
    slices::FUNCTIONS,
    strings::FUNCTIONS,
    urls::FUNCTIONS,
    versions::FUNCTIONS,
    words::FUNCTIONS,
];

static BY_NAME: LazyLock<HashMap<&'static str, &'static Function>> = LazyLock::new(|| {
    GROUPS.iter().flat_map(|group| group.iter()).map(|function| (function.name, function)).collect()
});

/// The function of a name.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    BY_NAME.get(name).copied()
}

/// The names of all functions, sorted.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = BY_NAME.keys().copied().collect();
    names.compact_sort();
    names
}
