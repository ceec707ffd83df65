//! `kube-lite token`: manages bootstrap tokens through the API, and the server's token in its file.

mod ttl;

use std::path::PathBuf;
use std::sync::Arc;

use api::k8s::ByteString;
use api::k8s::api::core::v1::Secret as SecretObject;
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use base::pki::reloadable_cert::LiveCert;
use base::pki::{self, Leaf, tls};
use client::{Client, DeleteOptions, HttpsTransport, Kubeconfig, ListOptions};
use cluster::token::files::TokenFiles;
use cluster::token::{Credentials, Secret, bootstrap_parts, new_bootstrap, parse};
use serde_json::json;
use sorting::CompactSort as _;

use super::{Command, Environment, Output, block_on, install_tls};
use crate::command_line::{
    CreateArgs, DeleteArgs, ListArgs, Locations, RotateArgs, StatusOutput, TokenArgs, TokenCommand,
    duration,
};
use crate::error_catalogue::{BAD_VALUE, CommandError, TOKEN_COMMAND};

/// Type, namespace and name prefix of the Secrets (`k8s.io/cluster-bootstrap/token/api`).
const TYPE: &str = "bootstrap.kubernetes.io/token";
const NAMESPACE: &str = "kube-system";
const PREFIX: &str = "bootstrap-token-";

/// Defaults of flags that are not set.
struct Settings {
    /// Default locations.
    locations: Locations,
    /// The variable `KUBECONFIG`.
    kubeconfig: Option<PathBuf>,
    /// The variable `KUBE_LITE_DATA_DIR`.
    data_dir: Option<PathBuf>,
}

impl Command for TokenArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, CommandError> {
        install_tls();
        let settings = Settings {
            locations: environment.locations(),
            kubeconfig: environment.variable("KUBECONFIG").map(PathBuf::from),
            data_dir: crate::command_line::data_dir(environment.lookup),
        };
        block_on(TOKEN_COMMAND, || run(&self.command, &settings)).map(Output::from)
    }
}

/// Runs a subcommand; its output.
async fn run(command: &TokenCommand, settings: &Settings) -> Result<String, CommandError> {
    match command {
        TokenCommand::Create(args) => create(args, settings).await,
        TokenCommand::List(args) => list(args, settings).await,
        TokenCommand::Delete(args) => delete(args, settings).await,
        TokenCommand::Generate => Ok(format!("{}\n", new_bootstrap())),
        TokenCommand::Rotate(args) => rotate(args, settings),
    }
}

fn failed(error: impl std::fmt::Display) -> CommandError {
    TOKEN_COMMAND.error(error)
}

/// A client of the administrator, and the CA that it trusts.
fn connect(flag: Option<&PathBuf>, settings: &Settings) -> Result<(Client, String), CommandError> {
    let default = settings.locations.config.join("kube-lite.yaml");
    let path = flag.or(settings.kubeconfig.as_ref()).unwrap_or(&default);
    let config = Kubeconfig::read(path).map_err(failed)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ca_pem = text(&config.ca);
    let ca = pki::certificates(&ca_pem).map_err(failed)?;
    let leaf = Leaf {
        cert_pem: text(&config.certificate),
        key_pem: text(&config.key).into(),
        not_after: 0,
    };
    let cert =
        if leaf.cert_pem.is_empty() { None } else { Some(LiveCert::new(&leaf).map_err(failed)?) };
    let tls = tls::client(&ca, cert, &[]).map_err(failed)?;
    let transport = HttpsTransport::new(&config.server, tls, &config.token).map_err(failed)?;
    Ok((Client::new(Arc::new(transport), "kube-lite-token"), ca_pem))
}

async fn create(args: &CreateArgs, settings: &Settings) -> Result<String, CommandError> {
    let token = match &args.token {
        Some(token) => token.reveal().trim().to_owned(),
        None => new_bootstrap(),
    };
    let object = token_secret(args, &token)?;
    let (client, ca_pem) = connect(args.cluster.kubeconfig.as_ref(), settings)?;
    client.create(NAMESPACE, &object).await.map_err(failed)?;
    let whole = parse(&token).map_err(failed)?.render(&ca_pem).map_err(failed)?;
    Ok(format!("{whole}\n"))
}

