//! Reads the S3 flags.

use std::fmt::Display;
use std::time::Duration;

use super::Settings;
use crate::command_line::{Lookup, S3Args};
use crate::error_catalogue::{BAD_VALUE, CommandError};

/// Host of Amazon's service in its first region; every other region has another host.
const AMAZON: &str = "s3.amazonaws.com";

fn bad(flag: &str, value: &str, why: impl Display) -> CommandError {
    BAD_VALUE.usage_error(format!("--etcd-s3-{flag}={value}: {why}"))
}

/// The URL of the service.
fn endpoint_url(args: &S3Args) -> Result<String, CommandError> {
    let endpoint = args.etcd_s3_endpoint.trim().trim_end_matches('/');
    let wrong = |why: &str| bad("endpoint", &args.etcd_s3_endpoint, why);
    let (scheme, host) = match endpoint.split_once("://") {
        None => (if args.etcd_s3_insecure { "http" } else { "https" }, endpoint),
        Some(("https", host)) if !args.etcd_s3_insecure => ("https", host),
        Some(("http", host)) if args.etcd_s3_insecure => ("http", host),
        Some(("http", _)) => return Err(wrong("is HTTP without TLS: add --etcd-s3-insecure")),
        Some(("https", _)) => return Err(wrong("is HTTPS: remove --etcd-s3-insecure")),
        Some(_) => return Err(wrong("must be HOST, HOST:PORT or a URL of http or https")),
    };
    if host.is_empty() || host.contains(['@', '?', '#', ' ']) {
        return Err(wrong("must be HOST, HOST:PORT or a URL of http or https"));
    }
    let host = match (host, args.etcd_s3_region.as_str()) {
        (AMAZON, "us-east-1") => AMAZON.to_owned(),
        (AMAZON, region) => format!("s3.{region}.amazonaws.com"),
        (host, _) => host.to_owned(),
    };
    Ok(format!("{scheme}://{host}"))
}

/// Checks that a value is valid in paths and hosts.
fn check_plain(flag: &str, value: &str) -> Result<(), CommandError> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let segment = |s: &str| !s.is_empty() && s != "." && s != ".." && s.chars().all(good);
    if value.len() <= 512 && value.split('/').all(segment) {
        return Ok(());
    }
    Err(bad(
        flag,
        value,
        "must be letters, digits, '-', '_' and '.'; the parts of a folder are separated by '/'",
    ))
}

fn missing(flag: &str) -> CommandError {
    BAD_VALUE.usage_error(format!("--etcd-s3 needs --etcd-s3-{flag}"))
}

/// The name of the bucket.
fn bucket_name(args: &S3Args) -> Result<String, CommandError> {
    let bucket = args.etcd_s3_bucket.clone().filter(|name| !name.is_empty());
    let bucket = bucket.ok_or_else(|| missing("bucket"))?;
    if bucket.contains('/') {
        let why = "is not the name of a bucket; use --etcd-s3-folder for a folder in it";
        return Err(bad("bucket", &bucket, why));
    }
    check_plain("bucket", &bucket)?;
    Ok(bucket)
}

/// The folder in the bucket; empty for none.
fn folder(args: &S3Args) -> Result<String, CommandError> {
    let folder = args.etcd_s3_folder.as_deref().unwrap_or_default().trim_matches('/').to_owned();
    if !folder.is_empty() {
        check_plain("folder", &folder)?;
    }
    Ok(folder)
}

/// Access key, secret key and session token; the last one may be empty.
fn credentials(args: &S3Args) -> Result<[String; 3], CommandError> {
    let text = |secret: &Option<cluster::token::Secret>| {
        secret.as_ref().map(|s| s.reveal().to_owned()).unwrap_or_default()
    };
    let (access_key, secret_key) = (text(&args.etcd_s3_access_key), text(&args.etcd_s3_secret_key));
    if access_key.is_empty() {
        return Err(missing(
            "access-key (or AWS_ACCESS_KEY_ID); roles of cloud machines are not supported",
        ));
    }
    if secret_key.is_empty() {
        return Err(missing("secret-key (or AWS_SECRET_ACCESS_KEY)"));
    }
    Ok([access_key, secret_key, text(&args.etcd_s3_session_token)])
}

/// The CA certificates in PEM; empty for those of the system.
fn ca_certificates(args: &S3Args) -> Result<String, CommandError> {
    let Some(path) = &args.etcd_s3_endpoint_ca else { return Ok(String::new()) };
    let wrong = |why: &dyn Display| bad("endpoint-ca", &path.display().to_string(), why);
    let text = base::fs::read_to_string(path).map_err(|e| wrong(&e))?;
    match base::pki::certificates(&text) {
        Ok(found) if !found.is_empty() => Ok(text),
        Ok(_) => Err(wrong(&"holds no certificate")),
        Err(why) => Err(wrong(&why)),
    }
}

fn timeout(args: &S3Args) -> Result<Duration, CommandError> {
    let wrong = |why: &dyn Display| bad("timeout", &args.etcd_s3_timeout, why);
    let timeout =
        crate::command_line::duration(&args.etcd_s3_timeout).map_err(|why| wrong(&why))?;
    if timeout < Duration::from_secs(1) {
        return Err(wrong(&"must be a second or more"));
    }
    Ok(timeout)
}

/// The bucket of the flags; `None` without `--etcd-s3`.
///
/// # Errors
/// The missing or invalid flag.
pub(crate) fn from_args(args: &S3Args) -> Result<Option<Settings>, CommandError> {
    if !args.etcd_s3 {
        return Ok(None);
    }
    let endpoint = endpoint_url(args)?;
    let bucket = bucket_name(args)?;
    check_plain("region", &args.etcd_s3_region)?;
    let folder = folder(args)?;
    let [access_key, secret_key, session_token] = credentials(args)?;
    let ca = ca_certificates(args)?;
    let timeout = timeout(args)?;
    // A wildcard certificate for buckets does not cover names with dots.
    let by_host = match args.etcd_s3_bucket_lookup_type {
        Lookup::Dns => true,
        Lookup::Path => false,
        Lookup::Auto => {
            endpoint.ends_with(".amazonaws.com") && (args.etcd_s3_insecure || !bucket.contains('.'))
        }
    };
    Ok(Some(Settings {
        endpoint,
        by_host,
        bucket,
        region: args.etcd_s3_region.clone(),
        folder,
        access_key,
        secret_key,
        session_token,
        ca,
        unverified: args.etcd_s3_skip_ssl_verify,
        timeout,
        retention: args.etcd_s3_retention,
    }))
}
