//! The file of `tracing-config-file`, strictly decoded and validated with upstream's texts
//! (`pkg/server/options/tracing.go`, `component-base/tracing/api/v1`).

use std::path::Path as File;

use api::field::{Error, Path, go_quote};
use serde_json::{Map, Value};

use crate::flags;
use crate::strict_config::Reader;

const FLAG: &str = "tracing-config-file";
const KIND: &str = "TracingConfiguration";
const GROUP: &str = "apiserver.config.k8s.io/";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
/// Where a collector listens unless something else is said (`DefaultCollectorHost`).
const DEFAULT: &str = "localhost:4317";
const RATE_MAX: i64 = 1_000_000;

/// Whether a flag is about traces.
pub fn is_flag(name: &str) -> bool {
    name == FLAG
}

/// Where a collector listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// Host and port.
    Tcp(String),
    /// A socket's file.
    Unix(String),
    /// A socket without a file.
    Abstract(String),
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub(super) endpoint: Endpoint,
    /// Of a million traces that nobody else began; none is as 0.
    rate: i64,
}

impl Plan {
    /// From arguments `NAME=VALUE`; `None` without the flag, the last one counts.
    ///
    /// # Errors
    /// Upstream's sentence.
    pub fn read(arguments: &[String]) -> Result<Option<Self>, String> {
        let Some((_, file)) = arguments.last().map(|argument| flags::parts(argument)) else {
            return Ok(None);
        };
        let Some(file) = file.filter(|file| !file.is_empty()) else { return Ok(None) };
        let path = File::new(file);
        if !path.exists() {
            return Err(format!("{FLAG} {file} does not exist"));
        }
        let failed = |why: String| format!("failed to read tracing config: {why}");
        let text = base::fs::read(path).map_err(|e| {
            failed(format!("unable to read tracing configuration from {}: {e}", go_quote(file)))
        })?;
        Self::of(&text).map(Some)
    }

    /// # Errors
    /// Upstream's sentence.
    pub(super) fn of(text: &[u8]) -> Result<Self, String> {
        let failed = |why: String| {
            format!(
                "failed to read tracing config: unable to decode tracing configuration data: {why}"
            )
        };
        let (value, doubled) = crate::serialization::any_yaml_doubled(text).map_err(failed)?;
        let Value::Object(map) = &value else {
            return Err(failed("is no object with apiVersion and kind".to_owned()));
        };
        if let Some(doubled) = doubled {
            return Err(failed(format!("strict decoding error: {doubled}")));
        }
        head(map).map_err(failed)?;
        let mut reader = Reader::default();
        let known = ["apiVersion", "kind", "endpoint", "samplingRatePerMillion"];
        reader.known(map, "", &known);
        let rate = match map.get("samplingRatePerMillion") {
            None | Some(Value::Null) => 0,
            Some(value) => match value.as_i64().filter(|rate| i32::try_from(*rate).is_ok()) {
                Some(rate) => rate,
                None => {
                    reader
                        .type_of(&Path::new("samplingRatePerMillion"), "a whole number of 32 bits");
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
        reader.finish().map_err(|e| failed(e.to_string()))?;
        let mut reader = Reader::default();
        let path = Path::new("samplingRatePerMillion");
        if rate < 0 {
            reader.errors.push(Error::invalid(&path, rate, "sampling rate must be positive"));
        }
        if rate > RATE_MAX {
            let why = "sampling rate per million must be less than or equal to one million";
            reader.errors.push(Error::invalid(&path, rate, why));
        }
        let endpoint = Endpoint::of(endpoint);
        if let Err((shown, why)) = &endpoint {
            reader.errors.push(Error::invalid(&Path::new("endpoint"), shown.as_str(), why.clone()));
        }
        let invalid = |why: String| format!("failed to validate tracing configuration: {why}");
        reader.finish().map_err(|e| invalid(e.to_string()))?;
        let endpoint = endpoint.map_err(|(_, why)| invalid(why))?;
        Ok(Self { endpoint, rate })
    }

    /// Of 2^63 numbers, below which one is sampled.
    pub(super) fn bound(&self) -> u64 {
        let rate = u128::try_from(self.rate).unwrap_or(0);
        u64::try_from(rate * (1 << 63) / 1_000_000).unwrap_or(u64::MAX)
    }
}

fn head(map: &Map<String, Value>) -> Result<(), String> {
    let text = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if kind.is_empty() {
        return Err("Object 'Kind' is missing".to_owned());
    }
    if version.is_empty() {
        return Err("Object 'apiVersion' is missing".to_owned());
    }
    let is_known = version.strip_prefix(GROUP).is_some_and(|version| VERSIONS.contains(&version));
    if is_known && kind == KIND {
        return Ok(());
    }
    Err(format!(
        "no kind {} is registered for version {}: must be {KIND} of {GROUP}v1",
        go_quote(kind),
        go_quote(version)
    ))
}

impl Endpoint {
    /// # Errors
    /// What upstream shows of it, and its sentence.
    fn of(text: &str) -> Result<Self, (String, String)> {
        let whole = if text.contains("//") { text.to_owned() } else { format!("dns://{text}") };
        let bad = |why: String| (whole.clone(), why);
        let Some((scheme, rest)) = whole.split_once("://") else {
            let why = format!("parse {}: missing protocol scheme", go_quote(&whole));
            return Err(bad(why));
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
                "a name server of its own ({authority}) is not supported: write dns:///HOST:PORT"
            ))),
            "unix" if authority.is_empty() => Ok(Self::Unix(format!("/{path}"))),
            "unix-abstract" if authority.is_empty() => Ok(Self::Abstract(path.to_owned())),
            "unix" | "unix-abstract" => {
                Err(bad(format!("invalid (non-empty) authority: {authority}")))
            }
            scheme => Err(bad(format!(
                "unsupported scheme: {scheme}.  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md"
            ))),
        }
    }
}

