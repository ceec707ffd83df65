//! Encodes events: `audit.k8s.io/v1` as JSON, and the human-readable format of
//! `pkg/audit/format.go`.

use std::collections::BTreeMap;
use std::time::Duration;

use api::field::go_quote;
use api::status::{Details, Status};
use serde::Serialize;
use serde_json::value::RawValue;

use super::policy::{Level, Stage};
use crate::request::user::User;

/// The annotation of an event without its objects.
const TRUNCATED: &str = "audit.k8s.io/truncated";

/// The data of a request so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Event {
    pub(super) level: Level,
    pub(super) id: String,
    pub(super) uri: String,
    pub(super) verb: &'static str,
    pub(super) user: User,
    pub(super) impersonated: Option<User>,
    pub(super) source_ips: Vec<String>,
    pub(super) agent: String,
    pub(super) reference: Option<Reference>,
    pub(super) status: Option<Outcome>,
    pub(super) request: Option<Box<RawValue>>,
    pub(super) response: Option<Box<RawValue>>,
    /// Unix time.
    pub(super) received: Duration,
    pub(super) annotations: BTreeMap<String, String>,
}

/// `objectRef`: the object of the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reference {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) subresource: String,
}

/// `responseStatus`: a Status without kind and version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    metadata: BTreeMap<(), ()>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) status: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) message: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) details: Option<Details>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) code: u16,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(code: &u16) -> bool {
    *code == 0
}

impl From<&Status> for Outcome {
    fn from(status: &Status) -> Self {
        Self {
            metadata: BTreeMap::new(),
            status: status.status.clone(),
            message: status.message.clone(),
            reason: status.reason.clone(),
            details: status.details.clone(),
            code: status.code,
        }
    }
}

#[derive(Serialize)]
struct UserInfo<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, Vec<String>>,
}

impl<'a> From<&'a User> for UserInfo<'a> {
    fn from(user: &'a User) -> Self {
        Self { username: &user.name, uid: &user.uid, groups: &user.groups, extra: &user.extra }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EncodedEvent<'a> {
    level: &'static str,
    #[serde(rename = "auditID")]
    audit_id: &'a str,
    stage: &'static str,
    #[serde(rename = "requestURI")]
    request_uri: &'a str,
    verb: &'a str,
    user: UserInfo<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<UserInfo<'a>>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "<[String]>::is_empty")]
    source_ips: &'a [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    user_agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<&'a Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<&'a Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_object: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_object: Option<&'a RawValue>,
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, String>,
}

impl Event {
    /// Encodes the event as an item of an `EventList`: JSON without kind and version. `at` is the
    /// Unix time of the stage.
    pub(super) fn json(&self, stage: Stage, at: Duration) -> Vec<u8> {
        let event = EncodedEvent {
            level: self.level.name(),
            audit_id: &self.id,
            stage: stage.name(),
            request_uri: &self.uri,
            verb: self.verb,
            user: UserInfo::from(&self.user),
            impersonated_user: self.impersonated.as_ref().map(UserInfo::from),
            source_ips: &self.source_ips,
            user_agent: &self.agent,
            object_ref: self.reference.as_ref(),
            response_status: self.status.as_ref(),
            request_object: self.request.as_deref(),
            response_object: self.response.as_deref(),
            request_received_timestamp: micro_time(self.received),
            stage_timestamp: micro_time(at),
            annotations: &self.annotations,
        };
        // Writing to memory cannot fail.
        serde_json::to_vec(&event).unwrap_or_default()
    }

    /// A copy without the objects and with the annotation [`TRUNCATED`].
    pub(super) fn truncated(&self) -> Self {
        let mut annotations = self.annotations.clone();
        annotations.insert(TRUNCATED.to_owned(), "true".to_owned());
        Self { request: None, response: None, annotations, ..self.clone() }
    }

    /// Encodes the event in the human-readable format.
    pub(super) fn legacy(&self, stage: Stage) -> String {
        let joined = |groups: &[String]| {
            groups.iter().map(|group| go_quote(group)).collect::<Vec<_>>().join(",")
        };
        let or = |text: &str, absent: &str| go_quote(if text.is_empty() { absent } else { text });
        let groups = if self.user.name.is_empty() || self.user.groups.is_empty() {
            "<none>".to_owned()
        } else {
            joined(&self.user.groups)
        };
        let (as_user, as_groups) = match &self.impersonated {
            None => ("<self>", "<lookup>".to_owned()),
            Some(user) => (user.name.as_str(), joined(&user.groups)),
        };
        let namespace = self.reference.as_ref().map_or("", |r| r.namespace.as_str());
        let response =
            self.status.as_ref().map_or("<deferred>".to_owned(), |status| status.code.to_string());
        let ip = self.source_ips.first().map_or("", String::as_str);
        let time = jiff::Timestamp::try_from(self.received_timestamp()).unwrap_or_default();
        format!(
            "{time} AUDIT: id={} stage={} ip={} method={} user={} groups={} as={} asgroups={} user-agent={} namespace={} uri={} response=\"{response}\"",
            go_quote(&self.id),
            go_quote(stage.name()),
            or(ip, "<unknown>"),
            go_quote(self.verb),
            or(&self.user.name, "<none>"),
            go_quote(&groups),
            go_quote(as_user),
            go_quote(&as_groups),
            go_quote(&self.agent),
            or(namespace, "<none>"),
            go_quote(&self.uri),
        )
    }

