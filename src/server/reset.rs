//! `--cluster-reset`: makes this server the only one of a new cluster, with its own data or that of
//! a snapshot, and exits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use apiserver::registry::stored_check::{Reading, StoredCheck};
use bytes::Bytes;
use encryption::{Keys, Ring, is_encrypted};
use store::{Reset, ResetError};

use crate::error_catalogue::{CommandError, DATA_DIR, DATA_DIR_LOCKED, RESET, STORE_DAMAGED};
use crate::server::config::Config;
use crate::server::members::join::RECORD;
use crate::server::store_identity::RecordReplacement;
use crate::snapshots;
use crate::snapshots::s3::Bucket;
use crate::snapshots::s3::secret::resolve;
use crate::snapshots::source::{self, Source};

pub mod migrate;

/// Prefix of the keys under which k3s stores certificates of its cluster, encrypted with its token.
const K3S_BOOTSTRAP: &[u8] = b"/bootstrap/";

/// A reset of `--cluster-reset`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The snapshot or data directory to restore; `None` keeps the data of this server.
    pub restore: Option<PathBuf>,
}

fn flag(data_dir: &Path) -> PathBuf {
    data_dir.join("server/db/reset-flag")
}

/// Whether the store was reset and no server has started on it since; see [`forget`].
pub(crate) fn was_reset(data_dir: &Path) -> bool {
    flag(data_dir).exists()
}

/// Records that the server has started after a reset, so that another reset is allowed.
///
/// # Errors
/// The marker cannot be removed.
pub(crate) fn forget(data_dir: &Path) -> Result<(), CommandError> {
    match std::fs::remove_file(flag(data_dir)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(DATA_DIR.error(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Checks every key of the state that a reset or migration creates, and collects what the
/// administrator must know.
struct StateCheck<'k> {
    /// The keys in force.
    keys: Option<&'k Ring>,
    /// The same with keys that were removed by a rotation.
    former: Option<&'k Ring>,
    /// `encryption-provider-config` decides how values are encrypted, so they are not decrypted
    /// here.
    has_encryption_config: bool,
    /// A former key was needed.
    needs_former: bool,
    /// Provider and key of the encrypted values that were decrypted as a sample.
    tried: BTreeSet<Vec<u8>>,
    is_k3s: bool,
    /// Decodes objects of built-in kinds as the API server does.
    check: StoredCheck,
    /// Number of objects with defaulted fields, by resource.
    filled: BTreeMap<String, usize>,
    /// The first objects that cannot be decoded, with the reason.
    unreadable: Vec<String>,
    unreadable_count: usize,
}

/// Maximum number of unreadable objects in the report.
const UNREADABLE_NAMED: usize = 10;

impl<'k> StateCheck<'k> {
    /// Creates a check with the keys in force, if there are any.
    fn new(keys: Option<&'k Ring>) -> Self {
        Self {
            keys,
            former: None,
            has_encryption_config: false,
            needs_former: false,
            tried: BTreeSet::new(),
            is_k3s: false,
            check: StoredCheck::default(),
            filled: BTreeMap::new(),
            unreadable: Vec::new(),
            unreadable_count: 0,
        }
    }

    fn check_object(&mut self, key: &Bytes, value: &Bytes) {
        match self.check.read(key, value) {
            None | Some(Reading::Complete) => {}
            Some(Reading::Filled(resource)) => *self.filled.entry(resource).or_default() += 1,
            Some(Reading::Unreadable(why)) => {
                self.unreadable_count += 1;
                if self.unreadable.len() < UNREADABLE_NAMED {
                    self.unreadable.push(format!("{}: {why}", String::from_utf8_lossy(key)));
                }
            }
        }
    }

    /// Lines of the report about objects that are not decoded as they are stored.
    fn object_report(&self) -> String {
        let mut out = String::new();
        for (resource, count) in &self.filled {
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "{:<10}{count} {resource} of an older API server get defaults for newer fields",
                "note"
            );
        }
        if self.unreadable_count > 0 {
            let _ = writeln!(
                out,
                "{:<10}{} objects cannot be read, lists of their resources fail until they are deleted or replaced:",
                "warning", self.unreadable_count
            );
            for line in &self.unreadable {
                let _ = writeln!(out, "{:<10}{line}", "");
            }
        }
        out
    }

    /// Checks one key.
    ///
    /// # Errors
    /// The value is encrypted and no key decrypts it.
    fn check(&mut self, key: &Bytes, value: &Bytes) -> Result<(), MissingKeys> {
        self.is_k3s |= key.starts_with(K3S_BOOTSTRAP);
        if !is_encrypted(value) {
            self.check_object(key, value);
            return Ok(());
        }
        if self.has_encryption_config {
            return Ok(());
        }
        // Provider and key, up to the last colon of the prefix.
        let head = value.get(..96.min(value.len())).unwrap_or_default();
        let head = head.split_inclusive(|byte| *byte == b':').take(5).flatten().copied().collect();
        if self.tried.len() > 64 || !self.tried.insert(head) {
            return Ok(());
        }
        let name = String::from_utf8_lossy(key).into_owned();
        let opened = match self.keys {
            Some(keys) => keys.decrypt(&name, value).map(drop).or_else(|error| {
                let former = self.former.ok_or(error)?;
                self.needs_former = true;
                former.decrypt(&name, value).map(drop)
            }),
            None => return Err(MissingKeys(format!("{name}: it is encrypted"))),
        };
        opened.map_err(|why| MissingKeys(why.to_string()))
    }
}

/// A stored value that cannot be decrypted, and why.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}. Secrets are encrypted with keys that are not part of a snapshot: first copy \
     server/tls/encryption.keys (and for its certificates server/tls and server/token) of the \
     server that wrote the snapshot into this data directory"
)]
struct MissingKeys(String);

