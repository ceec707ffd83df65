//! Credentials for image pulls: pull secrets of pods, files of docker on the node, and credential
//! provider plugins, in this order (upstream: `pkg/credentialprovider`).
//!
//! Plugins run only for images that their configuration names, and never while a pull slot is held:
//! a plugin that hangs delays the pods that need it and no others.

mod cache;
mod docker_config;
mod docker_files;
mod exec;
pub(crate) mod keyring;
mod lookup;
pub(crate) mod metrics;
mod protocol;
mod provider;
pub(crate) mod provider_config;
mod provider_validation;
mod service_account;
#[cfg(test)]
mod tests;

pub(crate) use exec::status_text;
pub(crate) use lookup::ImageCredentials;
pub use provider_validation::InvalidProviders;
