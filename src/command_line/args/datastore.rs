//! Flags for external datastores: of servers and of `kube-lite migrate`.

use std::path::PathBuf;

use clap::Args;
use cluster::token::Secret;

/// Datastore flags of a server.
#[derive(Debug, Args, Clone, Default)]
pub struct DatastoreArgs {
    /// External datastore for a single server: sqlite:///PATH,
    /// postgres://USER:PASSWORD@HOST/DATABASE, mysql://USER:PASSWORD@tcp(HOST)/DATABASE, or
    /// https://HOST:PORT[,...] of an etcd 3.4 or later [env: KUBE_LITE_DATASTORE_ENDPOINT]
    #[arg(long, value_name = "ENDPOINT", help_heading = "Datastore")]
    pub datastore_endpoint: Option<Secret>,
    #[command(flatten)]
    pub tls: DatastoreTlsArgs,
}

/// TLS files of the connection to a datastore.
#[derive(Debug, Args, Clone, Default)]
pub struct DatastoreTlsArgs {
    /// CA of the datastore's certificate [env: KUBE_LITE_DATASTORE_CAFILE]
    #[arg(long, value_name = "FILE", help_heading = "Datastore")]
    pub datastore_cafile: Option<PathBuf>,
    /// Client certificate for the datastore [env: KUBE_LITE_DATASTORE_CERTFILE]
    #[arg(long, value_name = "FILE", help_heading = "Datastore")]
    pub datastore_certfile: Option<PathBuf>,
    /// Key of the client certificate [env: KUBE_LITE_DATASTORE_KEYFILE]
    #[arg(long, value_name = "FILE", help_heading = "Datastore")]
    pub datastore_keyfile: Option<PathBuf>,
}

/// Flags of `kube-lite migrate`.
#[derive(Debug, Args, Clone)]
pub struct MigrateArgs {
    /// Source of the data: sqlite:///PATH, postgres://..., mysql://..., https://HOST:PORT[,...] of
    /// a running etcd, or the path of a k3s data directory, a state.db, an etcd data directory or
    /// an etcd snapshot
    #[arg(long, value_name = "ENDPOINT|PATH")]
    pub from: Secret,
    /// Data directory of the server to copy into; it must not have a store yet [env:
    /// KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub tls: DatastoreTlsArgs,
}