/// The request with its snapshot as a file: with `--etcd-s3`, downloads it into the folder of
/// snapshots.
///
/// # Errors
/// The snapshot cannot be downloaded.
pub async fn download_snapshot(
    config: &Config,
    request: &Request,
) -> Result<Request, CommandError> {
    let (Some(bucket), Some(name)) = (&config.snapshots.s3, &request.restore) else {
        return Ok(request.clone());
    };
    let settings = resolve(bucket, None).await.map_err(|e| RESET.error(e))?;
    let bucket = Bucket::open(settings).await.map_err(|e| RESET.error(e))?;
    let folder = snapshots::default_dir(&config.machine.data_dir);
    super::data_dir::check(&config.machine.data_dir)?;
    let create = || {
        base::fs::create_dir(&config.machine.data_dir, 0o700)?;
        base::fs::create_dir(&folder, 0o700)
    };
    create().map_err(|e| DATA_DIR.error(e))?;
    let file = bucket.get(&name.to_string_lossy(), &folder).await.map_err(|e| RESET.error(e))?;
    Ok(Request { restore: Some(file) })
}

/// Resets the store; the report for the administrator.
///
/// # Errors
/// Why nothing was changed.
pub fn run(config: &Config, request: &Request) -> Result<String, CommandError> {
    let data_dir = &config.machine.data_dir;
    super::data_dir::check(data_dir)?;
    let marker = flag(data_dir);
    if request.restore.is_none() && marker.exists() {
        return Err(RESET.error(format!(
            "Managed etcd cluster membership was previously reset, please remove the cluster-reset flag and start kube-lite normally. If you need to perform another cluster reset, you must first manually delete the {} file",
            marker.display()
        )));
    }
    let db = data_dir.join("server/db");
    base::fs::create_dir(data_dir, 0o700).map_err(|e| DATA_DIR.error(e))?;
    base::fs::create_dir(&db, 0o700).map_err(|e| DATA_DIR.error(e))?;
    let source = request.restore.as_deref().map(|path| source::open(path, &db)).transpose();
    let source = source.map_err(|e| RESET.error(e))?;
    let file = data_dir.join("server/tls/encryption.keys");
    let (keys, former) = match file.exists() {
        true => {
            let keys = Keys::load_or_create(&file).map_err(|e| DATA_DIR.error(e))?;
            let former = keys.with_former().map_err(|e| DATA_DIR.error(e))?;
            (Some(keys.ring()), Some(former))
        }
        false => (None, None),
    };
    let mut state = StateCheck {
        former: former.as_ref(),
        has_encryption_config: config.encryption.is_some(),
        ..StateCheck::new(keys.as_deref())
    };
    let snapshot = source.as_ref().map(|source| (&source.file, source.path.as_path()));
    let record = RecordReplacement::begin(data_dir).map_err(|e| DATA_DIR.error(e))?;
    let done =
        store::reset(&db, snapshot, &mut |key, value| state.check(key, value).map_err(Into::into));
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            record.failed();
            return Err(command_error_of(&error));
        }
    };
    record.done(done.cluster).map_err(|e| DATA_DIR.error(e))?;
    if let (true, Some(former)) = (state.needs_former, &former) {
        // The former keys are in force again, until the keys are rotated.
        let text = former.render();
        base::fs::write_atomic(&file, text.as_bytes(), 0o600).map_err(|e| DATA_DIR.error(e))?;
    }
    discard_member_record(data_dir, done.old.as_deref()).map_err(|e| DATA_DIR.error(e))?;
    base::fs::write_atomic(&marker, b"", 0o600).map_err(|e| DATA_DIR.error(e))?;
    Ok(report(&done, source.as_ref(), state.is_k3s) + &state.object_report())
}

