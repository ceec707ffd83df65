//! The pages `/statusz` and `/flagz` of components (`k8s.io/apiserver/pkg/server/statusz` and
//! `flagz`): text for people, or an object of `config.k8s.io` for a client whose Accept header
//! names it.

mod negotiation;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use sorting::CompactSort as _;

use self::negotiation::{Media, Negotiated};
use crate::Status;
use crate::codec::yaml;

/// The group of the objects.
const GROUP: &str = "config.k8s.io";
/// Separators of names and values in texts; upstream chooses one at random for each response, so
/// that no program parses it.
const DELIMITERS: [&str; 4] = [":", ": ", "=", " "];
/// First segments of paths that are no pages for debugging.
const NOT_LISTED: [&str; 5] = ["apis", "api", "openid", "openapi", ".well-known"];
/// The version that components emulate.
const EMULATION_VERSION: &str = "1.37";

/// The state of a component.
#[derive(Debug, Clone)]
pub struct Statusz {
    /// Start of the process, in seconds since the epoch.
    pub started: i64,
    /// The present, in seconds since the epoch.
    pub now: i64,
    /// Such as `1.37.1+kubelite.0.1.0`.
    pub binary_version: String,
    /// The paths that the component serves; their first segments are shown.
    pub paths: Vec<String>,
}

/// The content of a page.
#[derive(Debug, Clone, Copy)]
pub enum PageContent<'a> {
    /// `/statusz`
    Statusz(&'a Statusz),
    /// `/flagz`: values by the names of flags, without secrets.
    Flagz(&'a BTreeMap<String, String>),
}

/// What a request says about the form of a page.
#[derive(Debug, Clone, Copy, Default)]
pub struct PageRequest<'a> {
    /// The header `Accept`; empty if it is missing.
    pub accept: &'a str,
    /// Whether JSON is indented, as for `?pretty=true` and for browsers.
    pub pretty: bool,
    /// A random number, which selects the separator of texts.
    pub random: u64,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// 200, or 406 if the client accepts no form of the page.
    pub code: u16,
    /// The value of the header `Content-Type`.
    pub content_type: String,
    /// The value of the header `Warning`, for a deprecated version.
    pub warning: Option<String>,
    /// The body.
    pub body: String,
}

impl PageContent<'_> {
    /// The kind of the object.
    fn kind(self) -> &'static str {
        match self {
            Self::Statusz(_) => "Statusz",
            Self::Flagz(_) => "Flagz",
        }
    }

    /// The name of the page.
    fn name(self) -> &'static str {
        match self {
            Self::Statusz(_) => "statusz",
            Self::Flagz(_) => "flagz",
        }
    }
}

/// The response to a request for the page of a component, such as `apiserver`.
pub fn page(component: &str, content: PageContent<'_>, request: PageRequest<'_>) -> Page {
    if request.accept.trim().is_empty() {
        return plain(component, content, request.random);
    }
    match negotiation::negotiate(request.accept, content.kind()) {
        Negotiated::Text => plain(component, content, request.random),
        Negotiated::Object { media, version, pretty } => {
            structured(component, content, (media, version), request.pretty || pretty)
        }
        Negotiated::Refused { media, pretty } => refused(media, request.pretty || pretty),
    }
}

/// The text for people.
fn plain(component: &str, content: PageContent<'_>, random: u64) -> Page {
    let name = content.name();
    let mut body = format!(
        "\n{component} {name}\nWarning: This endpoint is not meant to be machine parseable, has no \
         formatting compatibility guarantees and is for debugging purposes only.\n"
    );
    let at = usize::try_from(random % 4).unwrap_or_default();
    let delimiter = DELIMITERS.get(at).copied().unwrap_or(":");
    match content {
        PageContent::Statusz(status) => body.push_str(&status.text(delimiter)),
        PageContent::Flagz(flags) => {
            for (flag, value) in flags {
                let _ = writeln!(body, "{flag}{delimiter}{value}");
            }
        }
    }
    let content_type = "text/plain; charset=utf-8".to_owned();
    Page { code: 200, content_type, warning: None, body }
}

