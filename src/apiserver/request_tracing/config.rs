//! Parses the file of `tracing-config-file` strictly, and validates it with upstream's messages
//! (`pkg/server/options/tracing.go`, `component-base/tracing/api/v1`).

use std::io;

use api::field::{Error, Path, go_quote};
use serde_json::{Map, Value};

use component_config::flags;
use component_config::strict_config::{ConfigDocument, ConfigError, DocumentError, Reader};

const FLAG: &str = "tracing-config-file";
const KIND: &str = "TracingConfiguration";
const GROUP: &str = "apiserver.config.k8s.io/";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
/// The default endpoint of the collector (`DefaultCollectorHost`).
const DEFAULT: &str = "localhost:4317";
const RATE_MAX: i64 = 1_000_000;

/// Whether this is a flag for tracing.
pub fn is_flag(name: &str) -> bool {
    name == FLAG
}

/// The endpoint of a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// Host and port.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(String),
    /// The name of an abstract Unix socket.
    Abstract(String),
}

/// The tracing configuration is unusable.
#[derive(Debug, thiserror::Error)]
pub enum TracingConfigError {
    /// The file does not exist.
    #[error("{FLAG} {0} does not exist")]
    NoFile(String),
    /// The file cannot be read.
    #[error(
        "failed to read tracing config: unable to read tracing configuration from {}: {source}",
        go_quote(file)
    )]
    Read {
        /// The file.
        file: String,
        /// The error, with the path.
        source: io::Error,
    },
    /// The file cannot be decoded.
    #[error("failed to read tracing config: unable to decode tracing configuration data: {0}")]
    Decode(#[from] DecodeConfigError),
    /// A value is invalid.
    #[error("failed to validate tracing configuration: {0}")]
    Invalid(#[source] ConfigError),
}

/// The tracing configuration cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeConfigError {
    /// The file is not an object with distinct keys.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// `kind` is absent.
    #[error("Object 'Kind' is missing")]
    NoKind,
    /// `apiVersion` is absent.
    #[error("Object 'apiVersion' is missing")]
    NoVersion,
    /// `kind` or `apiVersion` is unknown.
    #[error(
        "no kind {} is registered for version {}: must be {KIND} of {GROUP}v1",
        go_quote(kind),
        go_quote(version)
    )]
    UnknownKind {
        /// The kind.
        kind: String,
        /// The API version.
        version: String,
    },
    /// Fields are unknown or have the wrong type.
    #[error(transparent)]
    Fields(#[from] ConfigError),
}

/// An endpoint is invalid.
#[derive(Debug, PartialEq, Eq)]
struct EndpointError {
    /// The endpoint, with the default scheme if it has none, as upstream prints it.
    endpoint: String,
    /// Upstream's message.
    reason: String,
}

/// The tracing configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingConfig {
    pub(super) endpoint: Endpoint,
    /// The sampling rate per million of traces that start here.
    rate: i64,
}

impl TracingConfig {
    /// Reads the file of the last `NAME=VALUE` argument; `None` without arguments.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid.
    pub fn read(arguments: &[String]) -> Result<Option<Self>, TracingConfigError> {
        let Some((_, file)) = arguments.last().map(|argument| flags::parts(argument)) else {
            return Ok(None);
        };
        let Some(file) = file.filter(|file| !file.is_empty()) else { return Ok(None) };
        let path = std::path::Path::new(file);
        if !path.exists() {
            return Err(TracingConfigError::NoFile(file.to_owned()));
        }
        let text = base::fs::read(path)
            .map_err(|source| TracingConfigError::Read { file: file.to_owned(), source })?;
        Self::parse(&text).map(Some)
    }

    /// Parses a file, YAML or JSON.
    ///
    /// # Errors
    /// The field and its error.
    pub(super) fn parse(text: &[u8]) -> Result<Self, TracingConfigError> {
        let (endpoint, rate) = decode(text)?;
        let endpoint = Endpoint::parse(&endpoint);
        let mut errors = rate_errors(rate);
        errors.extend(endpoint.as_ref().err().map(|error| {
            let path = Path::new("endpoint");
            Error::invalid(&path, error.endpoint.as_str(), error.reason.clone())
        }));
        match endpoint {
            Ok(endpoint) if errors.is_empty() => Ok(Self { endpoint, rate }),
            _ => Err(TracingConfigError::Invalid(ConfigError::Invalid(errors))),
        }
    }

