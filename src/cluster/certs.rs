//! The certificates of a server, under `server/tls` of the data directory in k3s's layout.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::pki::reloadable_cert::LiveCert;
use base::pki::store_id::StoreId;
use base::pki::{self, Ca, Error, Leaf, Profile, Usage, due_at, ensure_secret};
use base::{SecretValue, fs};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::peers::PEER_NAME;

/// Names and addresses in the server's certificates. They are fixed at start: no client request
/// ever adds a name.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Host and node name, and names given with `--tls-san`.
    pub dns: Vec<String>,
    /// Addresses of the node, and addresses given with `--tls-san`.
    pub ips: Vec<IpAddr>,
    /// First address of each service range.
    pub service_ips: Vec<IpAddr>,
    /// Domain of the cluster, such as `cluster.local`.
    pub cluster_domain: String,
    /// Identity of this server's store, if known.
    pub store: Option<StoreId>,
}

/// The CA that signs a certificate of the server.
#[derive(Debug, Clone, Copy)]
enum Signer {
    Server,
    Client,
    RequestHeader,
    EtcdServer,
    EtcdPeer,
}

/// All certificates of a server.
pub struct ServerCerts {
    directory: PathBuf,
    names: Names,
    server_ca: Ca,
    client_ca: Ca,
    request_header_ca: Ca,
    etcd_server_ca: Ca,
    etcd_peer_ca: Ca,
    /// Serving certificate of the listener on port 6443.
    pub serving: Arc<LiveCert>,
    /// Group `system:masters`, for the administrator's kubeconfig.
    admin: Mutex<Leaf>,
    /// Client certificate of the API server for kubelets.
    pub kubelet_client: Arc<LiveCert>,
    /// Client certificate of the API server for extension API servers (front proxy).
    pub proxy_client: Arc<LiveCert>,
    /// Serving certificate of the etcd-compatible listener.
    pub etcd_serving: Arc<LiveCert>,
    /// Certificate for other servers of the cluster, as client and as server.
    pub peer: Arc<LiveCert>,
    /// PEM key that signs service-account tokens.
    pub service_account_key: SecretValue<String>,
    /// The earliest expiry of all certificates, in seconds since the epoch.
    earliest: Mutex<i64>,
}

/// A certificate on disk: its file name, its CA and its content.
struct CertSpec {
    file: &'static str,
    signer: Signer,
    profile: Profile,
}

/// User name of the API server at kubelets; a bootstrap binding grants it
/// `system:kubelet-api-admin`, as k3s does.
const KUBELET_CLIENT: &str = "kube-apiserver";

fn cert_specs(names: &Names) -> Vec<CertSpec> {
    let client = |file, user: &str, group: Option<&str>| CertSpec {
        file,
        signer: Signer::Client,
        profile: Profile::client(user, group),
    };
    let local = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let etcd = Profile {
        usage: Usage::Peer,
        ..Profile::server(
            "etcd-server",
            &with(&["localhost"], &names.dns),
            &with_ips(&local, &names.ips),
        )
    };
    vec![
        CertSpec {
            file: "serving-kube-apiserver",
            signer: Signer::Server,
            profile: serving(names, &local),
        },
        client("client-admin", "system:admin", Some("system:masters")),
        // Not in system:masters: a node declares the address of its own kubelet. If it declares a
        // foreign address, the server's request there must not carry cluster-admin rights.
        client("client-kube-apiserver", KUBELET_CLIENT, None),
        client("client-controller", "system:kube-controller-manager", None),
        client("client-scheduler", "system:kube-scheduler", None),
        client("client-kube-proxy", "system:kube-proxy", None),
        CertSpec {
            file: "client-auth-proxy",
            signer: Signer::RequestHeader,
            profile: Profile::client("system:auth-proxy", None),
        },
        CertSpec { file: "etcd/server-client", signer: Signer::EtcdServer, profile: etcd.clone() },
        CertSpec {
            file: "etcd/client",
            signer: Signer::EtcdServer,
            profile: Profile::client("etcd-client", None),
        },
        CertSpec {
            file: "etcd/peer-server-client",
            signer: Signer::EtcdPeer,
            profile: Profile {
                common_name: "etcd-peer".into(),
                dns: with(&[PEER_NAME], &etcd.dns),
                ..etcd
            },
        },
    ]
}

fn with(first: &[&str], more: &[String]) -> Vec<String> {
    let mut all: Vec<String> = first.iter().map(|n| (*n).to_owned()).collect();
    for name in more {
        if !all.contains(name) {
            all.push(name.clone());
        }
    }
    all
}

fn with_ips(first: &[IpAddr], more: &[IpAddr]) -> Vec<IpAddr> {
    let mut all = first.to_vec();
    for ip in more {
        if !all.contains(ip) {
            all.push(*ip);
        }
    }
    all
}

