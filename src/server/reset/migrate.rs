//! `kube-lite migrate`: copies the data of k3s, an external datastore or etcd into the embedded
//! store.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use encryption::Keys;
use store::Endpoint;

use super::{K3S_NOTE, StateCheck, command_error_of, report};
use crate::command_line::MigrateArgs;
use crate::error_catalogue::{CommandError, DATA_DIR, MIGRATE};
use crate::server::store_identity::RecordReplacement;
use crate::server::{data_dir, datastore};
use crate::snapshots::source;

/// Paths of k3s's SQLite file below its data directory, its server directory, and its folder.
const BELOW: [&str; 3] = ["server/db/state.db", "db/state.db", "state.db"];
/// The first bytes of a SQLite file.
const SQLITE: &[u8; 16] = b"SQLite format 3\0";

/// The source of the data.
enum Origin {
    /// A database or a running etcd.
    Datastore(Endpoint),
    /// A snapshot or data directory of etcd.
    Etcd(PathBuf),
}

/// Migrates into the data directory `to`; the report for the administrator.
///
/// # Errors
/// Why nothing was migrated.
pub async fn run(args: &MigrateArgs, to: &Path) -> Result<String, CommandError> {
    let from = origin(args).map_err(|why| MIGRATE.error(format!("--from: {why}")))?;
    data_dir::check(to)?;
    let db = to.join("server/db");
    if store::has_store(&db).map_err(|e| MIGRATE.error(e))? {
        let text = format!("{} already has a store, nothing was overwritten", db.display());
        return Err(MIGRATE.error(text));
    }
    base::fs::create_dir(to, 0o700).map_err(|e| DATA_DIR.error(e))?;
    base::fs::create_dir(&to.join("server"), 0o700).map_err(|e| DATA_DIR.error(e))?;
    base::fs::create_dir(&db, 0o700).map_err(|e| DATA_DIR.error(e))?;
    let file = to.join("server/tls/encryption.keys");
    let keys = match file.exists() {
        true => Some(Keys::load_or_create(&file).map_err(|e| DATA_DIR.error(e))?.ring()),
        false => None,
    };
    let mut state = StateCheck::new(keys.as_deref());
    let mut bytes = 0_usize;
    let (text, from) = match &from {
        Origin::Datastore(endpoint) if endpoint.is_etcd() => {
            let file = base::fs::scratch(&db).map_err(|e| DATA_DIR.error(e))?;
            let into = file.try_clone().map_err(|e| DATA_DIR.error(e))?;
            store::copy_etcd(endpoint, into).await.map_err(|e| MIGRATE.error(e))?;
            let path = PathBuf::from(endpoint.to_string());
            let source = source::Source { path, file, of_directory: false };
            (restore(&source, &db, &mut state, &mut bytes)?, endpoint.to_string())
        }
        Origin::Datastore(endpoint) => {
            let mut check = |key: &Bytes, value: &Bytes| {
                bytes += value.len();
                state.check(key, value).map_err(Into::into)
            };
            let done = store::migrate(endpoint, &db, &mut check).await;
            let done = done.map_err(|error| migration_error(&error))?;
            let mut text = report(&done, None, false);
            text.push_str(&datastore_note(state.is_k3s));
            text.push_str(&state.object_report());
            (text, endpoint.to_string())
        }
        Origin::Etcd(path) => {
            let source = source::open(path, &db).map_err(|e| MIGRATE.error(e))?;
            (restore(&source, &db, &mut state, &mut bytes)?, path.display().to_string())
        }
    };
    let failed = |e: std::io::Error| DATA_DIR.error(e);
    if let Some(store) = store::store_id(&db).map_err(failed)? {
        RecordReplacement::begin(to).and_then(|record| record.done(store)).map_err(failed)?;
    }
    // The embedded store without keys, which an external datastore needs, is obsolete.
    base::fs::remove_dir(&db.join(datastore::FOLDER)).map_err(|e| DATA_DIR.error(e))?;
    // The first line of the report is about other servers, which a new cluster does not have.
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
    let begin = format!("kube-lite server --data-dir {}", to.display());
    Ok(format!("migrated  {bytes} bytes of values from {from}\n{rest}next      {begin}\n"))
}

/// Restores a snapshot as the store; its report. Adds the size of its values to `bytes`.
fn restore(
    source: &source::Source,
    db: &Path,
    state: &mut StateCheck<'_>,
    bytes: &mut usize,
) -> Result<String, CommandError> {
    let snapshot = Some((&source.file, source.path.as_path()));
    let done = store::reset(db, snapshot, &mut |key, value| {
        *bytes += value.len();
        state.check(key, value).map_err(Into::into)
    });
    let done = done.map_err(|error| migration_error(&error))?;
    Ok(report(&done, Some(source), state.is_k3s) + &state.object_report())
}

fn migration_error(error: &store::ResetError) -> CommandError {
    let command_error = command_error_of(error);
    if command_error.entry == crate::error_catalogue::RESET {
        MIGRATE.error(error)
    } else {
        command_error
    }
}

/// The line of the report about the certificates of the cluster.
fn datastore_note(is_k3s: bool) -> String {
    let text = if is_k3s {
        K3S_NOTE
    } else {
        "certificates, keys and tokens are not part of a datastore: those in server/tls and \
         server/token of this data directory stay, or are created"
    };
    format!("{:<10}{text}\n", "note")
}

/// Why `--from` cannot be used.
#[derive(Debug, thiserror::Error)]
enum OriginError {
    /// A URL, or the path of a SQLite file, that is not an endpoint.
    #[error("{0}")]
    Endpoint(String),
    /// A SQLite file that cannot be opened.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// A path that is not UTF-8.
    #[error("the path is not valid UTF-8")]
    NotUtf8,
}

/// The source that `--from` names: a URL, a SQLite file or its directory, or else data of etcd.
fn origin(args: &MigrateArgs) -> Result<Origin, OriginError> {
    let endpoint = |text: &str, tls| {
        let parsed = Endpoint::parse(text, tls);
        parsed.map(Origin::Datastore).map_err(|e| OriginError::Endpoint(e.to_string()))
    };
    let text = args.from.reveal();
    let tls = datastore::tls(&args.tls);
    if text.contains("://") {
        return endpoint(text, tls);
    }
    let path = PathBuf::from(text);
    let file = match path.is_dir() {
        true => BELOW.iter().map(|below| path.join(below)).find(|file| is_sqlite(file)),
        false => Some(path.clone()).filter(|file| is_sqlite(file)),
    };
    let Some(file) = file else { return Ok(Origin::Etcd(path)) };
    let file = std::fs::canonicalize(&file)
        .map_err(|source| OriginError::File { path: file.clone(), source })?;
    endpoint(file.to_str().ok_or(OriginError::NotUtf8)?, tls)
}

fn is_sqlite(file: &Path) -> bool {
    let mut begin = [0; SQLITE.len()];
    File::open(file).is_ok_and(|mut file| file.read_exact(&mut begin).is_ok()) && begin == *SQLITE
}
