//! `kube-lite migrate`: the data of a k3s, an external datastore or an etcd becomes that of the embedded store.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use apiserver::encryption::Keys;
use bytes::Bytes;
use store::Endpoint;

use super::{Look, refusal_of, report};
use crate::command_line::MigrateArgs;
use crate::error_catalogue::{DATA_DIR, MIGRATE, Refusal};
use crate::server::store_identity::Replacing;
use crate::server::{data_dir, datastore};
use crate::snapshots::source;

/// Where k3s' file of SQLite is below its data directory, its server directory, and the folder itself.
const BELOW: [&str; 3] = ["server/db/state.db", "db/state.db", "state.db"];
/// What a file of SQLite begins with.
const SQLITE: &[u8; 16] = b"SQLite format 3\0";

/// Where the data comes from.
enum Origin {
    Datastore(Endpoint),
    /// A snapshot or data directory of etcd.
    Etcd(PathBuf),
}

/// Migrates; what to tell.
///
/// # Errors
/// Why nothing was.
pub async fn run(args: &MigrateArgs, to: &Path) -> Result<String, Refusal> {
    let refuse = |why: String| MIGRATE.refuse(why);
    let from = from(args).map_err(|why| refuse(format!("--from: {why}")))?;
    data_dir::check(to)?;
    let db = to.join("server/db");
    let occupied = store::has_store(&db).map_err(|e| refuse(e.to_string()))?;
    if occupied {
        return Err(refuse(format!(
            "{} has a store already, nothing is put over it",
            db.display()
        )));
    }
    base::fs::create_dir(to, 0o700).map_err(|e| DATA_DIR.refuse(e))?;
    base::fs::create_dir(&to.join("server"), 0o700).map_err(|e| DATA_DIR.refuse(e))?;
    base::fs::create_dir(&db, 0o700).map_err(|e| DATA_DIR.refuse(e))?;
    let file = to.join("server/tls/encryption.keys");
    let keys = match file.exists() {
        true => Some(Keys::load_or_create(&file).map_err(|e| DATA_DIR.refuse(e))?.ring()),
        false => None,
    };
    let mut look = Look::new(keys.as_deref());
    let mut bytes = 0_usize;
    let (text, from) = match &from {
        Origin::Datastore(endpoint) if endpoint.is_etcd() => {
            let file = base::fs::scratch(&db).map_err(|e| DATA_DIR.refuse(e))?;
            let into = file.try_clone().map_err(|e| DATA_DIR.refuse(e))?;
            store::copy_etcd(endpoint, into).await.map_err(|error| refuse(error.to_string()))?;
            let path = PathBuf::from(endpoint.to_string());
            let source = source::Source { path, file, of_directory: false };
            (restore(&source, &db, &mut look, &mut bytes)?, endpoint.to_string())
        }
        Origin::Datastore(endpoint) => {
            let mut look_at = |key: &Bytes, value: &Bytes| {
                bytes += value.len();
                look.at(key, value)
            };
            let done = store::migrate(endpoint, &db, &mut look_at).await;
            let done = done.map_err(|error| told(&error))?;
            let mut text = report(&done, None, false);
            text.push_str(&note(look.k3s));
            text.push_str(&look.notes());
            (text, endpoint.to_string())
        }
        Origin::Etcd(path) => {
            let source = source::open(path, &db).map_err(refuse)?;
            (restore(&source, &db, &mut look, &mut bytes)?, path.display().to_string())
        }
    };
    let failed = |e: std::io::Error| DATA_DIR.refuse(e);
    if let Some(store) = store::store_id(&db).map_err(failed)? {
        Replacing::begin(to).and_then(|record| record.done(store)).map_err(failed)?;
    }
    // What this server was for an external datastore it is no more.
    base::fs::remove_dir(&db.join(datastore::FOLDER)).map_err(|e| DATA_DIR.refuse(e))?;
    // The first line is about other servers, of which there are none.
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
    let begin = format!("kube-lite server --data-dir {}", to.display());
    Ok(format!("migrated  {bytes} bytes of values from {from}\n{rest}next      {begin}\n"))
}

/// A snapshot becomes the store; what to tell.
fn restore(
    source: &source::Source,
    db: &Path,
    look: &mut Look<'_>,
    bytes: &mut usize,
) -> Result<String, Refusal> {
    let snapshot = Some((&source.file, source.path.as_path()));
    let done = store::reset(db, snapshot, &mut |key, value| {
        *bytes += value.len();
        look.at(key, value)
    });
    let done = done.map_err(|error| told(&error))?;
    Ok(report(&done, Some(source), look.k3s) + &look.notes())
}

fn told(error: &store::ResetError) -> Refusal {
    let refusal = refusal_of(error);
    if refusal.entry == crate::error_catalogue::RESET { MIGRATE.refuse(error) } else { refusal }
}

fn note(k3s: bool) -> String {
    let text = if k3s {
        "it is k3s's, and its certificates and keys (/bootstrap/...) stay sealed with k3s's token: this server keeps or makes its own, so kubeconfigs, service account tokens and machines of that cluster have to be made or joined anew"
    } else {
        "certificates, keys and tokens of the cluster are not in a datastore: those in server/tls and server/token of this data directory stay, or are made anew"
    };
    format!("{:<10}{text}\n", "note")
}

fn from(args: &MigrateArgs) -> Result<Origin, String> {
    let text = args.from.reveal();
    let tls = datastore::tls(&args.tls);
    if text.contains("://") {
        return Endpoint::parse(text, tls).map(Origin::Datastore);
    }
    let path = PathBuf::from(text);
    let file = match path.is_dir() {
        true => BELOW.iter().map(|below| path.join(below)).find(|file| is_sqlite(file)),
        false => Some(path.clone()).filter(|file| is_sqlite(file)),
    };
    let Some(file) = file else { return Ok(Origin::Etcd(path)) };
    let file = std::fs::canonicalize(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let file = file.to_str().ok_or("the path is no text in UTF-8")?;
    Endpoint::parse(file, tls).map(Origin::Datastore)
}

fn is_sqlite(file: &Path) -> bool {
    let mut begin = [0; SQLITE.len()];
    File::open(file).is_ok_and(|mut file| file.read_exact(&mut begin).is_ok()) && begin == *SQLITE
}
