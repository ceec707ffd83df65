//! `--cluster-reset`: this server becomes the only one of a new cluster, with its own data or that of a snapshot, and ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use apiserver::encryption::{Keys, Ring, is_encrypted};
use apiserver::registry::stored_check::{Reading, StoredCheck};
use bytes::Bytes;
use store::{Reset, ResetError};

use crate::error_catalogue::{DATA_DIR, DATA_DIR_LOCKED, RESET, Refusal, STORE_DAMAGED};
use crate::server::config::Config;
use crate::server::members::join::RECORD;
use crate::server::store_identity::Replacing;
use crate::snapshots;
use crate::snapshots::s3::Bucket;
use crate::snapshots::source::{self, Source};

pub mod migrate;

/// Where k3s keeps certificates and keys of its cluster, sealed with its token.
const K3S_BOOTSTRAP: &[u8] = b"/bootstrap/";

/// What `--cluster-reset` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// A snapshot or data directory instead of the own data.
    pub restore: Option<PathBuf>,
}

fn flag(data_dir: &Path) -> PathBuf {
    data_dir.join("server/db/reset-flag")
}

/// Whether the last thing that happened to the store was a reset; [`forget`] it once it is settled.
pub(crate) fn was_reset(data_dir: &Path) -> bool {
    flag(data_dir).exists()
}

