//! `--datastore-endpoint`: an external database or etcd instead of the embedded store.
//!
//! The server keeps an embedded store without keys in a folder of the data directory. It holds the
//! identity of the member, and its leadership decides where the controllers run.

use std::path::PathBuf;
use std::sync::Arc;

use base::Tasks;
use store::{Backend, DatastoreError, DatastoreTls, Endpoint, Holder, open_external};

use crate::command_line::{DatastoreTlsArgs, ServerArgs};
use crate::error_catalogue::{BAD_VALUE, CommandError, DATA_DIR, DATASTORE};
use crate::server::config::Config;

/// Folder of the embedded store without keys, below `server/db`.
pub(crate) const FOLDER: &str = "external";

/// Certificates as the flags name them.
pub(crate) fn tls(args: &DatastoreTlsArgs) -> DatastoreTls {
    DatastoreTls {
        ca: args.datastore_cafile.clone(),
        certificate: args.datastore_certfile.clone(),
        key: args.datastore_keyfile.clone(),
    }
}

/// The datastore that the flags name.
///
/// # Errors
/// An invalid flag, or one that needs the embedded store.
pub(crate) fn endpoint(args: &ServerArgs) -> Result<Option<Endpoint>, CommandError> {
    let bad =
        |why: &dyn std::fmt::Display| BAD_VALUE.usage_error(format!("--datastore-endpoint: {why}"));
    let tls = tls(&args.datastore.tls);
    let Some(text) = &args.datastore.datastore_endpoint else {
        if tls != DatastoreTls::default() {
            let why =
                "is required by --datastore-cafile, --datastore-certfile and --datastore-keyfile";
            return Err(bad(&why));
        }
        return Ok(None);
    };
    let endpoint = Endpoint::parse(text.reveal(), tls).map_err(|why| bad(&why))?;
    let embedded = [
        ("--server", args.server.is_some(), "an external datastore has one server"),
        ("--cluster-init", args.cluster_init, "an external datastore has one server"),
        (
            "--cluster-reset",
            args.snapshots.cluster_reset,
            "restore the datastore with its own tools",
        ),
        (
            "--etcd-quota-backend-bytes",
            args.etcd_quota_backend_bytes.is_some(),
            "the datastore has its own limits",
        ),
    ];
    match embedded.iter().find(|(_, given, _)| *given) {
        Some((flag, _, why)) => Err(bad(&format!("{flag} needs the embedded store: {why}"))),
        None => Ok(Some(endpoint)),
    }
}

/// The folder of the embedded store: the one of the cluster, or the one without keys.
///
/// # Errors
/// The data directory has data of the other kind.
pub(crate) fn folder(config: &Config) -> Result<PathBuf, CommandError> {
    let db = config.machine.data_dir.join("server/db");
    let external = db.join(FOLDER);
    let has =
        store::has_store(&db).map_err(|e| DATA_DIR.error(format!("{}: {e}", db.display())))?;
    match (&config.datastore, has) {
        (Some(endpoint), true) => Err(DATA_DIR.error(format!(
            "{} contains the store of a cluster, which {endpoint} would not use: give another --data-dir, or remove --datastore-endpoint",
            db.display()
        ))),
        (Some(_), false) => Ok(external),
        (None, false) if external.exists() => Err(DATA_DIR.error(format!(
            "this server's cluster is in an external datastore: give --datastore-endpoint, or copy it into the embedded store with `kube-lite migrate --from ENDPOINT --data-dir {}`",
            config.machine.data_dir.display()
        ))),
        (None, _) => Ok(db),
    }
}

/// Opens the datastore exclusively for this server; `member` is its member id.
///
/// # Errors
/// Why the datastore cannot be used, and which server has it.
pub(crate) async fn open(
    endpoint: &Endpoint,
    config: &Config,
    member: u64,
    store_tasks: &Tasks,
) -> Result<Arc<dyn Backend>, CommandError> {
    let holder = Holder { id: member, name: config.machine.node_name.clone() };
    let opened = open_external(endpoint.clone(), Some(holder), store_tasks).await;
    opened.map_err(|error: DatastoreError| DATASTORE.error(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::{Cli, Command, parse};

    fn parsed(flags: &[&str]) -> Result<Option<String>, String> {
        let argv = ["kube-lite", "server", "--config=/dev/null"].iter().chain(flags);
        let Ok(Cli { command: Command::Server(args) }) =
            parse(argv.map(Into::into).collect(), |_| None)
        else {
            return Err("does not parse".into());
        };
        assert!(!format!("{args:?}").contains("hunter2"), "{args:?}");
        endpoint(&args).map(|e| e.map(|e| e.to_string())).map_err(|r| r.details)
    }

    #[test]
    fn flags_that_need_the_embedded_store_are_rejected_by_name() {
        let endpoint = "--datastore-endpoint=postgres://u:hunter2@h/k";
        assert_eq!(parsed(&[]), Ok(None));
        assert_eq!(parsed(&[endpoint]), Ok(Some("postgres://u@h/k".to_owned())));
        for flag in [
            "--cluster-init",
            "--server=https://h:6443",
            "--cluster-reset",
            "--etcd-quota-backend-bytes=1",
        ] {
            let name = flag.split('=').next().unwrap_or_default();
            let refused = parsed(&[endpoint, flag]).unwrap_err();
            assert!(refused.contains(&format!("{name} needs the embedded store")), "{refused}");
        }
        let refused = parsed(&["--datastore-cafile=/ca"]).unwrap_err();
        assert!(refused.starts_with("--datastore-endpoint: is required by"), "{refused}");
        let etcd = "--datastore-endpoint=https://10.0.0.1:2379,https://10.0.0.2:2379";
        assert_eq!(
            parsed(&[
                etcd,
                "--datastore-cafile=/ca",
                "--datastore-certfile=/c",
                "--datastore-keyfile=/k"
            ]),
            Ok(Some("https://10.0.0.1:2379,https://10.0.0.2:2379".to_owned()))
        );
        let refused = parsed(&[etcd, "--datastore-certfile=/c"]).unwrap_err();
        assert!(refused.contains("given together"), "{refused}");
        let refused = parsed(&["--datastore-endpoint=oracle://u:hunter2@h"]).unwrap_err();
        assert!(refused.contains("no driver oracle") && !refused.contains("hunter2"), "{refused}");
    }
}