/// gRPC's port where there is none.
fn with_port(host: &str) -> String {
    let port = host.rsplit_once(':').map(|(_, port)| port);
    let has = port.is_some_and(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()));
    if has { host.to_owned() } else { format!("{host}:443") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> Result<Plan, String> {
        Plan::of(
            format!("apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n{body}")
                .as_bytes(),
        )
    }

    /// The accepted rows of upstream's `TestValidateTracingConfiguration`, and the default.
    #[test]
    fn good_files_are_read() {
        let tcp = |text: &str| Endpoint::Tcp(text.to_owned());
        assert_eq!(of("").unwrap(), Plan { endpoint: tcp("localhost:4317"), rate: 0 });
        let plan = of("endpoint: localhost:4317\nsamplingRatePerMillion: 12345\n").unwrap();
        assert_eq!(plan, Plan { endpoint: tcp("localhost:4317"), rate: 12_345 });
        assert_eq!(of("endpoint: dns://google.com:4317").unwrap().endpoint, tcp("google.com:4317"));
        assert_eq!(of("endpoint: dns:///a.b:1").unwrap().endpoint, tcp("a.b:1"));
        let socket = of("endpoint: unix:///path/to/socket").unwrap().endpoint;
        assert_eq!(socket, Endpoint::Unix("/path/to/socket".to_owned()));
        assert_eq!(of("samplingRatePerMillion: 1000000").unwrap().bound(), 1 << 63);
        assert_eq!(of("samplingRatePerMillion: 500000").unwrap().bound(), 1 << 62);
        for version in ["v1beta1", "v1alpha1"] {
            let text = format!(
                "apiVersion: apiserver.config.k8s.io/{version}\nkind: TracingConfiguration\n"
            );
            assert!(Plan::of(text.as_bytes()).is_ok(), "{version}");
        }
    }

    /// Texts of `component-base/tracing/api/v1/config.go` and of its test.
    #[test]
    fn bad_files_are_refused_with_upstreams_words() {
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
            assert_eq!(of(body).unwrap_err(), format!("{invalid}{why}"));
        }
        let undecodable =
            "failed to read tracing config: unable to decode tracing configuration data: ";
        assert_eq!(
            of("endpont: a").unwrap_err(),
            format!("{undecodable}strict decoding error: unknown field \"endpont\"")
        );
        let other = Plan::of(b"apiVersion: v1\nkind: Pod").unwrap_err();
        assert!(
            other.starts_with(&format!("{undecodable}no kind \"Pod\" is registered")),
            "{other}"
        );
        let gone = Plan::read(&["tracing-config-file=/none/there".to_owned()]).unwrap_err();
        assert_eq!(gone, "tracing-config-file /none/there does not exist");
        assert_eq!(Plan::read(&[]), Ok(None));
    }
}