    /// A trace is sampled if its number, of 63 bits, is less than this bound.
    pub(super) fn bound(&self) -> u64 {
        let rate = u128::try_from(self.rate).unwrap_or(0);
        u64::try_from(rate * (1 << 63) / 1_000_000).unwrap_or(u64::MAX)
    }
}

/// Decodes endpoint and sampling rate, without validation.
fn decode(text: &[u8]) -> Result<(String, i64), DecodeConfigError> {
    let document = ConfigDocument::decode(text)?;
    let map = document.object("apiVersion and kind")?;
    document.check_keys()?;
    check_kind(map)?;
    let mut reader = Reader::default();
    reader.known(map, "", &["apiVersion", "kind", "endpoint", "samplingRatePerMillion"]);
    let rate = match map.get("samplingRatePerMillion") {
        None | Some(Value::Null) => 0,
        Some(value) => match value.as_i64().filter(|rate| i32::try_from(*rate).is_ok()) {
            Some(rate) => rate,
            None => {
                reader.type_of(&Path::new("samplingRatePerMillion"), "a whole number of 32 bits");
                0
            }
        },
    };
    let endpoint = match map.get("endpoint") {
        None | Some(Value::Null) => DEFAULT,
        Some(Value::String(endpoint)) => endpoint,
        Some(_) => {
            reader.type_of(&Path::new("endpoint"), "a string");
            DEFAULT
        }
    };
    reader.finish()?;
    Ok((endpoint.to_owned(), rate))
}

fn rate_errors(rate: i64) -> Vec<Error> {
    let path = Path::new("samplingRatePerMillion");
    if rate < 0 {
        return vec![Error::invalid(&path, rate, "sampling rate must be positive")];
    }
    if rate > RATE_MAX {
        let reason = "sampling rate per million must be less than or equal to one million";
        return vec![Error::invalid(&path, rate, reason)];
    }
    Vec::new()
}

/// Checks `apiVersion` and `kind`.
fn check_kind(map: &Map<String, Value>) -> Result<(), DecodeConfigError> {
    let text = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if kind.is_empty() {
        return Err(DecodeConfigError::NoKind);
    }
    if version.is_empty() {
        return Err(DecodeConfigError::NoVersion);
    }
    let is_known = version.strip_prefix(GROUP).is_some_and(|version| VERSIONS.contains(&version));
    if is_known && kind == KIND {
        return Ok(());
    }
    Err(DecodeConfigError::UnknownKind { kind: kind.to_owned(), version: version.to_owned() })
}

