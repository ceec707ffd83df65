//! Rotation of the cluster's CAs and service account key, as k3s' `certificate rotate-ca`: the new
//! files are validated as a whole, stored in one pending file, and applied at the next start. An
//! interrupted start applies them again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use base::fs;
use base::pki::rotation::{self, CaFiles};
use base::pki::{RotationError, Usage};
use serde::{Deserialize, Serialize};

/// Files of the CAs below `server/tls`, without extension, and the usage of their certificates.
const CAS: [(&str, Usage); 5] = [
    ("server-ca", Usage::Server),
    ("client-ca", Usage::Client),
    ("request-header-ca", Usage::Client),
    ("etcd/server-ca", Usage::Peer),
    ("etcd/peer-ca", Usage::Peer),
];
/// File of the keys of service accounts.
const SERVICE_KEY: &str = "service.key";
/// Maximum size of a file in bytes.
const FILE_MAX: u64 = 256 * 1024;

/// Content of files by their path below `server/tls`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Files(BTreeMap<String, String>);

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Files {
    /// Reads the files that can be rotated from this directory; missing ones are left out.
    ///
    /// # Errors
    /// When a file cannot be read or is too large.
    pub fn read(tls: &Path) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        for name in names() {
            let path = tls.join(&name);
            match std::fs::metadata(&path) {
                Ok(meta) if meta.len() > FILE_MAX => {
                    let why = format!("{} is larger than {FILE_MAX} bytes", path.display());
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                // An empty file counts as missing, as in k3s.
                Ok(meta) if meta.len() == 0 => {}
                Ok(_) => {
                    files.insert(name, fs::read_to_string(&path)?);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let why = format!("cannot read {}: {error}", path.display());
                    return Err(io::Error::new(error.kind(), why));
                }
            }
        }
        Ok(Self(files))
    }

    /// The names of the files, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The content of a file.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// SHA-256 of names and contents, in hex; equal on all servers of a cluster.
    pub fn hash(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let digest = ring::digest::digest(&ring::digest::SHA256, &text);
        base::hex(digest.as_ref())
    }

    /// Removes the keys of service accounts.
    #[must_use]
    pub fn cas_alone(mut self) -> Self {
        self.0.remove(SERVICE_KEY);
        self
    }

    fn texts(&self, ca: &str) -> Option<CaFiles> {
        let (cert, key) = (self.get(&format!("{ca}.crt"))?, self.get(&format!("{ca}.key"))?);
        Some(CaFiles { cert: cert.to_owned(), key: key.to_owned().into() })
    }

    fn put(&mut self, ca: &str, texts: CaFiles) {
        self.0.insert(format!("{ca}.crt"), texts.cert);
        self.0.insert(format!("{ca}.key"), texts.key.to_string());
    }
}

fn names() -> impl Iterator<Item = String> {
    let pairs = CAS.iter().flat_map(|(ca, _)| [format!("{ca}.crt"), format!("{ca}.key")]);
    pairs.chain([SERVICE_KEY.to_owned()])
}

/// Where the new CAs and keys come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RotationSource {
    /// Generate all CAs and the service account key, cross-signed by the current ones.
    Made,
    /// Use these files; others stay unchanged.
    Given(Files),
}

/// A problem of one of the files of a rotation.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The server lacks a CA of this name.
    #[error("{0}: this server has no such CA")]
    MissingCa(&'static str),
    /// A CA certificate has no key.
    #[error("{cert}: its key, {key}, is missing")]
    MissingKey {
        /// File of the certificate.
        cert: String,
        /// File of the key.
        key: String,
    },
    /// A CA key has no certificate.
    #[error("{key}: its certificate, {cert}, is missing")]
    MissingCertificate {
        /// File of the key.
        key: String,
        /// File of the certificate.
        cert: String,
    },
    /// A CA or key cannot replace the one in use.
    #[error("{file}: {source}")]
    Rotation {
        /// File of the key, or files of the CA without extension.
        file: &'static str,
        /// The reason.
        source: RotationError,
    },
    /// All given files equal those in use.
    #[error("all that is given is in use already")]
    Unchanged,
}