/// Removes the record that this server joined others, or moves it to the former store.
fn discard_member_record(data_dir: &Path, old: Option<&Path>) -> std::io::Result<()> {
    let record = data_dir.join(RECORD);
    match (record.exists(), old) {
        (false, _) => Ok(()),
        (true, Some(old)) => std::fs::rename(&record, old.join("member.json")),
        (true, None) => std::fs::remove_file(&record),
    }
}

fn command_error_of(error: &ResetError) -> CommandError {
    match error {
        ResetError::Open(store::OpenError::Locked { .. }) => DATA_DIR_LOCKED.error(error),
        ResetError::Open(store::OpenError::Corrupt { .. } | store::OpenError::Lost { .. }) => {
            STORE_DAMAGED.error(error)
        }
        _ => RESET.error(error),
    }
}

/// The first lines of k3s after a reset.
const RESET_DONE: &str = "Managed etcd cluster membership has been reset, restart without \
     --cluster-reset flag now. Backup and delete ${datadir}/server/db on each peer etcd server and \
     rejoin the nodes\n";

/// Appends a line to a report.
fn push_line(out: &mut String, name: &str, text: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{name:<10}{text}");
}

/// The note that the certificates of a k3s cluster are not taken over.
const K3S_NOTE: &str = "the data is from k3s; its certificates and keys (/bootstrap/...) stay \
     encrypted with k3s's token. This server keeps or creates its own, so kubeconfigs, service \
     account tokens and nodes of that cluster must be created or joined again";