impl Endpoint {
    /// Parses an endpoint with gRPC's naming syntax.
    ///
    /// # Errors
    /// If the scheme is unsupported or the authority is invalid.
    fn parse(text: &str) -> Result<Self, EndpointError> {
        let whole = if text.contains("//") { text.to_owned() } else { format!("dns://{text}") };
        let bad = |reason: String| EndpointError { endpoint: whole.clone(), reason };
        let Some((scheme, rest)) = whole.split_once("://") else {
            return Err(bad(format!("parse {}: missing protocol scheme", go_quote(&whole))));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if let Some(wrong) =
            authority.chars().find(|c| c.is_whitespace() || "<>\"{}|\\^`".contains(*c))
        {
            let (whole, wrong) = (go_quote(&whole), go_quote(&wrong.to_string()));
            return Err(bad(format!("parse {whole}: invalid character {wrong} in host name")));
        }
        match scheme {
            "dns" if path.is_empty() => Ok(Self::Tcp(with_port(authority))),
            "dns" if authority.is_empty() => Ok(Self::Tcp(with_port(path))),
            "dns" => Err(bad(format!(
                "a DNS server ({authority}) is not supported: write dns:///HOST:PORT"
            ))),
            "unix" if authority.is_empty() => Ok(Self::Unix(format!("/{path}"))),
            "unix-abstract" if authority.is_empty() => Ok(Self::Abstract(path.to_owned())),
            "unix" | "unix-abstract" => {
                Err(bad(format!("invalid (non-empty) authority: {authority}")))
            }
            scheme => Err(bad(format!(
                "unsupported scheme: {scheme}.  Options are none, dns, unix, or unix-abstract.  See \
                 https://github.com/grpc/grpc/blob/master/doc/naming.md"
            ))),
        }
    }
}

/// Adds gRPC's default port if there is none.
fn with_port(host: &str) -> String {
    let port = host.rsplit_once(':').map(|(_, port)| port);
    let has = port.is_some_and(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()));
    if has { host.to_owned() } else { format!("{host}:443") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<TracingConfig, TracingConfigError> {
        TracingConfig::parse(
            format!("apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n{body}")
                .as_bytes(),
        )
    }

    /// The accepted rows of upstream's `TestValidateTracingConfiguration`, and the default.
    #[test]
    fn valid_files_are_parsed() {
        let tcp = |text: &str| Endpoint::Tcp(text.to_owned());
        assert_eq!(parse("").unwrap(), TracingConfig { endpoint: tcp("localhost:4317"), rate: 0 });
        let plan = parse("endpoint: localhost:4317\nsamplingRatePerMillion: 12345\n").unwrap();
        assert_eq!(plan, TracingConfig { endpoint: tcp("localhost:4317"), rate: 12_345 });
        assert_eq!(
            parse("endpoint: dns://google.com:4317").unwrap().endpoint,
            tcp("google.com:4317")
        );
        assert_eq!(parse("endpoint: dns:///a.b:1").unwrap().endpoint, tcp("a.b:1"));
        let socket = parse("endpoint: unix:///path/to/socket").unwrap().endpoint;
        assert_eq!(socket, Endpoint::Unix("/path/to/socket".to_owned()));
        assert_eq!(parse("samplingRatePerMillion: 1000000").unwrap().bound(), 1 << 63);
        assert_eq!(parse("samplingRatePerMillion: 500000").unwrap().bound(), 1 << 62);
        for version in ["v1beta1", "v1alpha1"] {
            let text = format!(
                "apiVersion: apiserver.config.k8s.io/{version}\nkind: TracingConfiguration\n"
            );
            assert!(TracingConfig::parse(text.as_bytes()).is_ok(), "{version}");
        }
    }

    /// Texts of `component-base/tracing/api/v1/config.go` and of its test.
    #[test]
    fn invalid_files_are_rejected_with_upstreams_messages() {
        let invalid = "failed to validate tracing configuration: ";
        for (body, why) in [
            (
                "samplingRatePerMillion: -1",
                "samplingRatePerMillion: Invalid value: -1: sampling rate must be positive",
            ),
            (
                "samplingRatePerMillion: 1000001",
                "samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or equal to one million",
            ),
            (
                "endpoint: http://localhost:4317",
                "endpoint: Invalid value: \"http://localhost:4317\": unsupported scheme: http.  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md",
            ),
        ] {
            assert_eq!(parse(body).unwrap_err().to_string(), format!("{invalid}{why}"));
        }
        let undecodable =
            "failed to read tracing config: unable to decode tracing configuration data: ";
        assert_eq!(
            parse("endpont: a").unwrap_err().to_string(),
            format!("{undecodable}strict decoding error: unknown field \"endpont\"")
        );
        let other = TracingConfig::parse(b"apiVersion: v1\nkind: Pod").unwrap_err().to_string();
        assert!(
            other.starts_with(&format!("{undecodable}no kind \"Pod\" is registered")),
            "{other}"
        );
        let gone =
            TracingConfig::read(&["tracing-config-file=/none/there".to_owned()]).unwrap_err();
        assert_eq!(gone.to_string(), "tracing-config-file /none/there does not exist");
        assert_eq!(TracingConfig::read(&[]).unwrap(), None);
    }
}