fn serving(names: &Names, local: &[IpAddr]) -> Profile {
    let service = format!("kubernetes.default.svc.{}", names.cluster_domain);
    let fixed =
        ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", &service];
    let ips = with_ips(&with_ips(local, &names.service_ips), &names.ips);
    Profile {
        uris: names.store.iter().map(StoreId::uri).collect(),
        ..Profile::server("kube-apiserver", &with(&fixed, &names.dns), &ips)
    }
}

/// Loads or creates all files under `<data_dir>/server/tls` and renews certificates close to
/// expiry.
///
/// # Errors
/// When a file cannot be read or written, or a CA is damaged.
pub fn ensure(data_dir: &Path, names: &Names) -> Result<ServerCerts, Error> {
    let directory = data_dir.join("server/tls");
    fs::create_dir(&data_dir.join("server"), 0o700)?;
    fs::create_dir(&directory, 0o700)?;
    fs::create_dir(&directory.join("etcd"), 0o700)?;
    let ca = |file: &str, name: &str| {
        Ca::load_or_create(
            &directory.join(format!("{file}.crt")),
            &directory.join(format!("{file}.key")),
            name,
        )
    };
    let cas = [
        ca("server-ca", "kube-lite-server-ca")?,
        ca("client-ca", "kube-lite-client-ca")?,
        ca("request-header-ca", "kube-lite-request-header-ca")?,
        ca("etcd/server-ca", "etcd-server-ca")?,
        ca("etcd/peer-ca", "etcd-peer-ca")?,
    ];
    let [server_ca, client_ca, request_header_ca, etcd_server_ca, etcd_peer_ca] = cas;
    let service_account_key = ensure_secret(&directory.join("service.key"), || {
        rcgen::KeyPair::generate().map(|key| key.serialize_pem())
    })?;
    let unset = Leaf { cert_pem: String::new(), key_pem: SecretValue::default(), not_after: 0 };
    let issuers = Issuers {
        directory: &directory,
        server: &server_ca,
        client: &client_ca,
        request_header: &request_header_ca,
        etcd_server: &etcd_server_ca,
        etcd_peer: &etcd_peer_ca,
    };
    let leaves = issuers.issue_all(names, pki::now())?;
    let leaf =
        |file: &str| leaves.iter().find(|(name, _)| *name == file).map_or(&unset, |(_, leaf)| leaf);
    let live = |file: &str| {
        LiveCert::new(leaf(file)).map_err(|e| Error::Content {
            path: directory.join(file).display().to_string(),
            why: e.to_string(),
        })
    };
    Ok(ServerCerts {
        serving: live("serving-kube-apiserver")?,
        admin: Mutex::new(leaf("client-admin").clone()),
        kubelet_client: live("client-kube-apiserver")?,
        proxy_client: live("client-auth-proxy")?,
        etcd_serving: live("etcd/server-client")?,
        peer: live("etcd/peer-server-client")?,
        service_account_key,
        earliest: Mutex::new(
            leaves.iter().map(|(_, leaf)| leaf.not_after).min().unwrap_or_default(),
        ),
        names: names.clone(),
        server_ca,
        client_ca,
        request_header_ca,
        etcd_server_ca,
        etcd_peer_ca,
        directory,
    })
}

/// Borrowed CAs, for issuing the leaf certificates.
struct Issuers<'a> {
    directory: &'a Path,
    server: &'a Ca,
    client: &'a Ca,
    request_header: &'a Ca,
    etcd_server: &'a Ca,
    etcd_peer: &'a Ca,
}

impl Issuers<'_> {
    fn issue_all(&self, names: &Names, now: u64) -> Result<Vec<(&'static str, Leaf)>, Error> {
        let mut out = Vec::new();
        for CertSpec { file, signer, profile } in cert_specs(names) {
            let ca = match signer {
                Signer::Server => self.server,
                Signer::Client => self.client,
                Signer::RequestHeader => self.request_header,
                Signer::EtcdServer => self.etcd_server,
                Signer::EtcdPeer => self.etcd_peer,
            };
            let (cert, key) = (
                self.directory.join(format!("{file}.crt")),
                self.directory.join(format!("{file}.key")),
            );
            out.push((file, ca.ensure_at(&cert, &key, &profile, now)?));
        }
        Ok(out)
    }
}

/// Client certificate of a node for the API.
pub(crate) fn node_client(name: &str) -> Profile {
    Profile::client(&format!("system:node:{name}"), Some("system:nodes"))
}

/// Client certificate of a node's service proxy.
pub(crate) fn proxy_client() -> Profile {
    Profile::client("system:kube-proxy", None)
}