/// Returns the files that change. With `force` the new CAs need not be linked to those in use.
///
/// # Errors
/// All problems of the given files, each with the name of its file. The caller must not change
/// anything then.
pub fn plan(
    in_use: &Files,
    source: &RotationSource,
    force: bool,
    now: u64,
) -> Result<Files, Vec<PlanError>> {
    let mut out = Files::default();
    let mut wrong = Vec::new();
    for (ca, usage) in CAS {
        let Some(old) = in_use.texts(ca) else {
            wrong.push(PlanError::MissingCa(ca));
            continue;
        };
        match new_ca(&old, source, ca, usage, force, now) {
            Ok(Some(new)) if new != old => out.put(ca, new),
            Ok(_) => {}
            Err(why) => wrong.push(why),
        }
    }
    let old = in_use.get(SERVICE_KEY).unwrap_or_default();
    let new = match source {
        RotationSource::Made => rotation::signing_successor(old).map(Some),
        RotationSource::Given(files) => {
            files.get(SERVICE_KEY).map(|new| rotation::admit_signing(old, new, force)).transpose()
        }
    };
    match new {
        Ok(Some(new)) if new != old => {
            out.0.insert(SERVICE_KEY.to_owned(), new);
        }
        Ok(_) => {}
        Err(source) => wrong.push(PlanError::Rotation { file: SERVICE_KEY, source }),
    }
    match (wrong.is_empty(), out.0.is_empty()) {
        (true, false) => Ok(out),
        (true, true) => Err(vec![PlanError::Unchanged]),
        (false, _) => Err(wrong),
    }
}

fn new_ca(
    old: &CaFiles,
    source: &RotationSource,
    ca: &'static str,
    usage: Usage,
    force: bool,
    now: u64,
) -> Result<Option<CaFiles>, PlanError> {
    let new = match source {
        RotationSource::Made => {
            let made = rotation::successor(old, now);
            made.map_err(|source| PlanError::Rotation { file: ca, source })?
        }
        RotationSource::Given(files) => {
            let (cert, key) = (format!("{ca}.crt"), format!("{ca}.key"));
            match (files.get(&cert), files.get(&key)) {
                (None, None) => return Ok(None),
                (Some(_), None) => return Err(PlanError::MissingKey { cert, key }),
                (None, Some(_)) => return Err(PlanError::MissingCertificate { key, cert }),
                (Some(cert), Some(key)) => {
                    CaFiles { cert: cert.to_owned(), key: key.to_owned().into() }
                }
            }
        }
    };
    if new == *old {
        return Ok(None);
    }
    rotation::admit(old, &new, usage, force, now)
        .map(Some)
        .map_err(|source| PlanError::Rotation { file: ca, source })
}

/// Path of the pending file.
fn pending_path(data_dir: &Path) -> PathBuf {
    data_dir.join("server/rotate-ca.json")
}

/// Stores a rotation for the next start, replacing a pending one.
///
/// # Errors
/// When the file cannot be written; an earlier pending rotation is unchanged.
pub fn store_pending(data_dir: &Path, files: &Files) -> io::Result<()> {
    let text = serde_json::to_vec(files).map_err(io::Error::other)?;
    fs::write_atomic(&pending_path(data_dir), &text, 0o600)
}

/// Whether a rotation is pending until the next start.
pub fn is_pending(data_dir: &Path) -> bool {
    pending_path(data_dir).exists()
}

/// The pending rotation.
///
/// # Errors
/// When the pending file is damaged.
pub fn pending(data_dir: &Path) -> io::Result<Option<Files>> {
    let path = pending_path(data_dir);
    if !path.exists() {
        return Ok(None);
    }
    let bad = |why: String| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{}: {why}; remove the file and run `kube-lite certificate rotate-ca` again",
                path.display()
            ),
        )
    };
    let files: Files = serde_json::from_slice(&fs::read(&path)?).map_err(|e| bad(e.to_string()))?;
    let known: Vec<String> = names().collect();
    if let Some(other) = files.names().find(|name| !known.iter().any(|known| known == name)) {
        return Err(bad(format!("it names {other:?}, which no change is about")));
    }
    Ok(Some(files))
}

