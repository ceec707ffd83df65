//! The change of the cluster's CAs and of the key of service accounts: what is given is judged
//! whole, put by in one file, and taken over at the next start, as k3s does it (`certificate
//! rotate-ca`). A start that is interrupted takes it over again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use base::fs;
use base::pki::Usage;
use base::pki::rotation::{self, Texts};
use serde::{Deserialize, Serialize};

/// Files of the CAs below `server/tls`, without their ends, and what certificates of each are for.
const CAS: [(&str, Usage); 5] = [
    ("server-ca", Usage::Server),
    ("client-ca", Usage::Client),
    ("request-header-ca", Usage::Client),
    ("etcd/server-ca", Usage::Peer),
    ("etcd/peer-ca", Usage::Peer),
];
/// The keys of service accounts.
const SERVICE_KEY: &str = "service.key";
/// Bytes of one given file at most.
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
    /// Those that a change can be about, as far as they are in this directory.
    ///
    /// # Errors
    /// A file that cannot be read, or is too large for what it should be.
    pub fn read(tls: &Path) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        for name in names() {
            let path = tls.join(&name);
            match std::fs::metadata(&path) {
                Ok(meta) if meta.len() > FILE_MAX => {
                    let why = format!("{} is larger than {FILE_MAX} bytes", path.display());
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                // An empty file is one that is not given, as in k3s.
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

    /// Their names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Content of one.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// SHA-256 of names and contents, in hex: the same on all servers of a cluster.
    pub fn hash(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let digest = ring::digest::digest(&ring::digest::SHA256, &text);
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Without the keys of service accounts.
    #[must_use]
    pub fn cas_alone(mut self) -> Self {
        self.0.remove(SERVICE_KEY);
        self
    }

    fn texts(&self, ca: &str) -> Option<Texts> {
        let (cert, key) = (self.get(&format!("{ca}.crt"))?, self.get(&format!("{ca}.key"))?);
        Some(Texts { cert: cert.to_owned(), key: key.to_owned().into() })
    }

    fn put(&mut self, ca: &str, texts: Texts) {
        self.0.insert(format!("{ca}.crt"), texts.cert);
        self.0.insert(format!("{ca}.key"), texts.key.to_string());
    }
}

fn names() -> impl Iterator<Item = String> {
    let pairs = CAS.iter().flat_map(|(ca, _)| [format!("{ca}.crt"), format!("{ca}.key")]);
    pairs.chain([SERVICE_KEY.to_owned()])
}

/// What is to be in the place of what is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wish {
    /// All CAs and the key of service accounts made anew, linked to the present ones.
    Made,
    /// These files; what is not among them stays.
    Given(Files),
}

/// The files that change. With `force` they need not be linked to those in use.
///
/// # Errors
/// Everything that is wrong with what is given, each by the name of its file; nothing is to be
/// changed then.
pub fn plan(in_use: &Files, wish: &Wish, force: bool, now: u64) -> Result<Files, Vec<String>> {
    let mut out = Files::default();
    let mut wrong = Vec::new();
    for (ca, usage) in CAS {
        let Some(old) = in_use.texts(ca) else {
            wrong.push(format!("{ca}: this server has no such CA"));
            continue;
        };
        match new_ca(&old, wish, ca, usage, force, now) {
            Ok(Some(new)) if new != old => out.put(ca, new),
            Ok(_) => {}
            Err(why) => wrong.push(why),
        }
    }
    let old = in_use.get(SERVICE_KEY).unwrap_or_default();
    let new = match wish {
        Wish::Made => rotation::signing_successor(old).map(Some),
        Wish::Given(files) => {
            files.get(SERVICE_KEY).map(|new| rotation::admit_signing(old, new, force)).transpose()
        }
    };
    match new {
        Ok(Some(new)) if new != old => {
            out.0.insert(SERVICE_KEY.to_owned(), new);
        }
        Ok(_) => {}
        Err(why) => wrong.push(format!("{SERVICE_KEY}: {why}")),
    }
    match (wrong.is_empty(), out.0.is_empty()) {
        (true, false) => Ok(out),
        (true, true) => Err(vec!["all that is given is in use already".to_owned()]),
        (false, _) => Err(wrong),
    }
}

fn new_ca(
    old: &Texts,
    wish: &Wish,
    ca: &str,
    usage: Usage,
    force: bool,
    now: u64,
) -> Result<Option<Texts>, String> {
    let new = match wish {
        Wish::Made => {
            let made = rotation::successor(old, now);
            made.map_err(|why| format!("{ca}: {why}"))?
        }
        Wish::Given(files) => {
            let (cert, key) = (format!("{ca}.crt"), format!("{ca}.key"));
            match (files.get(&cert), files.get(&key)) {
                (None, None) => return Ok(None),
                (Some(_), None) => return Err(format!("{cert}: its key, {key}, is missing")),
                (None, Some(_)) => {
                    return Err(format!("{key}: its certificate, {cert}, is missing"));
                }
                (Some(cert), Some(key)) => {
                    Texts { cert: cert.to_owned(), key: key.to_owned().into() }
                }
            }
        }
    };
    if new == *old {
        return Ok(None);
    }
    rotation::admit(old, &new, usage, force, now).map(Some).map_err(|why| format!("{ca}: {why}"))
}

/// Where a change waits for the next start.
fn place(data_dir: &Path) -> PathBuf {
    data_dir.join("server/rotate-ca.json")
}

/// Puts a change by for the next start, in the place of one that waits there.
///
/// # Errors
/// When the file cannot be written; what was there still is.
pub fn put_by(data_dir: &Path, files: &Files) -> io::Result<()> {
    let text = serde_json::to_vec(files).map_err(io::Error::other)?;
    fs::write_atomic(&place(data_dir), &text, 0o600)
}

/// Whether a change waits for the next start.
pub fn is_waiting(data_dir: &Path) -> bool {
    place(data_dir).exists()
}

/// The change that waits for the next start.
///
/// # Errors
/// When its file is damaged.
pub fn waiting(data_dir: &Path) -> io::Result<Option<Files>> {
    let path = place(data_dir);
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

/// Takes over what waits, before any of it is used; the names of what changed. Done again whole
/// when it was interrupted.
///
/// # Errors
/// When a file cannot be read or written.
pub fn take_over(data_dir: &Path) -> io::Result<Vec<String>> {
    let Some(files) = waiting(data_dir)? else { return Ok(Vec::new()) };
    let tls = data_dir.join("server/tls");
    for (name, content) in &files.0 {
        let mode = if name.ends_with(".key") { 0o600 } else { 0o644 };
        fs::write_atomic(&tls.join(name), content.as_bytes(), mode)?;
    }
    let path = place(data_dir);
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

    fn only(files: &Files, wanted: &[&str]) -> Wish {
        let mut files = files.clone();
        files.0.retain(|name, _| wanted.contains(&name.as_str()));
        Wish::Given(files)
    }

    #[test]
    fn what_is_made_is_taken_over_at_the_next_start_however_often_that_is_interrupted() {
        let (dir, old) = cluster();
        assert_eq!(old.names().count(), 11);
        let new = plan(&old, &Wish::Made, false, pki::now()).unwrap();
        assert_eq!(new.names().count(), 11);
        put_by(dir.path(), &new).unwrap();
        assert_eq!(Files::read(&dir.path().join("server/tls")).unwrap(), old);
        assert_eq!(waiting(dir.path()).unwrap().as_ref(), Some(&new));
        assert!(is_waiting(dir.path()));
        // Interrupted behind the third file: the rest and the beginning come at the next start.
        let tls = dir.path().join("server/tls");
        for name in ["client-ca.crt", "client-ca.key", "etcd/peer-ca.crt"] {
            std::fs::write(tls.join(name), new.get(name).unwrap()).unwrap();
        }
        assert_eq!(take_over(dir.path()).unwrap().len(), 11);
        assert_eq!(Files::read(&tls).unwrap(), new);
        assert_eq!(take_over(dir.path()).unwrap(), Vec::<String>::new());
        assert!(!is_waiting(dir.path()));
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |name: &str| tls.join(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(["server-ca.key", "etcd/peer-ca.key", "service.key"].map(mode), [0o600; 3]);
        // Certificates of the new CAs are made, with the way to the old ones.
        let serving = std::fs::read_to_string(tls.join("serving-kube-apiserver.crt")).unwrap();
        certs::ensure(dir.path(), &Names::default()).unwrap();
        let renewed = std::fs::read_to_string(tls.join("serving-kube-apiserver.crt")).unwrap();
        assert_ne!(serving, renewed);
        assert!(renewed.ends_with(new.get("server-ca.crt").unwrap()));
        // And again.
        let third = plan(&new, &Wish::Made, false, pki::now()).unwrap();
        assert_eq!(third.names().count(), 11);
    }

    #[test]
    fn what_is_wrong_is_told_by_its_file_all_at_once() {
        let ((_a, old), (_b, other)) = (cluster(), cluster());
        let told = plan(&old, &Wish::Given(other.clone()), false, pki::now()).unwrap_err();
        assert_eq!(told.len(), 6, "{told:?}");
        for (line, file) in told.iter().zip([
            "server-ca: who believes",
            "client-ca: who believes",
            "request-header-ca: who believes",
            "etcd/server-ca: who believes",
            "etcd/peer-ca: who believes",
            "service.key: lacks the key",
        ]) {
            assert!(line.starts_with(file), "{line}");
        }
        assert_eq!(plan(&old, &Wish::Given(other.clone()), true, pki::now()).unwrap(), other);
        let told = |wish: Wish| plan(&old, &wish, true, pki::now()).unwrap_err().join("; ");
        assert_eq!(
            told(only(&other, &["server-ca.crt", "client-ca.key"])),
            "server-ca.crt: its key, server-ca.key, is missing; client-ca.key: its certificate, client-ca.crt, is missing"
        );
        assert_eq!(told(Wish::Given(old.clone())), "all that is given is in use already");
        assert_eq!(told(Wish::Given(Files::default())), "all that is given is in use already");
        let one = only(&other, &["client-ca.crt", "client-ca.key"]);
        let changed = plan(&old, &one, true, pki::now()).unwrap();
        assert_eq!(changed.names().collect::<Vec<_>>(), ["client-ca.crt", "client-ca.key"]);
    }

    #[test]
    fn a_damaged_or_foreign_change_is_not_taken_over() {
        let (dir, old) = cluster();
        for text in ["{", r#"{"../../etc/passwd": "x"}"#] {
            std::fs::write(place(dir.path()), text).unwrap();
            let told = take_over(dir.path()).unwrap_err().to_string();
            assert!(told.contains("rotate-ca.json") && told.contains("again"), "{told}");
        }
        assert_eq!(Files::read(&dir.path().join("server/tls")).unwrap(), old);
        assert_eq!(format!("{:?}", only(&old, &["service.key"])), r#"Given({"service.key"})"#);
    }
}
