//! The directories that containerd reads: one for each registry, with a `hosts.toml` of its
//! endpoints (containerd's docs/hosts.md).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::config::{ANY, Endpoint, Registries, RegistryTls, path_name};
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

/// An endpoint as containerd reaches it.
struct Host<'a> {
    url: String,
    /// The path replaces `/v2`.
    override_path: bool,
    tls: Option<&'a RegistryTls>,
}

fn put(out: &mut String, indent: &str, override_path: bool, tls: Option<&RegistryTls>) {
    let _ = writeln!(out, "{indent}capabilities = [\"pull\", \"resolve\"]");
    if override_path {
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

    /// The endpoints of a registry's mirrors as containerd reaches them: with rewrites through the
    /// local registry, which redirects to the mirror.
    fn mirror_hosts(&self, registry: &str) -> Vec<Host<'_>> {
        let Some((key, mirror)) = self.mirror_of(registry) else { return Vec::new() };
        let host = |(index, endpoint): (usize, &Endpoint)| {
            let tls = self.tls(endpoint);
            let host = Self::host(endpoint);
            if mirror.rewrites.is_empty() {
                return Host { tls, ..host };
            }
            let (port, key) = (self.options.port, path_name(key));
            let url = format!("http://127.0.0.1:{port}/rewrite/{key}/{index}");
            Host { url, override_path: true, tls }
        };
        mirror.endpoints.iter().enumerate().map(host).collect()
    }

    fn host<'a>(endpoint: &Endpoint) -> Host<'a> {
        Host { url: endpoint.to_string(), override_path: !endpoint.path.is_empty(), tls: None }
    }

    /// Returns the file of a registry; `None` if it would not change containerd's behaviour.
    fn hosts_of(&self, registry: &str) -> Option<String> {
        let mut hosts = self.mirror_hosts(registry);
        let own = Endpoint::of_registry(registry).ok().filter(|_| registry != ANY);
        let last = self.mirror_of(registry).and_then(|(_, mirror)| mirror.endpoints.last());
        let ends_with_own = own.is_some() && last == own.as_ref();
        let rewrites = self.mirror_of(registry).is_some_and(|(_, m)| !m.rewrites.is_empty());
        if self.is_shared(registry) {
            let url = format!("http://127.0.0.1:{}", self.options.port);
            hosts.insert(0, Host { url, override_path: false, tls: None });
        }
        // The last endpoint to use is the `server`: the registry, or the last mirror if the
        // registry itself is not used.
        let server = if ends_with_own || self.options.no_default && !hosts.is_empty() {
            hosts.pop()
        } else {
            own.as_ref().map(|own| Host { tls: self.tls(own), ..Self::host(own) })
        };
        let tls = match &server {
            Some(server) => server.tls,
            None => self.configs.get(ANY).and_then(|s| s.tls.as_ref()),
        };
        let usual = server.as_ref().is_none_or(|server| {
            let own = own.as_ref().map(Endpoint::to_string);
            own.as_deref() == Some(server.url.as_str()) && !rewrites
        });
        if hosts.is_empty() && tls.is_none() && usual {
            return None;
        }
        let mut out = HEADER.to_owned();
        if let Some(server) = &server {
            let _ = writeln!(out, "server = {}", quoted(&server.url));
        }
        put(&mut out, "", server.as_ref().is_some_and(|s| s.override_path), tls);
        for host in hosts {
            let _ = write!(out, "\n[host.{}]\n", quoted(&host.url));
            put(&mut out, "  ", host.override_path, host.tls);
        }
        Some(out)
    }
}
