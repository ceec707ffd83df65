//! Flags about external datastores: of the server that uses one, and of `kube-lite migrate`.

use std::path::PathBuf;

use clap::Args;
use cluster::token::Secret;

/// Flags of a server.
#[derive(Debug, Args, Clone, Default)]
pub struct DatastoreArgs {
    /// Keep the cluster in this database, in the schema of k3s, instead of the embedded store: sqlite:///PATH,
    /// postgres://USER:PASSWORD@HOST:PORT/DATABASE or mysql://USER:PASSWORD@tcp(HOST:PORT)/DATABASE; or in this etcd, from
    /// 3.4 on, as upstream's API server does: https://HOST:PORT[,https://HOST:PORT...] or http://HOST:PORT; one server at a time
    /// [env: KUBE_LITE_DATASTORE_ENDPOINT]
    #[arg(long, value_name = "ENDPOINT", help_heading = "Datastore")]
    pub datastore_endpoint: Option<Secret>,
    #[command(flatten)]
    pub tls: DatastoreTlsArgs,
}

/// Certificates for the way to a datastore.
#[derive(Debug, Args, Clone, Default)]
pub struct DatastoreTlsArgs {
    /// CA that the datastore's certificate must come from [env: KUBE_LITE_DATASTORE_CAFILE]
    #[arg(long, value_name = "FILE", help_heading = "Datastore")]
    pub datastore_cafile: Option<PathBuf>,
    /// Certificate to show the datastore [env: KUBE_LITE_DATASTORE_CERTFILE]
    #[arg(long, value_name = "FILE", help_heading = "Datastore")]
    pub datastore_certfile: Option<PathBuf>,
    /// Key of that certificate [env: KUBE_LITE_DATASTORE_KEYFILE]
    #[arg(long, value_name = "FILE", help_heading = "Datastore")]
    pub datastore_keyfile: Option<PathBuf>,
}

/// Flags of `kube-lite migrate`.
#[derive(Debug, Args, Clone)]
pub struct MigrateArgs {
    /// What to take the data of: sqlite:///PATH, postgres://..., mysql://..., https://HOST:PORT[,...] of an etcd that runs, or the
    /// path of a k3s data directory, a state.db, an etcd data directory or an etcd snapshot
    #[arg(long, value_name = "ENDPOINT|PATH")]
    pub from: Secret,
    /// Data directory of the server that gets the data; it must have no store yet [env: KUBE_LITE_DATA_DIR]
    #[arg(long, short = 'd', value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub tls: DatastoreTlsArgs,
}