/// Names of a node in the certificate of its kubelet API, other than its own name and addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AdditionalNames {
    /// External addresses.
    pub addresses: Vec<IpAddr>,
    /// DNS names.
    pub dns: Vec<String>,
}

impl AdditionalNames {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.dns.is_empty()
    }
}

/// Serving certificate of a node's kubelet API.
pub(crate) fn node_serving(name: &str, ips: &[IpAddr], additional: &AdditionalNames) -> Profile {
    let local = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let ips = with_ips(&with_ips(&local, ips), &additional.addresses);
    Profile::server(name, &with(&[name, "localhost"], &additional.dns), &ips)
}

/// Certificates for one node.
pub struct NodeCerts {
    /// User `system:node:<name>`, group `system:nodes`.
    pub client: Leaf,
    /// Serving certificate of the kubelet API on port 10250.
    pub serving: Leaf,
}

impl ServerCerts {
    /// CA of servers.
    pub fn server_ca(&self) -> &Ca {
        &self.server_ca
    }

    /// CA of clients.
    pub fn client_ca(&self) -> &Ca {
        &self.client_ca
    }

    /// CA of front proxies.
    pub fn request_header_ca(&self) -> &Ca {
        &self.request_header_ca
    }

    /// CA of the etcd-compatible listener and its clients.
    pub fn etcd_ca(&self) -> &Ca {
        &self.etcd_server_ca
    }

    /// CA of the servers' certificates for each other.
    pub fn peer_ca(&self) -> &Ca {
        &self.etcd_peer_ca
    }