/// An object of a version.
fn structured(
    component: &str,
    content: PageContent<'_>,
    (media, version): (Media, &str),
    pretty: bool,
) -> Page {
    let kind = content.kind();
    let mut object = json!({
        "kind": kind,
        "apiVersion": format!("{GROUP}/{version}"),
        "metadata": {"name": component},
    });
    if let Value::Object(members) = content.members()
        && let Some(object) = object.as_object_mut()
    {
        object.extend(members);
    }
    let deprecated = version == "v1alpha1";
    let warning = format!(
        "299 - \"This version of the {} endpoint is deprecated. Please use a newer version.\"",
        content.name()
    );
    Page {
        code: 200,
        content_type: format!("{};g={GROUP};v={version};as={kind}", media.name()),
        warning: deprecated.then_some(warning),
        body: encode(&object, media, pretty),
    }
}

/// The response to a client that accepts no form of the page.
fn refused(media: Option<Media>, pretty: bool) -> Page {
    let text = "only the following media types are accepted: application/json, application/yaml, \
                text/plain";
    let status = Status::failure(406, "NotAcceptable", text);
    let value = serde_json::to_value(&status).unwrap_or_default();
    // A client whose types match nothing gets indented JSON.
    let body = match media {
        Some(media) => encode(&value, media, pretty),
        None => encode(&value, Media::Json, true),
    };
    let content_type = media.unwrap_or(Media::Json).name().to_owned();
    Page { code: 406, content_type, warning: None, body }
}

fn encode(value: &Value, media: Media, pretty: bool) -> String {
    match media {
        Media::Json if pretty => serde_json::to_string_pretty(value).unwrap_or_default(),
        Media::Json => format!("{value}\n"),
        Media::Yaml => yaml::write(value),
    }
}

impl PageContent<'_> {
    /// The members of the object beside its type and metadata.
    fn members(self) -> Value {
        match self {
            Self::Statusz(status) => json!({
                "startTime": time(status.started, "%Y-%m-%dT%H:%M:%SZ"),
                "uptimeSeconds": status.uptime(),
                "goVersion": "",
                "binaryVersion": status.binary_version,
                "emulationVersion": EMULATION_VERSION,
                "paths": roots(&status.paths),
            }),
            Self::Flagz(flags) if flags.is_empty() => json!({}),
            Self::Flagz(flags) => json!({ "flags": flags }),
        }
    }
}

impl Statusz {
    /// Seconds since the start.
    fn uptime(&self) -> i64 {
        self.now.saturating_sub(self.started).max(0)
    }

    fn text(&self, delimiter: &str) -> String {
        let (d, up) = (delimiter, self.uptime());
        // Go's `time.UnixDate`.
        let started = time(self.started, "%a %b %e %H:%M:%S UTC %Y");
        let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
        let version = &self.binary_version;
        let paths = roots(&self.paths).join(" ");
        let paths = if paths.is_empty() { paths } else { format!("Paths{d} {paths}") };
        format!(
            "\nStarted{d} {started}\nUp{d} {hours} hr {minutes:02} min {seconds:02} sec\n\
             Go version{d} \nBinary version{d} {version}\n\
             Emulation version{d} {EMULATION_VERSION}\n{paths}\n"
        )
    }
}

/// A time in UTC; empty outside of the range of the calendar.
fn time(seconds: i64, format: &str) -> String {
    let Ok(time) = jiff::Timestamp::from_second(seconds) else { return String::new() };
    time.to_zoned(jiff::tz::TimeZone::UTC).strftime(format).to_string()
}

