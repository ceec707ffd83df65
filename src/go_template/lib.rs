//! Go's templates with the functions of sprig and Helm: renders the charts that Helm renders, byte
//! for byte, within bounds.
//!
//! The specification is Go's `text/template` and `fmt`, sprig 3, `sigs.k8s.io/yaml` and the engine
//! of Helm 4. The crate reads no file and asks nothing of the network; [`Host`] answers `lookup`.

mod budget;
mod capabilities;
mod compare;
mod convert;
mod engine;
mod error;
mod exec;
mod function;
mod functions;
mod glob;
mod go;
mod json;
mod methods;
mod parse;
mod prepared;
mod random;
mod signature;
mod time;
mod toml;
mod value;
mod yaml;

#[cfg(test)]
mod answers_test;
#[cfg(test)]
mod hostile_test;

pub use engine::{Capabilities, Options, Source, render};
pub use error::{Failure, HostError, RenderError};
pub use function::{Args, Call, Find, Function, Host, NoCluster, Plain, Run, fixed, variadic};
pub use functions::{Constraints, Version};
pub use prepared::{Prepared, builtin};
pub use signature::Param;
pub use value::{Class, Elem, Entries, Items, List, Map, Object, Value};

/// Reads YAML as `sigs.k8s.io/yaml` does, such as a chart's values.yaml: every number is a float.
///
/// # Errors
///
/// The text is not YAML that JSON can hold.
pub fn read_yaml(text: &str) -> Result<Value, Failure> {
    yaml::read(text).map_err(|error| Failure::new(error.to_string()))
}

/// The names of all functions of templates, sorted.
pub fn function_names() -> Vec<&'static str> {
    functions::names()
}