/// The server has started after a reset: another one may follow.
pub(crate) fn forget(data_dir: &Path) -> Result<(), Refusal> {
    match std::fs::remove_file(flag(data_dir)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(DATA_DIR.refuse(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// What the state to be holds that a person has to know of.
struct Look<'k> {
    keys: Option<&'k Ring>,
    /// The same with keys that were dropped.
    former: Option<&'k Ring>,
    /// A file says how values are sealed; what that has is not tried.
    by_file: bool,
    /// One of those was needed.
    needs_former: bool,
    /// Beginnings of sealed values that were tried.
    tried: BTreeSet<Vec<u8>>,
    k3s: bool,
    /// How objects of built-in kinds will be read.
    check: StoredCheck,
    /// Objects with fields that are filled in, by resource.
    filled: BTreeMap<String, usize>,
    /// The first objects that cannot be read.
    unreadable: Vec<String>,
    unreadable_count: usize,
}

/// Most unreadable objects that a report names.
const UNREADABLE_NAMED: usize = 10;

impl<'k> Look<'k> {
    /// With the keys in force, if there are any.
    fn new(keys: Option<&'k Ring>) -> Self {
        Self {
            keys,
            former: None,
            by_file: false,
            needs_former: false,
            tried: BTreeSet::new(),
            k3s: false,
            check: StoredCheck::default(),
            filled: BTreeMap::new(),
            unreadable: Vec::new(),
            unreadable_count: 0,
        }
    }

    fn note_reading(&mut self, key: &Bytes, value: &Bytes) {
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

    /// Lines of the report about objects that are not read as they are stored.
    fn notes(&self) -> String {
        let mut out = String::new();
        for (resource, count) in &self.filled {
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "{:<10}{count} {resource} of an older API server are read with the fields that it did not know",
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

    fn at(&mut self, key: &Bytes, value: &Bytes) -> Result<(), String> {
        self.k3s |= key.starts_with(K3S_BOOTSTRAP);
        if !is_encrypted(value) {
            self.note_reading(key, value);
            return Ok(());
        }
        if self.by_file {
            return Ok(());
        }
        // Provider and key, up to the last colon of the head.
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
            None => return Err(told(&format!("{name}: it is encrypted"))),
        };
        opened.map_err(|why| told(&why))
    }
}

fn told(why: &dyn std::fmt::Display) -> String {
    format!(
        "{why}. Secrets are sealed with keys that do not lie in snapshots: bring server/tls/encryption.keys of the server that wrote it (and server/tls and server/token, for its certificates) into this data directory first"
    )
}

/// The request with its snapshot as a file: what a bucket has is downloaded into the folder of snapshots.
///
/// # Errors
/// Why it is not there.
pub async fn fetched(config: &Config, request: &Request) -> Result<Request, Refusal> {
    let (Some(settings), Some(name)) = (&config.snapshots.s3, &request.restore) else {
        return Ok(request.clone());
    };
    let told = |why: String| RESET.refuse(why);
    let bucket = Bucket::open(settings.clone()).await.map_err(told)?;
    let folder = snapshots::default_dir(&config.machine.data_dir);
    super::data_dir::check(&config.machine.data_dir)?;
    let made = || {
        base::fs::create_dir(&config.machine.data_dir, 0o700)?;
        base::fs::create_dir(&folder, 0o700)
    };
    made().map_err(|e| DATA_DIR.refuse(e))?;
    let file = bucket.get(&name.to_string_lossy(), &folder).await.map_err(told)?;
    Ok(Request { restore: Some(file) })
}

/// Resets; what to tell.
///
/// # Errors
/// Why nothing was changed.
pub fn run(config: &Config, request: &Request) -> Result<String, Refusal> {
    let data_dir = &config.machine.data_dir;
    super::data_dir::check(data_dir)?;
    let marker = flag(data_dir);
    if request.restore.is_none() && marker.exists() {
        return Err(RESET.refuse(format!(
            "Managed etcd cluster membership was previously reset, please remove the cluster-reset flag and start kube-lite normally. If you need to perform another cluster reset, you must first manually delete the {} file",
            marker.display()
        )));
    }
    let db = data_dir.join("server/db");
    base::fs::create_dir(data_dir, 0o700).map_err(|e| DATA_DIR.refuse(e))?;
    base::fs::create_dir(&db, 0o700).map_err(|e| DATA_DIR.refuse(e))?;
    let source = request.restore.as_deref().map(|path| source::open(path, &db)).transpose();
    let source = source.map_err(|why| RESET.refuse(why))?;
    let file = data_dir.join("server/tls/encryption.keys");
    let (keys, former) = match file.exists() {
        true => {
            let keys = Keys::load_or_create(&file).map_err(|e| DATA_DIR.refuse(e))?;
            let former = keys.with_former().map_err(|e| DATA_DIR.refuse(e))?;
            (Some(keys.ring()), Some(former))
        }
        false => (None, None),
    };
    let mut look = Look {
        former: former.as_ref(),
        by_file: config.encryption.is_some(),
        ..Look::new(keys.as_deref())
    };
    let snapshot = source.as_ref().map(|source| (&source.file, source.path.as_path()));
    let record = Replacing::begin(data_dir).map_err(|e| DATA_DIR.refuse(e))?;
    let done = store::reset(&db, snapshot, &mut |key, value| look.at(key, value));
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            record.failed();
            return Err(refusal_of(&error));
        }
    };
    record.done(done.cluster).map_err(|e| DATA_DIR.refuse(e))?;
    if let (true, Some(former)) = (look.needs_former, &former) {
        // From here on they are in force again, until the keys are rotated.
        let text = former.render();
        base::fs::write_atomic(&file, text.as_bytes(), 0o600).map_err(|e| DATA_DIR.refuse(e))?;
    }
    leave(data_dir, done.old.as_deref()).map_err(|e| DATA_DIR.refuse(e))?;
    base::fs::write_atomic(&marker, b"", 0o600).map_err(|e| DATA_DIR.refuse(e))?;
    Ok(report(&done, source.as_ref(), look.k3s) + &look.notes())
}

/// This server is nobody's further one any more.
fn leave(data_dir: &Path, old: Option<&Path>) -> std::io::Result<()> {
    let record = data_dir.join(RECORD);
    match (record.exists(), old) {
        (false, _) => Ok(()),
        (true, Some(old)) => std::fs::rename(&record, old.join("member.json")),
        (true, None) => std::fs::remove_file(&record),
    }
}

fn refusal_of(error: &ResetError) -> Refusal {
    match error {
        ResetError::Open(store::OpenError::Locked { .. }) => DATA_DIR_LOCKED.refuse(error),
        ResetError::Open(store::OpenError::Corrupt { .. } | store::OpenError::Lost { .. }) => {
            STORE_DAMAGED.refuse(error)
        }
        _ => RESET.refuse(error),
    }
}

fn report(done: &Reset, source: Option<&Source>, k3s: bool) -> String {
    let mut out = String::from(
        "Managed etcd cluster membership has been reset, restart without --cluster-reset flag now. Backup and delete ${datadir}/server/db on each peer etcd server and rejoin the nodes\n",
    );
    // Writing to a string cannot fail.
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "{name:<10}{text}");
    };
    line(
        "store",
        format!("{} keys, revision {}, cluster {}", done.keys, done.revision, done.cluster),
    );
    if let Some(old) = &done.old {
        line("former", format!("kept in {}", old.display()));
    }
    if let (Some(source), Some(facts)) = (source, &done.snapshot) {
        let version = facts.storage_version.as_deref().unwrap_or("before 3.6");
        let path = source.path.display();
        line(
            "snapshot",
            format!(
                "{path}: revision {}, {} bytes, storage version {version}",
                facts.revision, facts.size
            ),
        );
        if source.of_directory {
            line("note", "it is the database of a data directory: what etcd had only in its log when it was stopped is not in it".to_owned());
        }
        if !facts.has_checksum {
            line(
                "note",
                "it has no sha256 at its end, so only its structure could be checked".to_owned(),
            );
        }
        if facts.auth {
            line(
                "note",
                "etcd's users and roles were in force in it, and are not taken over".to_owned(),
            );
        }
        line("note", if k3s {
            "it is k3s's, and its certificates and keys (/bootstrap/...) stay sealed with k3s's token: this server keeps or makes its own, so kubeconfigs, service account tokens and machines of that cluster have to be made or joined anew"
        } else {
            "certificates, keys and tokens of the cluster are not part of a snapshot: those in server/tls and server/token of this data directory stay, or are made anew"
        }.to_owned());
    }
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

    fn told(data: &Path, flags: &[&str]) -> Result<String, String> {
        let config = config(data, flags);
        let request = config.reset.clone().unwrap();
        run(&config, &request).map_err(|refusal| refusal.to_string())
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
    async fn a_reset_is_done_once_and_says_what_to_do() {
        let data = tempfile::tempdir().unwrap();
        let db = data.path().join("server/db");
        let refused = told(data.path(), &["--cluster-reset"]).unwrap_err();
        assert!(
            refused.contains("KL0306") && refused.contains("there is no store in"),
            "{refused}"
        );
        std::fs::remove_dir_all(data.path().join("server")).unwrap();
        save(&db, &[("/registry/pods/a/b", Bytes::from("{}"))], None).await;
        std::fs::write(data.path().join(RECORD), "{}").unwrap();
        let text = told(data.path(), &["--cluster-reset"]).unwrap();
        assert!(!data.path().join(RECORD).exists());
        assert!(text.starts_with("Managed etcd cluster membership has been reset, restart without --cluster-reset flag now."));
        assert!(
            text.contains("store     1 keys, revision 1000000002, cluster ")
                && text.contains("former    kept in "),
            "{text}"
        );
        let refused = told(data.path(), &["--cluster-reset"]).unwrap_err();
        assert!(
            refused.contains("membership was previously reset")
                && refused.contains("server/db/reset-flag file"),
            "{refused}"
        );
        assert!(was_reset(data.path()));
        forget(data.path()).unwrap();
        assert!(told(data.path(), &["--cluster-reset"]).is_ok());
    }

    #[tokio::test]
    async fn sealed_secrets_need_their_keys_and_k3ss_certificates_stay_where_they_are() {
        let other = tempfile::tempdir().unwrap();
        let keys = Keys::load_or_create(&other.path().join("keys")).unwrap();
        let secret = keys.ring().encrypt("/registry/secrets/a/b", b"{}").unwrap().unwrap();
        let snapshot = other.path().join("snapshot");
        let content = [("/bootstrap/x", Bytes::from("sealed")), ("/registry/secrets/a/b", secret)];
        save(&other.path().join("db"), &content, Some(&snapshot)).await;
        let data = tempfile::tempdir().unwrap();
        let flag = format!("--cluster-reset-restore-path={}", snapshot.display());
        let refused = told(data.path(), &["--cluster-reset", &flag]).unwrap_err();
        assert!(
            refused.contains("bring server/tls/encryption.keys of the server that wrote it"),
            "{refused}"
        );
        std::fs::create_dir_all(data.path().join("server/tls")).unwrap();
        std::fs::copy(other.path().join("keys"), data.path().join("server/tls/encryption.keys"))
            .unwrap();
        let text = told(data.path(), &["--cluster-reset", &flag]).unwrap();
        assert!(
            text.contains("it is k3s's, and its certificates and keys")
                && text.contains("storage version 3.6.0"),
            "{text}"
        );
        let absent =
            told(data.path(), &["--cluster-reset", "--cluster-reset-restore-path=/absent"])
                .unwrap_err();
        assert!(absent.contains("snapshot path does not exist: /absent"), "{absent}");
    }
}
