//! Flags about S3, for servers and for the commands about snapshots.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use cluster::token::Secret;

/// Where snapshots are kept besides the folder.
#[derive(Debug, Args, Clone)]
#[command(next_help_heading = "S3")]
pub struct S3Args {
    /// Keep snapshots in a bucket of S3, too; what is restored is taken from there
    #[arg(long, alias = "s3", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub etcd_s3: bool,
    /// Host, with its port, or URL of the service
    #[arg(long, alias = "s3-endpoint", value_name = "HOST", default_value = "s3.amazonaws.com")]
    pub etcd_s3_endpoint: String,
    /// PEM file of those who vouch for it, instead of those whom this machine trusts
    #[arg(long, alias = "s3-endpoint-ca", value_name = "FILE")]
    pub etcd_s3_endpoint_ca: Option<PathBuf>,
    /// Believe any server
    #[arg(long, alias = "s3-skip-ssl-verify", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub etcd_s3_skip_ssl_verify: bool,
    /// HTTP without TLS
    #[arg(long, alias = "s3-insecure", num_args = 0..=1, default_missing_value = "true", default_value = "false", require_equals = true)]
    pub etcd_s3_insecure: bool,
    /// Access key [env: AWS_ACCESS_KEY_ID]
    #[arg(long, alias = "s3-access-key", value_name = "KEY")]
    pub etcd_s3_access_key: Option<Secret>,
    /// Its secret [env: AWS_SECRET_ACCESS_KEY]
    #[arg(long, alias = "s3-secret-key", value_name = "KEY")]
    pub etcd_s3_secret_key: Option<Secret>,
    /// Token of keys that hold for a time [env: AWS_SESSION_TOKEN]
    #[arg(long, alias = "s3-session-token", value_name = "TOKEN")]
    pub etcd_s3_session_token: Option<Secret>,
    /// Bucket
    #[arg(long, alias = "s3-bucket", value_name = "NAME")]
    pub etcd_s3_bucket: Option<String>,
    /// Whether the bucket's name is part of the host's or of the path; auto: of the host's at amazonaws.com
    #[arg(long, alias = "s3-bucket-lookup-type", value_enum, default_value_t = Lookup::Auto)]
    pub etcd_s3_bucket_lookup_type: Lookup,
    /// Region
    #[arg(long, alias = "s3-region", value_name = "REGION", default_value = "us-east-1")]
    pub etcd_s3_region: String,
    /// Folder in the bucket
    #[arg(long, alias = "s3-folder", value_name = "PATH")]
    pub etcd_s3_folder: Option<String>,
    /// How many scheduled snapshots are kept in the bucket; 0 keeps all
    #[arg(long, alias = "s3-retention", value_name = "N", default_value_t = 5)]
    pub etcd_s3_retention: usize,
    /// Time for one request
    #[arg(long, alias = "s3-timeout", value_name = "DURATION", default_value = "5m0s")]
    pub etcd_s3_timeout: String,
}

/// Where the bucket's name stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Lookup {
    /// As the endpoint has it.
    Auto,
    /// In the host's name.
    Dns,
    /// In the path.
    Path,
}