/// The Secret of a new bootstrap token.
fn token_secret(args: &CreateArgs, token: &str) -> Result<SecretObject, CommandError> {
    let (id, secret) = bootstrap_parts(token).ok_or_else(|| {
        BAD_VALUE.usage_error("the token must be ID.SECRET, 6 and 16 characters of a-z and 0-9")
    })?;
    if let Some(group) = args.groups.iter().find(|g| !g.starts_with("system:bootstrappers:")) {
        let text = format!("--groups={group}: must start with system:bootstrappers:");
        return Err(BAD_VALUE.usage_error(text));
    }
    let ttl = duration(&args.ttl)
        .map_err(|why| BAD_VALUE.usage_error(format!("--ttl={}: {why}", args.ttl)))?;
    let mut data = vec![("token-id", id.to_owned()), ("token-secret", secret.to_owned())];
    if !ttl.is_zero() {
        let end = jiff::Timestamp::now()
            .checked_add(jiff::SignedDuration::from_secs(
                i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX),
            ))
            .map_err(|_| BAD_VALUE.usage_error(format!("--ttl={}: is too long", args.ttl)))?;
        data.push(("expiration", ttl::rfc3339(end)));
    }
    if !args.description.is_empty() {
        data.push(("description", args.description.clone()));
    }
    for usage in &args.usages {
        let key = if usage == "signing" {
            "usage-bootstrap-signing"
        } else {
            "usage-bootstrap-authentication"
        };
        data.push((key, "true".to_owned()));
    }
    if !args.groups.is_empty() {
        data.push(("auth-extra-groups", args.groups.join(",")));
    }
    Ok(SecretObject {
        metadata: ObjectMeta {
            name: Some(format!("{PREFIX}{id}")),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(TYPE.to_owned()),
        data: Some(
            data.into_iter().map(|(k, v)| (k.to_owned(), ByteString(v.into_bytes()))).collect(),
        ),
        ..SecretObject::default()
    })
}

/// One token of the list.
struct TokenRow {
    token: String,
    description: String,
    expires: String,
    usages: String,
    groups: String,
}

fn token_row(secret: &SecretObject) -> Option<TokenRow> {
    let data = secret.data.as_ref().filter(|_| secret.type_.as_deref() == Some(TYPE))?;
    let text = |key: &str| {
        data.get(key).map(|v| String::from_utf8_lossy(&v.0).into_owned()).unwrap_or_default()
    };
    let mut usages = Vec::new();
    for (key, usage) in [
        ("usage-bootstrap-authentication", "authentication"),
        ("usage-bootstrap-signing", "signing"),
    ] {
        if text(key) == "true" {
            usages.push(usage);
        }
    }
    Some(TokenRow {
        token: format!("{}.{}", text("token-id"), text("token-secret")),
        description: text("description"),
        expires: text("expiration"),
        usages: usages.join(","),
        groups: text("auth-extra-groups"),
    })
}

async fn list(args: &ListArgs, settings: &Settings) -> Result<String, CommandError> {
    let (client, _) = connect(args.cluster.kubeconfig.as_ref(), settings)?;
    let fields = format!("type={TYPE}");
    let options = ListOptions { fields: &fields, ..ListOptions::default() };
    let secrets = client.list::<SecretObject>(NAMESPACE, &options).await.map_err(failed)?;
    let mut all: Vec<TokenRow> = secrets.iter().filter_map(token_row).collect();
    all.compact_sort_by(|a, b| a.token.cmp(&b.token));
    if args.output == StatusOutput::Json {
        let all: Vec<_> = all
            .iter()
            .map(|t| {
                json!({"token": t.token, "description": t.description, "expires": t.expires, "usages": t.usages, "groups": t.groups})
            })
            .collect();
        return Ok(serde_json::to_string_pretty(&all).unwrap_or_default() + "\n");
    }
    let or = |text: &str, absent: &str| {
        if text.is_empty() { absent.to_owned() } else { text.to_owned() }
    };
    let now = jiff::Timestamp::now();
    let mut text = row("TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION");
    for token in &all {
        text.push_str(&row(
            &token.token,
            &ttl::left(&token.expires, now),
            &or(&token.expires, "<never>"),
            &or(&token.usages, "<none>"),
            &or(&token.description, "<none>"),
        ));
    }
    Ok(text)
}