    fn received_timestamp(&self) -> std::time::SystemTime {
        std::time::UNIX_EPOCH + self.received
    }
}

/// Formats a Unix time as `metav1.MicroTime`.
fn micro_time(since: Duration) -> String {
    let time = jiff::Timestamp::try_from(std::time::UNIX_EPOCH + since).unwrap_or_default();
    format!("{time:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Option<Box<RawValue>> {
        RawValue::from_string(text.to_owned()).ok()
    }

    fn event() -> Event {
        Event {
            level: Level::RequestResponse,
            id: "7".into(),
            uri: "/api/v1/namespaces/n/secrets/s?x=1".into(),
            verb: "update",
            user: User::authenticated("jane", &["dev"]),
            source_ips: vec!["10.0.0.1".into()],
            agent: "kubectl".into(),
            reference: Some(Reference {
                resource: "secrets".into(),
                namespace: "n".into(),
                name: "s".into(),
                api_version: "v1".into(),
                ..Reference::default()
            }),
            status: Some(Outcome { code: 200, ..Outcome::default() }),
            request: raw(r#"{"a":1}"#),
            response: raw(r#"{"b":2}"#),
            received: Duration::new(1_700_000_000, 123_000_000),
            annotations: [("k".to_owned(), "v".to_owned())].into(),
            ..Event::default()
        }
    }

    #[test]
    fn fields_have_the_order_of_upstreams_type() {
        let at = Duration::new(1_700_000_001, 456_789);
        assert_eq!(
            String::from_utf8(event().json(Stage::ResponseComplete, at)).unwrap(),
            r#"{"level":"RequestResponse","auditID":"7","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/n/secrets/s?x=1","verb":"update","user":{"username":"jane","groups":["dev","system:authenticated"]},"sourceIPs":["10.0.0.1"],"userAgent":"kubectl","objectRef":{"resource":"secrets","namespace":"n","name":"s","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":200},"requestObject":{"a":1},"responseObject":{"b":2},"requestReceivedTimestamp":"2023-11-14T22:13:20.123000Z","stageTimestamp":"2023-11-14T22:13:21.000456Z","annotations":{"k":"v"}}"#
        );
        let bare = Event { level: Level::Metadata, verb: "get", ..Event::default() };
        assert_eq!(
            String::from_utf8(bare.json(Stage::RequestReceived, Duration::ZERO)).unwrap(),
            r#"{"level":"Metadata","auditID":"","stage":"RequestReceived","requestURI":"","verb":"get","user":{},"requestReceivedTimestamp":"1970-01-01T00:00:00.000000Z","stageTimestamp":"1970-01-01T00:00:00.000000Z"}"#
        );
    }

    #[test]
    fn truncation_removes_objects_and_adds_an_annotation() {
        let cut = event().truncated();
        assert!(cut.request.is_none() && cut.response.is_none());
        assert_eq!(cut.annotations["audit.k8s.io/truncated"], "true");
        assert_eq!(cut.annotations["k"], "v");
    }

    #[test]
    fn the_legacy_format_is_upstreams() {
        assert_eq!(
            event().legacy(Stage::ResponseComplete),
            r#"2023-11-14T22:13:20.123Z AUDIT: id="7" stage="ResponseComplete" ip="10.0.0.1" method="update" user="jane" groups="\"dev\",\"system:authenticated\"" as="<self>" asgroups="<lookup>" user-agent="kubectl" namespace="n" uri="/api/v1/namespaces/n/secrets/s?x=1" response="200""#
        );
        let bare = Event { id: "1".into(), verb: "get", uri: "/".into(), ..Event::default() };
        assert_eq!(
            bare.legacy(Stage::RequestReceived),
            r#"1970-01-01T00:00:00Z AUDIT: id="1" stage="RequestReceived" ip="<unknown>" method="get" user="<none>" groups="<none>" as="<self>" asgroups="<lookup>" user-agent="" namespace="<none>" uri="/" response="<deferred>""#
        );
    }
}