/// The first segments of paths, each once, in order.
fn roots(paths: &[String]) -> Vec<String> {
    let root = |path: &String| {
        let root = path.strip_prefix('/')?.split('/').next()?;
        (!root.is_empty() && !NOT_LISTED.contains(&root)).then(|| format!("/{root}"))
    };
    let mut roots: Vec<String> = paths.iter().filter_map(root).collect();
    roots.compact_sort();
    roots.dedup();
    roots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Statusz {
        let paths = ["/livez/ping", "/livez/post", "/readyz/log", "/apis/apps", "/", "/metrics"];
        Statusz {
            started: 1_775_000_000,
            now: 1_775_003_725,
            binary_version: "1.37.1".to_owned(),
            paths: paths.map(str::to_owned).to_vec(),
        }
    }

    fn of(accept: &str) -> Page {
        let request = PageRequest { accept, pretty: false, random: 4 };
        page("test-server", PageContent::Statusz(&status()), request)
    }

    /// The cases of `TestHandleStatusz`.
    #[test]
    fn the_accept_header_selects_the_form() {
        for accept in [
            "",
            "text/plain",
            "*/*",
            "text/*",
            "application/json;v=foo;g=config.k8s.io;as=Statusz,*/*",
        ] {
            let page = of(accept);
            assert_eq!((page.code, page.warning), (200, None), "{accept}");
            assert_eq!(page.content_type, "text/plain; charset=utf-8", "{accept}");
            assert_eq!(
                page.body,
                "\ntest-server statusz\nWarning: This endpoint is not meant to be machine \
                 parseable, has no formatting compatibility guarantees and is for debugging \
                 purposes only.\n\nStarted: Tue Mar 31 23:33:20 UTC 2026\n\
                 Up: 1 hr 02 min 05 sec\nGo version: \nBinary version: 1.37.1\n\
                 Emulation version: 1.37\nPaths: /livez /metrics /readyz\n"
            );
        }
        for accept in [
            "application/xml",
            "application/json",
            "application/json;v=v1beta1;g=config.k8s.io",
            "application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
            "application/cbor;v=v1beta1;g=config.k8s.io;as=Statusz",
            "application/vnd.kubernetes.protobuf",
            "text/plain;as=Statusz",
        ] {
            let page = of(accept);
            assert_eq!(page.code, 406, "{accept}");
            let list = "are accepted: application/json, application/yaml, text/plain";
            assert!(page.body.contains(list), "{}", page.body);
            assert_eq!(page.content_type, "application/json");
        }
        assert_eq!(of("application/yaml").content_type, "application/yaml");
    }

    #[test]
    fn objects_have_the_requested_version() {
        let page = of("application/json;v=v1beta1;g=config.k8s.io;as=Statusz");
        let object: Value = serde_json::from_str(&page.body).unwrap();
        assert_eq!(
            object,
            json!({"kind": "Statusz", "apiVersion": "config.k8s.io/v1beta1",
                "metadata": {"name": "test-server"}, "startTime": "2026-03-31T23:33:20Z",
                "uptimeSeconds": 3725, "goVersion": "", "binaryVersion": "1.37.1",
                "emulationVersion": "1.37", "paths": ["/livez", "/metrics", "/readyz"]})
        );
        assert_eq!(page.content_type, "application/json;g=config.k8s.io;v=v1beta1;as=Statusz");
        assert_eq!(page.warning, None);
        let old = of("application/yaml;v=v1alpha1;g=config.k8s.io;as=Statusz");
        assert!(old.body.contains("apiVersion: config.k8s.io/v1alpha1\n"), "{}", old.body);
        let warning = "299 - \"This version of the statusz endpoint is deprecated. Please use a \
                       newer version.\"";
        assert_eq!(old.warning.as_deref(), Some(warning));
    }

    #[test]
    fn flags_are_listed_by_name() {
        let flags: BTreeMap<String, String> =
            [("b", "2"), ("a", "[1,2]")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let of = |accept, random| {
            page(
                "kubelet",
                PageContent::Flagz(&flags),
                PageRequest { accept, random, pretty: false },
            )
        };
        assert!(of("", 2).body.ends_with("debugging purposes only.\na=[1,2]\nb=2\n"));
        let page = of("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", 0);
        let object: Value = serde_json::from_str(&page.body).unwrap();
        assert_eq!(object["flags"], json!({"a": "[1,2]", "b": "2"}));
        assert_eq!(
            (&object["kind"], &object["metadata"]["name"]),
            (&json!("Flagz"), &json!("kubelet"))
        );
    }
}