fn row(token: &str, ttl: &str, expires: &str, usages: &str, description: &str) -> String {
    format!("{token:<25} {ttl:<10} {expires:<22} {usages:<24} {description}\n")
}

/// The id in `id`, `id.secret` or a whole token.
fn id_of(text: &Secret) -> Option<String> {
    let text = text.reveal().trim();
    if text.len() == 6 && bootstrap_parts(&format!("{text}.0123456789abcdef")).is_some() {
        return Some(text.to_owned());
    }
    match parse(text).ok()?.credentials {
        Credentials::Bootstrap(token) => {
            bootstrap_parts(token.reveal()).map(|(id, _)| id.to_owned())
        }
        Credentials::Shared { .. } => None,
    }
}

async fn delete(args: &DeleteArgs, settings: &Settings) -> Result<String, CommandError> {
    let ids = args.ids.iter().map(id_of).collect::<Option<Vec<_>>>().ok_or_else(|| {
        BAD_VALUE.usage_error(
            "name the token to delete by its id, 6 characters of a-z and 0-9, or by the whole token",
        )
    })?;
    let (client, _) = connect(args.cluster.kubeconfig.as_ref(), settings)?;
    let mut text = String::new();
    for id in ids {
        let (name, options) = (format!("{PREFIX}{id}"), DeleteOptions::default());
        match client.delete::<SecretObject>(NAMESPACE, &name, &options).await {
            Ok(()) => text.push_str(&format!("bootstrap token {id} deleted\n")),
            Err(error) if error.is_not_found() => {
                return Err(failed(format!("{text}there is no bootstrap token {id}")));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(text)
}

fn rotate(args: &RotateArgs, settings: &Settings) -> Result<String, CommandError> {
    let data_dir = args.data_dir.as_ref().or(settings.data_dir.as_ref());
    let data_dir = data_dir.unwrap_or(&settings.locations.data);
    let ca =
        base::fs::read_to_string(&data_dir.join("server/tls/server-ca.crt")).map_err(failed)?;
    let whole = TokenFiles::new(data_dir).rotate(&ca, args.new_token.as_ref()).map_err(failed)?;
    Ok(format!("{whole}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_named_by_id_or_by_the_whole_token() {
        let id = |text: &str| id_of(&text.parse().unwrap());
        let hash = "0".repeat(64);
        for text in
            ["abcdef", "abcdef.0123456789abcdef", &format!("K10{hash}::abcdef.0123456789abcdef")]
        {
            assert_eq!(id(text).as_deref(), Some("abcdef"), "{text}");
        }
        for text in ["", "abcde", "ABCDEF", "a-secret", &format!("K10{hash}::server:x")] {
            assert_eq!(id(text), None, "{text}");
        }
    }

    #[test]
    fn a_row_shows_the_fields_of_the_secret() {
        let entry = |k: &str, v: &str| (k.to_owned(), ByteString(v.as_bytes().to_vec()));
        let data = [
            entry("token-id", "abcdef"),
            entry("token-secret", "0123456789abcdef"),
            entry("usage-bootstrap-authentication", "true"),
            entry("usage-bootstrap-signing", "true"),
        ];
        let mut secret = SecretObject { data: Some(data.into()), ..SecretObject::default() };
        assert!(token_row(&secret).is_none());
        secret.type_ = Some(TYPE.into());
        let token = token_row(&secret).unwrap();
        assert_eq!(token.token, "abcdef.0123456789abcdef");
        assert_eq!((token.usages.as_str(), token.expires.as_str()), ("authentication,signing", ""));
    }
}
