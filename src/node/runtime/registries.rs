//! `registries.yaml`: which registries images come from, in k3s's form, and what containerd and its calls are told of it.
//!
//! Mirrors and TLS settings become folders of `hosts.toml`, which containerd reads at each pull. Credentials stay in this process and
//! go along with the calls that need them, so that no file of containerd's holds one and a change needs no restart.

mod file;
mod follow;
mod hosts;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use proto::runtime::v1 as cri;

pub use file::{BadRegistries, load};
pub(crate) use follow::{follow, write};

use file::{Auth, Endpoint, Settings, Tls};

/// The key of what holds for every registry that has no entry of its own.
const ANY: &str = "*";

/// What `registries.yaml` says, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries {
    /// Endpoints by registry, in their order.
    mirrors: BTreeMap<String, Vec<Endpoint>>,
    /// Settings by host.
    configs: BTreeMap<String, Settings>,
    /// A registry with mirrors is not asked itself (`--disable-default-registry-endpoint`).
    no_default: bool,
}

impl Registries {
    /// As it is, but registries with mirrors are asked only when they are among these.
    #[must_use]
    pub fn without_default(self, no_default: bool) -> Self {
        Self { no_default, ..self }
    }

    /// The endpoints for a registry's images; `None` when nothing is said of it.
    fn mirrors_of(&self, registry: &str) -> Option<&[Endpoint]> {
        self.mirrors.get(registry).or_else(|| self.mirrors.get(ANY)).map(Vec::as_slice)
    }

    /// What is said of an endpoint, by the name that its requests go to or by that of its registry.
    fn settings(&self, endpoint: &Endpoint) -> Option<&Settings> {
        let names = [endpoint.host.as_str(), endpoint.registry()];
        names.iter().find_map(|name| self.configs.get(*name))
    }

    fn tls(&self, endpoint: &Endpoint) -> Option<&Tls> {
        self.settings(endpoint)?.tls.as_ref()
    }

    fn auth(&self, endpoint: &Endpoint) -> Option<&Auth> {
        self.settings(endpoint).or_else(|| self.configs.get(ANY))?.auth.as_ref()
    }

    /// Credentials for the endpoints of an image (`docker.io/library/a:1`), in the order in which these are asked. containerd sends each
    /// to the endpoint alone that it is for.
    pub(crate) fn credentials(&self, image: &str) -> Vec<cri::AuthConfig> {
        let registry = image.split('/').next().unwrap_or_default();
        let mirrors = self.mirrors_of(registry);
        let own =
            Endpoint::of_registry(registry).ok().filter(|_| !self.no_default || mirrors.is_none());
        let mut out: Vec<cri::AuthConfig> = Vec::new();
        for endpoint in mirrors.into_iter().flatten().chain(own.as_ref()) {
            let Some(auth) = self.auth(endpoint) else { continue };
            let server_address = format!("{}://{}", endpoint.scheme, endpoint.host);
            if out.iter().all(|a| a.server_address != server_address) {
                out.push(cri::AuthConfig { server_address, ..auth.as_message() });
            }
        }
        out
    }
}