    /// Whether the servers' certificates contain this host name. A node of this name could
    /// impersonate a server.
    pub fn is_server_name(&self, name: &str) -> bool {
        serving(&self.names, &[]).dns.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Whether the servers' certificates contain this address.
    pub fn is_server_address(&self, ip: IpAddr) -> bool {
        serving(&self.names, &[]).ips.contains(&ip)
    }

    /// Common names that front proxies may have.
    pub fn proxy_names() -> [&'static str; 1] {
        ["system:auth-proxy"]
    }

    /// The administrator's client certificate, for the kubeconfig.
    pub fn admin(&self) -> Leaf {
        self.admin.lock().clone()
    }

    /// Whether [`ServerCerts::renew`] would renew a certificate at `now`, in seconds since the
    /// epoch. Reads no file.
    pub fn is_due(&self, now: u64) -> bool {
        due_at(*self.earliest.lock(), now)
    }

    /// Renews the certificates that are due at `now` (see [`pki::now`]); returns whether any was.
    /// Listeners and clients that hold a [`LiveCert`] use the new one for their next connection.
    ///
    /// # Errors
    /// When a certificate cannot be issued or written; the old ones stay in use.
    pub fn renew(&self, now: u64) -> Result<bool, Error> {
        if !self.is_due(now) {
            return Ok(false);
        }
        let issuers = Issuers {
            directory: &self.directory,
            server: &self.server_ca,
            client: &self.client_ca,
            request_header: &self.request_header_ca,
            etcd_server: &self.etcd_server_ca,
            etcd_peer: &self.etcd_peer_ca,
        };
        let leaves = issuers.issue_all(&self.names, now)?;
        for (file, leaf) in &leaves {
            let live = match *file {
                "serving-kube-apiserver" => &self.serving,
                "client-kube-apiserver" => &self.kubelet_client,
                "client-auth-proxy" => &self.proxy_client,
                "etcd/server-client" => &self.etcd_serving,
                "etcd/peer-server-client" => &self.peer,
                "client-admin" => {
                    *self.admin.lock() = leaf.clone();
                    continue;
                }
                _ => continue,
            };
            live.set(leaf).map_err(|e| Error::Content {
                path: self.directory.join(file).display().to_string(),
                why: e.to_string(),
            })?;
        }
        *self.earliest.lock() =
            leaves.iter().map(|(_, leaf)| leaf.not_after).min().unwrap_or_default();
        Ok(true)
    }

    /// Issues or loads the certificates of the node `name` with these addresses and `additional`
    /// names, stored in `agent_dir` as `client-kubelet` and `serving-kubelet`. `now` is in seconds
    /// since the epoch.
    ///
    /// # Errors
    /// When a certificate cannot be issued or written.
    pub fn ensure_node(
        &self,
        agent_dir: &Path,
        name: &str,
        ips: &[IpAddr],
        additional: &AdditionalNames,
        now: u64,
    ) -> Result<NodeCerts, Error> {
        fs::create_dir(agent_dir, 0o700)?;
        let at = |file: &str| agent_dir.join(file);
        let (client, serving) = (node_client(name), node_serving(name, ips, additional));
        fs::write_atomic(&at("server-ca.crt"), self.server_ca.cert_pem().as_bytes(), 0o644)?;
        fs::write_atomic(&at("client-ca.crt"), self.client_ca.cert_pem().as_bytes(), 0o644)?;
        Ok(NodeCerts {
            client: self.client_ca.ensure_at(
                &at("client-kubelet.crt"),
                &at("client-kubelet.key"),
                &client,
                now,
            )?,
            serving: self.server_ca.ensure_at(
                &at("serving-kubelet.crt"),
                &at("serving-kubelet.key"),
                &serving,
                now,
            )?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn names() -> Names {
        Names {
            dns: vec!["edge1".into()],
            ips: vec!["192.168.1.5".parse().unwrap()],
            service_ips: vec!["10.43.0.1".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            store: None,
        }
    }

    #[test]
    fn files_have_the_layout_of_k3s_and_keys_have_mode_0600() {
        let dir = tempfile::tempdir().unwrap();
        let certs = ensure(dir.path(), &names()).unwrap();
        let agent = dir.path().join("agent");
        let none = AdditionalNames::default();
        certs.ensure_node(&agent, "edge1", &[], &none, pki::now()).unwrap();
        let tls = dir.path().join("server/tls");
        for file in [
            "server-ca.crt",
            "client-ca.key",
            "service.key",
            "client-admin.crt",
            "serving-kube-apiserver.key",
            "etcd/server-ca.crt",
            "etcd/client.key",
        ] {
            assert!(tls.join(file).exists(), "{file}");
        }
        for entry in std::fs::read_dir(&tls)
            .unwrap()
            .chain(std::fs::read_dir(dir.path().join("agent")).unwrap())
            .flatten()
        {
            if entry.path().extension().is_some_and(|e| e == "key") {
                assert_eq!(
                    entry.metadata().unwrap().permissions().mode() & 0o777,
                    0o600,
                    "{:?}",
                    entry.path()
                );
            }
        }
        assert_eq!(std::fs::metadata(&tls).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_second_start_changes_no_file_and_a_new_address_only_serving_certificates() {
        let dir = tempfile::tempdir().unwrap();
        let first = ensure(dir.path(), &names()).unwrap();
        let read = |file: &str| std::fs::read(dir.path().join("server/tls").join(file)).unwrap();
        let (serving, admin) = (read("serving-kube-apiserver.crt"), read("client-admin.crt"));
        assert!(!first.renew(pki::now()).unwrap());
        ensure(dir.path(), &names()).unwrap();
        assert_eq!(
            (read("serving-kube-apiserver.crt"), read("client-admin.crt")),
            (serving.clone(), admin.clone())
        );
        let mut moved = names();
        moved.ips = vec!["192.168.1.6".parse().unwrap()];
        ensure(dir.path(), &moved).unwrap();
        assert_ne!(read("serving-kube-apiserver.crt"), serving);
        assert_eq!(read("client-admin.crt"), admin);
    }

    /// The server certificate of a new connection to a listener with this configuration.
    fn served_certificate(config: &Arc<rustls::ServerConfig>, ca: &Ca) -> Vec<u8> {
        let client = base::pki::tls::client(&[ca.der().clone()], None, &[]).unwrap();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = rustls::ServerConnection::new(Arc::clone(config)).unwrap();
        while client.is_handshaking() {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            client.write_tls(&mut there).unwrap();
            server.read_tls(&mut there.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            server.write_tls(&mut back).unwrap();
            client.read_tls(&mut back.as_slice()).unwrap();
            client.process_new_packets().unwrap();
        }
        client.peer_certificates().unwrap()[0].to_vec()
    }

    #[test]
    fn a_running_listener_serves_the_renewed_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let certs = ensure(dir.path(), &names()).unwrap();
        let config = base::pki::tls::server(Arc::clone(&certs.serving), &[], &[]).unwrap();
        let config = Arc::new(config);
        let (before, admin) =
            (served_certificate(&config, certs.server_ca()), certs.admin().cert_pem);
        let day = 24 * 60 * 60;
        // Valid for a year, renewed 90 days before expiry.
        assert!(!certs.renew(pki::now() + 274 * day).unwrap());
        assert_eq!(served_certificate(&config, certs.server_ca()), before);
        assert!(certs.renew(pki::now() + 276 * day).unwrap());
        assert_ne!(served_certificate(&config, certs.server_ca()), before);
        assert_ne!(certs.admin().cert_pem, admin);
        assert!(!certs.renew(pki::now() + 276 * day).unwrap());
        let again = ensure(dir.path(), &names()).unwrap();
        assert_eq!(again.admin().cert_pem, certs.admin().cert_pem);
    }
}
