//! The files of a joined machine in `<data>/agent`. They are written after a complete response,
//! `join.json` last.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base::fs;
use base::pki::{self, Leaf, due_at};
use serde::{Deserialize, Serialize};

use settings::ClusterSettings;

use super::{JoinResponse, Keys, LeafError, Machine, ServerAddress, leaf};
use crate::certs::AdditionalNames;
use crate::password;
use crate::token::Secret;

/// Written last: its presence means that all other files are complete.
const RECORD: &str = "join.json";
/// File of the node's password.
const PASSWORD: &str = "node-password";

/// A machine that has joined.
#[derive(Clone)]
pub struct Joined {
    /// Name of its Node.
    pub node_name: String,
    /// The server that it joined, `https://host:port`.
    pub server: String,
    /// The addresses in its serving certificate.
    pub addresses: Vec<IpAddr>,
    /// The further names that were requested for it.
    pub additional: AdditionalNames,
    /// The settings of the cluster.
    pub settings: ClusterSettings,
    /// PEM of the CA of servers.
    pub server_ca: String,
    /// PEM of the CA of clients.
    pub client_ca: String,
    /// User `system:node:<name>`.
    pub kubelet_client: Leaf,
    /// Serving certificate of the kubelet API.
    pub kubelet_serving: Leaf,
    /// User `system:kube-proxy`.
    pub proxy_client: Leaf,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    node_name: String,
    server: String,
    addresses: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "AdditionalNames::is_empty")]
    additional: AdditionalNames,
    #[serde(rename = "facts")]
    settings: ClusterSettings,
}

/// Errors of the files of a joined machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A file has invalid content.
    #[error("{path}: {why}")]
    Content {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
}

fn content(path: &Path, why: impl ToString) -> Error {
    Error::Content { path: path.display().to_string(), why: why.to_string() }
}

impl Joined {
    /// Combines a response with the keys of its request.
    ///
    /// # Errors
    /// When a certificate does not match its key.
    pub fn new(
        machine: &Machine,
        server: &ServerAddress,
        keys: &Keys,
        answer: JoinResponse,
    ) -> Result<Self, LeafError> {
        Ok(Self {
            node_name: machine.name.clone(),
            server: server.to_string(),
            addresses: machine.addresses.clone(),
            additional: machine.additional.clone(),
            kubelet_client: leaf(&answer.kubelet_client, &keys.kubelet_client)?,
            kubelet_serving: leaf(&answer.kubelet_serving, &keys.kubelet_serving)?,
            proxy_client: leaf(&answer.proxy_client, &keys.proxy_client)?,
            settings: answer.settings,
            server_ca: answer.server_ca,
            client_ca: answer.client_ca,
        })
    }

    /// Reads the files; `None` for a machine that has not joined.
    ///
    /// # Errors
    /// When files are unreadable, damaged or do not match each other.
    pub fn load(directory: &Path) -> Result<Option<Self>, Error> {
        let at = |file: &str| directory.join(file);
        if !at(RECORD).exists() {
            return Ok(None);
        }
        let record: Record =
            serde_json::from_slice(&fs::read(&at(RECORD))?).map_err(|e| content(&at(RECORD), e))?;
        let pair = |file: &str| {
            let (cert, key) = (at(&format!("{file}.crt")), at(&format!("{file}.key")));
            leaf(&fs::read_to_string(&cert)?, &fs::read_to_string(&key)?)
                .map_err(|why| content(&cert, why))
        };
        let ca = |file: &str| {
            let pem = fs::read_to_string(&at(file))?;
            match pki::certificates(&pem) {
                Ok(all) if !all.is_empty() => Ok(pem),
                Ok(_) => Err(content(&at(file), "holds no certificate")),
                Err(why) => Err(content(&at(file), why)),
            }
        };
        Ok(Some(Self {
            node_name: record.node_name,
            server: record.server,
            addresses: record.addresses,
            additional: record.additional,
            settings: record.settings,
            server_ca: ca("server-ca.crt")?,
            client_ca: ca("client-ca.crt")?,
            kubelet_client: pair("client-kubelet")?,
            kubelet_serving: pair("serving-kubelet")?,
            proxy_client: pair("client-kube-proxy")?,
        }))
    }

    /// Writes all files whose content differs. A renewal keeps the keys, so an interrupted one
    /// leaves a usable state.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn store(&self, directory: &Path) -> Result<(), Error> {
        fs::create_dir(directory, 0o700)?;
        let write = |file: PathBuf, text: &str| -> Result<(), Error> {
            let path = directory.join(file);
            if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
                return Ok(());
            }
            Ok(fs::write_atomic(&path, text.as_bytes(), 0o600)?)
        };
        let leaves = [
            ("client-kubelet", &self.kubelet_client),
            ("serving-kubelet", &self.kubelet_serving),
            ("client-kube-proxy", &self.proxy_client),
        ];
        for (file, leaf) in leaves {
            write(format!("{file}.key").into(), &leaf.key_pem)?;
            write(format!("{file}.crt").into(), &leaf.cert_pem)?;
        }
        write("server-ca.crt".into(), &self.server_ca)?;
        write("client-ca.crt".into(), &self.client_ca)?;
        let record = Record {
            node_name: self.node_name.clone(),
            server: self.server.clone(),
            addresses: self.addresses.clone(),
            additional: self.additional.clone(),
            settings: self.settings.clone(),
        };
        let text = serde_json::to_string_pretty(&record)
            .map_err(|e| content(&directory.join(RECORD), e))?;
        write(RECORD.into(), &text)
    }

    /// The digest of the cluster's settings and CAs, as [`super::digest`] computes it.
    pub fn digest(&self) -> String {
        super::digest(&self.settings, &self.server_ca, &self.client_ca)
    }

    /// The private keys.
    pub fn keys(&self) -> Keys {
        Keys {
            kubelet_client: self.kubelet_client.key_pem.clone(),
            kubelet_serving: self.kubelet_serving.key_pem.clone(),
            proxy_client: self.proxy_client.key_pem.clone(),
        }
    }

    /// The earliest expiry of its certificates, in seconds since the epoch.
    pub fn not_after(&self) -> i64 {
        let ends = [&self.kubelet_client, &self.kubelet_serving, &self.proxy_client];
        ends.into_iter().map(|leaf| leaf.not_after).min().unwrap_or_default()
    }

    /// Whether the certificates must be renewed at `now`, in seconds since the epoch.
    pub fn is_due(&self, now: u64) -> bool {
        due_at(self.not_after(), now)
    }
}

/// The password in `<data>/agent/node-password`, or a new one that has not been written.
///
/// # Errors
/// When the file cannot be read.
pub fn node_password(directory: &Path) -> Result<Secret, Error> {
    let path = directory.join(PASSWORD);
    if !path.exists() {
        return Ok(password::new());
    }
    let text = fs::read_to_string(&path)?;
    let text = text.trim();
    if text.len() < password::CHARACTERS_MIN {
        return Err(content(&path, "holds no password; remove the file to join again"));
    }
    Ok(text.parse().unwrap_or_else(|never: std::convert::Infallible| match never {}))
}

/// Writes the node's password.
///
/// # Errors
/// When the file cannot be written.
pub fn store_node_password(directory: &Path, password: &Secret) -> Result<(), Error> {
    let path = directory.join(PASSWORD);
    let text = format!("{}\n", password.reveal());
    if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    fs::create_dir(directory, 0o700)?;
    Ok(fs::write_atomic(&path, text.as_bytes(), 0o600)?)
}
