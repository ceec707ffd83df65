//! S3 flags of servers and of `kube-lite etcd-snapshot`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use cluster::token::Secret;

use client::proxy::EnvironmentProxies;

/// The S3 bucket that snapshots are also stored in.
#[derive(Debug, Args, Clone)]
#[command(next_help_heading = "S3")]
pub struct S3Args {
    /// Also store snapshots in an S3 bucket; restores read from it
    #[arg(long, alias = "s3")]
    pub etcd_s3: bool,
    /// S3 endpoint: HOST, HOST:PORT or URL
    #[arg(long, alias = "s3-endpoint", value_name = "HOST", default_value = "s3.amazonaws.com")]
    pub etcd_s3_endpoint: String,
    /// CA certificates (PEM) for the endpoint, instead of the system's
    #[arg(long, alias = "s3-endpoint-ca", value_name = "FILE")]
    pub etcd_s3_endpoint_ca: Option<PathBuf>,
    /// Do not verify the server's TLS certificate
    #[arg(long, alias = "s3-skip-ssl-verify")]
    pub etcd_s3_skip_ssl_verify: bool,
    /// Use HTTP without TLS
    #[arg(long, alias = "s3-insecure")]
    pub etcd_s3_insecure: bool,
    /// Access key [env: AWS_ACCESS_KEY_ID]
    #[arg(long, alias = "s3-access-key", value_name = "KEY")]
    pub etcd_s3_access_key: Option<Secret>,
    /// Secret key [env: AWS_SECRET_ACCESS_KEY]
    #[arg(long, alias = "s3-secret-key", value_name = "KEY")]
    pub etcd_s3_secret_key: Option<Secret>,
    /// Session token of temporary credentials [env: AWS_SESSION_TOKEN]
    #[arg(long, alias = "s3-session-token", value_name = "TOKEN")]
    pub etcd_s3_session_token: Option<Secret>,
    /// Name of the bucket
    #[arg(long, alias = "s3-bucket", value_name = "NAME")]
    pub etcd_s3_bucket: Option<String>,
    /// Bucket addressing: dns puts the bucket name into the host name, path into the URL path;
    /// auto: dns for amazonaws.com, path otherwise
    #[arg(long, alias = "s3-bucket-lookup-type", value_enum, default_value_t = Lookup::Auto)]
    pub etcd_s3_bucket_lookup_type: Lookup,
    /// Region of the bucket
    #[arg(long, alias = "s3-region", value_name = "REGION", default_value = "us-east-1")]
    pub etcd_s3_region: String,
    /// Folder in the bucket
    #[arg(long, alias = "s3-folder", value_name = "PATH")]
    pub etcd_s3_folder: Option<String>,
    /// Number of scheduled snapshots to keep in the bucket; 0 keeps all
    #[arg(long, alias = "s3-retention", value_name = "N", default_value_t = 5)]
    pub etcd_s3_retention: usize,
    /// Timeout of one request
    #[arg(long, alias = "s3-timeout", value_name = "DURATION", default_value = "5m0s")]
    pub etcd_s3_timeout: String,
    /// HTTP proxy for the endpoint, or none [default: that of HTTPS_PROXY, HTTP_PROXY and
    /// NO_PROXY]
    #[arg(long, alias = "s3-proxy", value_name = "URL")]
    pub etcd_s3_proxy: Option<Secret>,
    /// Secret in kube-system with all other settings of S3; used if no other flag of S3 is set,
    /// and not for restores
    #[arg(long, alias = "s3-config-secret", value_name = "NAME")]
    pub etcd_s3_config_secret: Option<String>,
    /// The proxies of the environment.
    #[arg(skip)]
    pub(crate) proxies: EnvironmentProxies,
}

/// Bucket addressing style.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Lookup {
    /// `Dns` for amazonaws.com, `Path` otherwise.
    Auto,
    /// The bucket name is part of the host name.
    Dns,
    /// The bucket name is the first segment of the path.
    Path,
}