/// The report of a reset.
fn report(done: &Reset, source: Option<&Source>, is_k3s: bool) -> String {
    let mut out = String::from(RESET_DONE);
    let counts =
        format!("{} keys, revision {}, cluster {}", done.keys, done.revision, done.cluster);
    push_line(&mut out, "store", &counts);
    if let Some(old) = &done.old {
        push_line(&mut out, "former", &format!("kept in {}", old.display()));
    }
    let (Some(source), Some(snapshot)) = (source, &done.snapshot) else { return out };
    let version = snapshot.storage_version.as_deref().unwrap_or("before 3.6");
    let description = format!(
        "{}: revision {}, {} bytes, storage version {version}",
        source.path.display(),
        snapshot.revision,
        snapshot.size
    );
    push_line(&mut out, "snapshot", &description);
    let mut note = |text: &str| push_line(&mut out, "note", text);
    if source.of_directory {
        note(
            "this is the database of a data directory: entries that were only in etcd's log when \
             it stopped are missing",
        );
    }
    if !snapshot.has_checksum {
        note("the file has no sha256 at its end, so only its structure was checked");
    }
    if snapshot.auth {
        note("etcd authentication was enabled; its users and roles are not restored");
    }
    note(if is_k3s {
        K3S_NOTE
    } else {
        "certificates, keys and tokens are not part of a snapshot: those in server/tls and \
         server/token of this data directory stay, or are created"
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::{Cli, Command, Locations, parse};

    fn config(data: &Path, flags: &[&str]) -> Config {
        let data = format!("--data-dir={}", data.display());
        let argv = [
            "kube-lite",
            "server",
            "--config=/dev/null",
            "--disable-agent",
            "--node-ip=10.0.0.5",
            &data,
        ];
        let argv = argv.iter().chain(flags).map(Into::into).collect();
        let Ok(Cli { command: Command::Server(args) }) = parse(argv, |_| None) else {
            panic!("flags")
        };
        let locations = Locations { data: "/d".into(), config: "/c".into(), path: String::new() };
        Config::new(*args, &locations).unwrap()
    }

    fn reset(data: &Path, flags: &[&str]) -> Result<String, String> {
        let config = config(data, flags);
        let request = config.reset.clone().unwrap();
        run(&config, &request).map_err(|error| error.to_string())
    }

    async fn save(db: &Path, keys: &[(&str, Bytes)], into: Option<&Path>) {
        use store::{Backend, Op, Txn};
        let tasks = base::Tasks::new(base::Shutdown::new());
        let store: std::sync::Arc<dyn Backend> =
            store::open(store::Config::new(db), &tasks).await.unwrap();
        for (key, value) in keys {
            let put = Op::Put {
                key: (*key).to_owned().into(),
                value: value.clone(),
                lease: 0,
                prev_kv: false,
            };
            store.txn(Txn { success: vec![put], ..Txn::default() }).await.unwrap();
        }
        if let Some(path) = into {
            let file = std::fs::File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(path)
                .unwrap();
            store.save(file).await.unwrap();
        }
        tasks.shutdown().request();
        assert!(tasks.drain(std::time::Duration::from_secs(5)).await.is_empty());
    }

    #[tokio::test]
    async fn a_second_reset_is_rejected_until_the_server_has_started() {
        let data = tempfile::tempdir().unwrap();
        let db = data.path().join("server/db");
        let refused = reset(data.path(), &["--cluster-reset"]).unwrap_err();
        assert!(
            refused.contains("KL0306") && refused.contains("there is no store in"),
            "{refused}"
        );
        std::fs::remove_dir_all(data.path().join("server")).unwrap();
        save(&db, &[("/registry/pods/a/b", Bytes::from("{}"))], None).await;
        std::fs::write(data.path().join(RECORD), "{}").unwrap();
        let text = reset(data.path(), &["--cluster-reset"]).unwrap();
        assert!(!data.path().join(RECORD).exists());
        assert!(text.starts_with("Managed etcd cluster membership has been reset, restart without --cluster-reset flag now."));
        assert!(
            text.contains("store     1 keys, revision 1000000002, cluster ")
                && text.contains("former    kept in "),
            "{text}"
        );
        let refused = reset(data.path(), &["--cluster-reset"]).unwrap_err();
        assert!(
            refused.contains("membership was previously reset")
                && refused.contains("server/db/reset-flag file"),
            "{refused}"
        );
        assert!(was_reset(data.path()));
        forget(data.path()).unwrap();
        assert!(reset(data.path(), &["--cluster-reset"]).is_ok());
    }

    #[tokio::test]
    async fn encrypted_secrets_need_their_keys_and_k3s_certificates_are_not_restored() {
        let other = tempfile::tempdir().unwrap();
        let keys = Keys::load_or_create(&other.path().join("keys")).unwrap();
        let secret = keys.ring().encrypt("/registry/secrets/a/b", b"{}").unwrap().unwrap();
        let snapshot = other.path().join("snapshot");
        let content = [("/bootstrap/x", Bytes::from("sealed")), ("/registry/secrets/a/b", secret)];
        save(&other.path().join("db"), &content, Some(&snapshot)).await;
        let data = tempfile::tempdir().unwrap();
        let flag = format!("--cluster-reset-restore-path={}", snapshot.display());
        let refused = reset(data.path(), &["--cluster-reset", &flag]).unwrap_err();
        assert!(refused.contains("first copy server/tls/encryption.keys"), "{refused}");
        std::fs::create_dir_all(data.path().join("server/tls")).unwrap();
        std::fs::copy(other.path().join("keys"), data.path().join("server/tls/encryption.keys"))
            .unwrap();
        let text = reset(data.path(), &["--cluster-reset", &flag]).unwrap();
        assert!(
            text.contains("the data is from k3s; its certificates and keys")
                && text.contains("storage version 3.6.0"),
            "{text}"
        );
        let absent =
            reset(data.path(), &["--cluster-reset", "--cluster-reset-restore-path=/absent"])
                .unwrap_err();
        assert!(absent.contains("snapshot path does not exist: /absent"), "{absent}");
    }
}
