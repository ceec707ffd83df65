//! The extenders of the configuration (`validateExtenders`, `NewHTTPExtender`).

use std::collections::BTreeSet;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use api::codec::time::parse_duration;
use api::field::{Error, Path};
use api::validation::core::resources::is_extended;
use api::validation::names::qualified_name;
use base::pki::Leaf;
use base::pki::reloadable_cert::LiveCert;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use component_config::strict_config::Reader;
use http::Uri;
use serde_json::{Map, Value};
use webhook::kubeconfig::{Trust, WebhookEndpoint};

use super::integer;
use crate::extender::Extender;

/// Limit of a call of an extender without one of its own (`DefaultExtenderTimeout`).
const TIMEOUT: Duration = Duration::from_secs(5);
const FIELDS: &[&str] = &[
    "urlPrefix",
    "filterVerb",
    "preemptVerb",
    "prioritizeVerb",
    "weight",
    "bindVerb",
    "enableHTTPS",
    "tlsConfig",
    "httpTimeout",
    "nodeCacheCapable",
    "managedResources",
    "ignorable",
];
const TLS_FIELDS: &[&str] =
    &["insecure", "serverName", "certFile", "keyFile", "caFile", "certData", "keyData", "caData"];

type Object = Map<String, Value>;

/// The extenders of a file.
#[derive(Default)]
pub(super) struct ConfiguredExtenders {
    pub(super) extenders: Vec<Extender>,
    /// Resources that the filter of NodeResourcesFit ignores.
    pub(super) ignored_resources: BTreeSet<String>,
    /// Fields without effect, with the reason.
    pub(super) without_effect: Vec<(String, &'static str)>,
}

/// Reads and validates `extenders`.
pub(super) fn read(reader: &mut Reader, map: &Object) -> ConfiguredExtenders {
    let mut all = ConfiguredExtenders::default();
    let mut managed = BTreeSet::new();
    let mut binders = 0;
    for (path, extender) in reader.objects(map, "extenders", &Path::default()) {
        reader.known(extender, &path.to_string(), FIELDS);
        let prioritize_verb = reader.text(extender, "prioritizeVerb", &path);
        let weight = integer(reader, extender, "weight", &path).unwrap_or(0);
        if !prioritize_verb.is_empty() && weight <= 0 {
            let why = "must have a positive weight applied to it";
            reader.errors.push(Error::invalid(&path.child("weight"), weight, why));
        }
        let bind_verb = reader.text(extender, "bindVerb", &path);
        binders += usize::from(!bind_verb.is_empty());
        let managed_resources = resources(reader, extender, &path, &mut managed, &mut all);
        let url_prefix = reader.text(extender, "urlPrefix", &path);
        let tls = tls(reader, extender, &path);
        let timeout = timeout(reader, extender, &path);
        let filter_verb = reader.text(extender, "filterVerb", &path);
        let preempt_verb = reader.text(extender, "preemptVerb", &path);
        let node_cache_capable = reader.boolean(extender, "nodeCacheCapable", &path);
        let ignorable = reader.boolean(extender, "ignorable", &path);
        let verbs = [&filter_verb, &prioritize_verb, &preempt_verb, &bind_verb];
        let Some(endpoint) = endpoint(reader, &path, (&url_prefix, &verbs), tls) else { continue };
        if endpoint.tls.is_none() {
            for field in ["enableHTTPS", "tlsConfig"] {
                let is_set = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
                if extender.get(field).is_some_and(is_set) {
                    let why = "urlPrefix is an http:// URL, so the connection is not encrypted";
                    all.without_effect.push((path.child(field).to_string(), why));
                }
            }
        }
        all.extenders.push(Extender {
            index: 0,
            url_prefix,
            endpoint,
            filter_verb,
            prioritize_verb,
            preempt_verb,
            bind_verb,
            weight,
            timeout,
            node_cache_capable: node_cache_capable.unwrap_or(false),
            managed_resources,
            ignorable: ignorable.unwrap_or(false),
        });
    }
    if binders > 1 {
        let found = format!("found {binders} extenders implementing bind");
        let why = "only one extender can implement bind";
        reader.errors.push(Error::invalid(&Path::new("extenders"), found, why));
    }
    all
}

/// The names of the resources that an extender manages. `managed` has those of all extenders.
fn resources(
    reader: &mut Reader,
    extender: &Object,
    path: &Path,
    managed: &mut BTreeSet<String>,
    all: &mut ConfiguredExtenders,
) -> BTreeSet<String> {
    let mut own = BTreeSet::new();
    for (at, resource) in reader.objects(extender, "managedResources", path) {
        reader.known(resource, &at.to_string(), &["name", "ignoredByScheduler"]);
        let name = reader.text(resource, "name", &at);
        let ignored = reader.boolean(resource, "ignoredByScheduler", &at);
        let at = at.child("name");
        let problems = qualified_name(&name);
        if problems.is_empty() && !is_extended(&name) {
            let why = "is an invalid extended resource name";
            reader.errors.push(Error::invalid(&at, name.as_str(), why));
        }
        for why in problems {
            reader.errors.push(Error::invalid(&at, name.as_str(), why));
        }
        if !managed.insert(name.clone()) {
            let why = "duplicate extender managed resource name";
            reader.errors.push(Error::invalid(&at, name.as_str(), why));
        }
        if ignored == Some(true) {
            all.ignored_resources.insert(name.clone());
        }
        own.insert(name);
    }
    own
}

fn timeout(reader: &mut Reader, extender: &Object, path: &Path) -> Duration {
    let text = reader.text(extender, "httpTimeout", path);
    if text.is_empty() {
        return TIMEOUT;
    }
    let at = path.child("httpTimeout");
    match parse_duration(&text).map(u64::try_from) {
        Ok(Ok(0)) => return TIMEOUT,
        Ok(Ok(nanos)) => return Duration::from_nanos(nanos),
        Ok(Err(_)) => {
            let why = "calls without a limit are not supported; 0 is the default of 5s";
            reader.errors.push(Error::invalid(&at, text, why));
        }
        Err(error) => reader.errors.push(Error::invalid(&at, text, error.to_string())),
    }
    TIMEOUT
}

/// The content of the field `NAMEData`, or of the file that `NAMEFile` names; empty without both.
fn data(reader: &mut Reader, tls: &Object, path: &Path, name: &str) -> Vec<u8> {
    let (inline, file) = (format!("{name}Data"), format!("{name}File"));
    let text = reader.text(tls, &inline, path);
    let named = reader.text(tls, &file, path);
    if !text.is_empty() {
        return STANDARD.decode(text.trim()).unwrap_or_else(|_| {
            reader.type_of(&path.child(&inline), "base64");
            Vec::new()
        });
    }
    if named.is_empty() {
        return Vec::new();
    }
    base::fs::read(FilePath::new(&named)).unwrap_or_else(|error| {
        reader.errors.push(Error::invalid(&path.child(&file), named, error.to_string()));
        Vec::new()
    })
}

/// How connections are encrypted if the URL says that they are (`makeTransport`). The name is that
/// of the URL if it is empty.
fn tls(reader: &mut Reader, extender: &Object, path: &Path) -> Trust {
    let enable = reader.boolean(extender, "enableHTTPS", path).unwrap_or(false);
    let (name, certificate) = (String::new(), None);
    let mut trust = Trust { bundle: Vec::new(), unverified: false, name, certificate };
    if let Some((path, tls)) = reader.object(extender, "tlsConfig", path) {
        reader.known(tls, &path.to_string(), TLS_FIELDS);
        trust.unverified = reader.boolean(tls, "insecure", &path).unwrap_or(false);
        trust.name = reader.text(tls, "serverName", &path);
        trust.bundle = data(reader, tls, &path, "ca");
        let (certificate, key) =
            (data(reader, tls, &path, "cert"), data(reader, tls, &path, "key"));
        trust.certificate = client_certificate(reader, &path, certificate, key);
        if trust.unverified && !trust.bundle.is_empty() {
            let why = "specifying a root certificates file with the insecure flag is not allowed";
            reader.errors.push(Error::forbidden(&path, why));
        }
    }
    // As upstream: with enableHTTPS and without a CA, certificates are not verified.
    trust.unverified |= enable && trust.bundle.is_empty();
    trust
}

fn client_certificate(
    reader: &mut Reader,
    path: &Path,
    certificate: Vec<u8>,
    key: Vec<u8>,
) -> Option<Arc<LiveCert>> {
    match (certificate.is_empty(), key.is_empty()) {
        (true, true) => return None,
        (false, false) => {}
        _ => {
            let why = "a client certificate needs both certFile or certData, and keyFile or \
                       keyData; add the missing one";
            reader.errors.push(Error::forbidden(path, why));
            return None;
        }
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let leaf = Leaf { cert_pem: text(certificate), key_pem: text(key).into(), not_after: 0 };
    LiveCert::new(&leaf)
        .map_err(|error| {
            let at = path.child("certFile");
            reader.errors.push(Error::invalid(&at, "", error.to_string()));
        })
        .ok()
}

/// Where the extender listens.
fn endpoint(
    reader: &mut Reader,
    path: &Path,
    (url, verbs): (&str, &[&String]),
    mut tls: Trust,
) -> Option<WebhookEndpoint> {
    let at = path.child("urlPrefix");
    let parsed = url.trim_end_matches('/').parse::<Uri>().ok();
    let uri = parsed.filter(|uri| uri.query().is_none() && !url.contains('#'));
    let parts = uri.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.authority()?)));
    let parts = parts.filter(|(_, host)| !host.host().is_empty() && !host.as_str().contains('@'));
    let port = match &parts {
        Some(("http", _)) => 80,
        Some(("https", _)) => 443,
        _ => {
            let why = "must be an http:// or https:// URL of a host, without user, query and \
                       fragment";
            reader.errors.push(Error::invalid(&at, url, why));
            return None;
        }
    };
    let (_, authority) = parts?;
    let prefix = uri.as_ref().map_or("", |uri| uri.path()).trim_end_matches('/').to_owned();
    let is_invalid =
        |verb: &&&String| format!("{prefix}/{verb}").parse::<http::uri::PathAndQuery>().is_err();
    if let Some(verb) = verbs.iter().find(is_invalid) {
        let why = "a verb must be a part of the path of a URL";
        reader.errors.push(Error::invalid(path, verb.as_str(), why));
        return None;
    }
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    if tls.name.is_empty() {
        tls.name.clone_from(&host);
    }
    Some(WebhookEndpoint {
        tls: (port == 443).then_some(tls),
        host,
        port: authority.port_u16().unwrap_or(port),
        authority: authority.as_str().to_owned(),
        path: prefix,
        credentials: None,
    })
}
