//! The S3 flags.

use std::time::Duration;

use super::Settings;
use crate::command_line::{Lookup, S3Args};
use crate::error_catalogue::{BAD_VALUE, Refusal};

/// Host of Amazon's service, whose regions have hosts of their own.
const AMAZON: &str = "s3.amazonaws.com";

fn bad(flag: &str, value: &str, why: impl std::fmt::Display) -> Refusal {
    BAD_VALUE.refuse_usage(format!("--etcd-s3-{flag}={value}: {why}"))
}

/// The scheme and the rest.
fn url(args: &S3Args) -> Result<String, Refusal> {
    let given = args.etcd_s3_endpoint.trim().trim_end_matches('/');
    let wrong = |why: &str| bad("endpoint", &args.etcd_s3_endpoint, why);
    let (scheme, host) = match given.split_once("://") {
        None => (if args.etcd_s3_insecure { "http" } else { "https" }, given),
        Some(("https", host)) if !args.etcd_s3_insecure => ("https", host),
        Some(("http", host)) if args.etcd_s3_insecure => ("http", host),
        Some(("http", _)) => return Err(wrong("is HTTP without TLS: add --etcd-s3-insecure")),
        Some(("https", _)) => return Err(wrong("is HTTPS: leave out --etcd-s3-insecure")),
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

/// Whether a name is valid in paths and hosts.
fn plain(flag: &str, value: &str) -> Result<(), Refusal> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let segment = |s: &str| !s.is_empty() && s != "." && s != ".." && s.chars().all(good);
    if value.len() <= 512 && value.split('/').all(segment) {
        return Ok(());
    }
    Err(bad(
        flag,
        value,
        "must be letters, digits, '-', '_' and '.', and of a folder parts of them with '/' between",
    ))
}

/// The bucket of the flags; `None` without `--etcd-s3`.
///
/// # Errors
/// The missing or invalid flag.
pub(crate) fn settings(args: &S3Args) -> Result<Option<Settings>, Refusal> {
    if !args.etcd_s3 {
        return Ok(None);
    }
    let missing = |flag: &str| {
        let text = format!("--etcd-s3 needs --etcd-s3-{flag}");
        BAD_VALUE.refuse_usage(text)
    };
    let endpoint = url(args)?;
    let bucket = args.etcd_s3_bucket.clone().filter(|name| !name.is_empty());
    let bucket = bucket.ok_or_else(|| missing("bucket"))?;
    if bucket.contains('/') {
        return Err(bad(
            "bucket",
            &bucket,
            "is no name of a bucket; a folder in it is --etcd-s3-folder",
        ));
    }
    plain("bucket", &bucket)?;
    plain("region", &args.etcd_s3_region)?;
    let folder = args.etcd_s3_folder.as_deref().unwrap_or_default().trim_matches('/').to_owned();
    if !folder.is_empty() {
        plain("folder", &folder)?;
    }
    let text = |secret: &Option<cluster::token::Secret>| {
        secret.as_ref().map(|s| s.reveal().to_owned()).unwrap_or_default()
    };
    let (access_key, secret_key) = (text(&args.etcd_s3_access_key), text(&args.etcd_s3_secret_key));
    if access_key.is_empty() {
        return Err(missing(
            "access-key (or AWS_ACCESS_KEY_ID); roles of cloud machines are not asked for",
        ));
    }
    if secret_key.is_empty() {
        return Err(missing("secret-key (or AWS_SECRET_ACCESS_KEY)"));
    }
    let ca = match &args.etcd_s3_endpoint_ca {
        None => String::new(),
        Some(path) => {
            let read = base::fs::read_to_string(path);
            let text = read.map_err(|e| bad("endpoint-ca", &path.display().to_string(), e))?;
            match base::pki::certificates(&text) {
                Ok(found) if !found.is_empty() => text,
                Ok(_) => {
                    return Err(bad(
                        "endpoint-ca",
                        &path.display().to_string(),
                        "holds no certificate",
                    ));
                }
                Err(why) => return Err(bad("endpoint-ca", &path.display().to_string(), why)),
            }
        }
    };
    let timeout = crate::command_line::duration(&args.etcd_s3_timeout);
    let timeout = timeout.map_err(|why| bad("timeout", &args.etcd_s3_timeout, why))?;
    if timeout < Duration::from_secs(1) {
        return Err(bad("timeout", &args.etcd_s3_timeout, "must be a second or more"));
    }
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
        session_token: text(&args.etcd_s3_session_token),
        ca,
        unverified: args.etcd_s3_skip_ssl_verify,
        timeout,
        retention: args.etcd_s3_retention,
    }))
}