/// Applies the pending rotation before any certificate is loaded; returns the names of the changed
/// files. Idempotent: an interrupted call is repeated at the next start.
///
/// # Errors
/// When a file cannot be read or written.
pub fn apply_pending(data_dir: &Path) -> io::Result<Vec<String>> {
    let Some(files) = pending(data_dir)? else { return Ok(Vec::new()) };
    let tls = data_dir.join("server/tls");
    for (name, content) in &files.0 {
        let mode = if name.ends_with(".key") { 0o600 } else { 0o644 };
        fs::write_atomic(&tls.join(name), content.as_bytes(), mode)?;
    }
    let path = pending_path(data_dir);
    std::fs::remove_file(&path)
        .map_err(|e| io::Error::new(e.kind(), format!("cannot remove {}: {e}", path.display())))?;
    Ok(files.0.into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::{self, Names};
    use base::pki;

    fn cluster() -> (tempfile::TempDir, Files) {
        let dir = tempfile::tempdir().unwrap();
        certs::ensure(dir.path(), &Names::default()).unwrap();
        let files = Files::read(&dir.path().join("server/tls")).unwrap();
        (dir, files)
    }

    fn only(files: &Files, wanted: &[&str]) -> RotationSource {
        let mut files = files.clone();
        files.0.retain(|name, _| wanted.contains(&name.as_str()));
        RotationSource::Given(files)
    }

    #[test]
    fn an_interrupted_rotation_is_applied_completely_at_the_next_start() {
        let (dir, old) = cluster();
        assert_eq!(old.names().count(), 11);
        let new = plan(&old, &RotationSource::Made, false, pki::now()).unwrap();
        assert_eq!(new.names().count(), 11);
        store_pending(dir.path(), &new).unwrap();
        assert_eq!(Files::read(&dir.path().join("server/tls")).unwrap(), old);
        assert_eq!(pending(dir.path()).unwrap().as_ref(), Some(&new));
        assert!(is_pending(dir.path()));
        // Interrupted after the third file: the next start writes all files.
        let tls = dir.path().join("server/tls");
        for name in ["client-ca.crt", "client-ca.key", "etcd/peer-ca.crt"] {
            std::fs::write(tls.join(name), new.get(name).unwrap()).unwrap();
        }
        assert_eq!(apply_pending(dir.path()).unwrap().len(), 11);
        assert_eq!(Files::read(&tls).unwrap(), new);
        assert_eq!(apply_pending(dir.path()).unwrap(), Vec::<String>::new());
        assert!(!is_pending(dir.path()));
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |name: &str| tls.join(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(["server-ca.key", "etcd/peer-ca.key", "service.key"].map(mode), [0o600; 3]);
        // New certificates are issued with the chain to the old CAs.
        let serving = std::fs::read_to_string(tls.join("serving-kube-apiserver.crt")).unwrap();
        certs::ensure(dir.path(), &Names::default()).unwrap();
        let renewed = std::fs::read_to_string(tls.join("serving-kube-apiserver.crt")).unwrap();
        assert_ne!(serving, renewed);
        assert!(renewed.ends_with(new.get("server-ca.crt").unwrap()));
        // A second rotation.
        let third = plan(&new, &RotationSource::Made, false, pki::now()).unwrap();
        assert_eq!(third.names().count(), 11);
    }

    #[test]
    fn all_problems_are_reported_at_once_with_their_files() {
        let ((_a, old), (_b, other)) = (cluster(), cluster());
        let told =
            plan(&old, &RotationSource::Given(other.clone()), false, pki::now()).unwrap_err();
        let told: Vec<String> = told.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 6, "{told:?}");
        for (line, file) in told.iter().zip([
            "server-ca: machines that trust",
            "client-ca: machines that trust",
            "request-header-ca: machines that trust",
            "etcd/server-ca: machines that trust",
            "etcd/peer-ca: machines that trust",
            "service.key: lacks the key",
        ]) {
            assert!(line.starts_with(file), "{line}");
        }
        assert_eq!(
            plan(&old, &RotationSource::Given(other.clone()), true, pki::now()).unwrap(),
            other
        );
        let told = |source: RotationSource| {
            let errors = plan(&old, &source, true, pki::now()).unwrap_err();
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(
            told(only(&other, &["server-ca.crt", "client-ca.key"])),
            "server-ca.crt: its key, server-ca.key, is missing; client-ca.key: its certificate, client-ca.crt, is missing"
        );
        assert_eq!(told(RotationSource::Given(old.clone())), "all that is given is in use already");
        assert_eq!(
            told(RotationSource::Given(Files::default())),
            "all that is given is in use already"
        );
        let one = only(&other, &["client-ca.crt", "client-ca.key"]);
        let changed = plan(&old, &one, true, pki::now()).unwrap();
        assert_eq!(changed.names().collect::<Vec<_>>(), ["client-ca.crt", "client-ca.key"]);
    }

    #[test]
    fn a_damaged_or_foreign_pending_file_is_not_applied() {
        let (dir, old) = cluster();
        for text in ["{", r#"{"../../etc/passwd": "x"}"#] {
            std::fs::write(pending_path(dir.path()), text).unwrap();
            let told = apply_pending(dir.path()).unwrap_err().to_string();
            assert!(told.contains("rotate-ca.json") && told.contains("again"), "{told}");
        }
        assert_eq!(Files::read(&dir.path().join("server/tls")).unwrap(), old);
        assert_eq!(format!("{:?}", only(&old, &["service.key"])), r#"Given({"service.key"})"#);
    }
}
