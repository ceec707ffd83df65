//! The directories that containerd reads: one for each registry, with a `hosts.toml` of its
//! endpoints (containerd's docs/hosts.md).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::config::{ANY, Endpoint, Registries, RegistryTls};
use crate::runtime::containerd::config::quoted;

/// The first line of generated files, by which their directories are recognized.
pub(super) const HEADER: &str = "# Written by kube-lite from registries.yaml; changes are lost.\n";

/// Returns the directory name of a registry: a port is put between underscores.
fn folder(registry: &str) -> String {
    match registry.rsplit_once(':') {
        _ if registry == ANY => "_default".to_owned(),
        Some((host, port)) if !port.ends_with(']') => format!("{host}_{port}_"),
        _ => registry.to_owned(),
    }
}

fn put(out: &mut String, indent: &str, endpoint: Option<&Endpoint>, tls: Option<&RegistryTls>) {
    let _ = writeln!(out, "{indent}capabilities = [\"pull\", \"resolve\"]");
    if endpoint.is_some_and(|e| !e.path.is_empty()) {
        let _ = writeln!(out, "{indent}override_path = true");
    }
    let Some(tls) = tls else { return };
    if !tls.ca_file.is_empty() {
        let _ = writeln!(out, "{indent}ca = {}", quoted(&tls.ca_file));
    }
    if !tls.cert_file.is_empty() {
        let pair = (quoted(&tls.cert_file), quoted(&tls.key_file));
        let _ = writeln!(out, "{indent}client = [[{}, {}]]", pair.0, pair.1);
    }
    if tls.insecure_skip_verify {
        let _ = writeln!(out, "{indent}skip_verify = true");
    }
}

impl Registries {
    /// Returns the text of each `hosts.toml`, by directory.
    pub(super) fn hosts(&self) -> BTreeMap<String, String> {
        // The configuration of a host also applies to its registry if that has no mirrors.
        let with_tls = self.configs.iter().filter(|(_, s)| s.tls.is_some()).map(|(host, _)| host);
        let mut out = BTreeMap::new();
        for registry in self.mirrors.keys().chain(with_tls) {
            let registry = if registry == "registry-1.docker.io" { "docker.io" } else { registry };
            if let Some(text) = self.hosts_of(registry) {
                out.insert(folder(registry), text);
            }
        }
        out
    }

    /// Returns the file of a registry; `None` if it would not change containerd's behaviour.
    fn hosts_of(&self, registry: &str) -> Option<String> {
        let mut endpoints: Vec<&Endpoint> = match registry {
            ANY => self.mirrors.get(ANY).into_iter().flatten().collect(),
            _ => self.mirrors_of(registry).into_iter().flatten().collect(),
        };
        let own = Endpoint::of_registry(registry).ok().filter(|_| registry != ANY);
        // The last endpoint to use is the `server`: the registry, or the last mirror if the
        // registry itself is not used.
        let server = if endpoints.last().copied() == own.as_ref() && own.is_some()
            || self.no_default && !endpoints.is_empty()
        {
            endpoints.pop().cloned()
        } else {
            own
        };
        let tls = match &server {
            Some(server) => self.tls(server),
            None => self.configs.get(ANY).and_then(|s| s.tls.as_ref()),
        };
        let usual = server.as_ref().is_none_or(|s| s.registry() == registry && s.path.is_empty());
        if endpoints.is_empty() && tls.is_none() && usual {
            return None;
        }
        let mut out = HEADER.to_owned();
        if let Some(server) = &server {
            let _ = writeln!(out, "server = {}", quoted(&server.to_string()));
        }
        put(&mut out, "", server.as_ref(), tls);
        for endpoint in endpoints {
            let _ = write!(out, "\n[host.{}]\n", quoted(&endpoint.to_string()));
            put(&mut out, "  ", Some(endpoint), self.tls(endpoint));
        }
        Some(out)
    }
}
