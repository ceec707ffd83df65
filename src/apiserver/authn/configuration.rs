//! AuthenticationConfiguration (`apiserver.config.k8s.io`): JWT issuers and anonymous requests,
//! parsed from a file.

mod url;
mod validate;

#[cfg(test)]
mod tests;

use api::field::{Path, go_quote};
use serde_json::{Map, Value};

use component_config::strict_config::{ConfigDocument, ConfigError, DocumentError, Reader};

pub(super) use validate::InvalidConfiguration;
pub(crate) use validate::validate;

/// The supported versions; their fields are the same.
const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"];
const KIND: &str = "AuthenticationConfiguration";

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Configuration {
    /// Issuers of tokens.
    pub jwt: Vec<Jwt>,
    /// The configuration of anonymous requests, if present.
    pub anonymous: Option<Anonymous>,
}

/// `anonymous`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Anonymous {
    /// Whether requests without credentials are `system:anonymous`.
    pub enabled: bool,
    /// The paths on which they are; all if empty.
    pub paths: Vec<String>,
}

/// An issuer and the mapping of its tokens.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Jwt {
    /// The issuer.
    pub issuer: Issuer,
    /// `claimValidationRules`.
    pub claim_rules: Vec<ClaimRule>,
    /// The mapping from claims to a user.
    pub mappings: Mappings,
    /// `userValidationRules`.
    pub user_rules: Vec<UserRule>,
}

/// `issuer`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Issuer {
    /// The value of the claim `iss`.
    pub url: String,
    /// The URL of the discovery document, if it is not `url` with
    /// `/.well-known/openid-configuration`.
    pub discovery_url: String,
    /// The CA certificates (PEM) for the issuer's server; empty: the system's.
    pub certificate_authority: String,
    /// The accepted values of the claim `aud`; one must match.
    pub audiences: Vec<String>,
    /// Empty or `MatchAny`.
    pub audience_match_policy: String,
    /// Not supported.
    pub egress_selector_type: String,
}

/// A claim with its required value, or an expression with its message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimRule {
    /// The name of the claim.
    pub claim: String,
    /// The required value.
    pub required_value: String,
    /// The expression that must be true.
    pub expression: String,
    /// The message if it is false.
    pub message: String,
}

/// `claimMappings`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mappings {
    /// The user name.
    pub username: Mapping,
    /// The groups.
    pub groups: Mapping,
    /// The UID.
    pub uid: Mapping,
    /// Extra attributes.
    pub extra: Vec<Extra>,
}

/// A claim with its prefix, or an expression.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapping {
    /// The name of the claim.
    pub claim: String,
    /// The prefix of its value.
    pub prefix: Option<String>,
    /// The expression for the value.
    pub expression: String,
}

/// An extra attribute of the user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extra {
    /// The key, such as `example.com/team`.
    pub key: String,
    /// The expression for its values.
    pub value_expression: String,
}

/// `userValidationRules`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserRule {
    /// The expression that must be true.
    pub expression: String,
    /// The message if it is false.
    pub message: String,
}

/// The content of a file cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// The file is empty.
    #[error("empty config data")]
    Empty,
    /// It is not an object with distinct keys.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The version is not supported.
    #[error(
        "apiVersion: Unsupported value: {}: must be {} or {}",
        go_quote(.0), VERSIONS[0], VERSIONS[1]
    )]
    Version(String),
    /// It is of another kind.
    #[error("kind: Unsupported value: {}: must be {KIND}", go_quote(.0), KIND = KIND)]
    Kind(String),
    /// Fields have the wrong type or are unknown.
    #[error(transparent)]
    Fields(#[from] ConfigError),
}

/// Parses a file, YAML or JSON, without validation.
///
/// # Errors
/// The fields that cannot be parsed.
pub(crate) fn read(text: &[u8]) -> Result<Configuration, ContentError> {
    if text.is_empty() {
        return Err(ContentError::Empty);
    }
    let document = ConfigDocument::decode(text)?;
    document.check_keys()?;
    let map = document.object("apiVersion, kind and jwt")?;
    let word = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    if !VERSIONS.contains(&word("apiVersion")) {
        return Err(ContentError::Version(word("apiVersion").to_owned()));
    }
    if word("kind") != KIND {
        return Err(ContentError::Kind(word("kind").to_owned()));
    }
    let mut reader = Reader::default();
    let configuration = configuration(&mut reader, map);
    reader.finish()?;
    Ok(configuration)
}

fn configuration(reader: &mut Reader, map: &Map<String, Value>) -> Configuration {
    let root = Path::new("");
    reader.known(map, "", &["apiVersion", "kind", "jwt", "anonymous"]);
    let anonymous = reader.object(map, "anonymous", &root).map(|(path, map)| {
        reader.known(map, &path.to_string(), &["enabled", "conditions"]);
        let conditions = reader.objects(map, "conditions", &path);
        let mut paths = Vec::with_capacity(conditions.len());
        for (at, condition) in &conditions {
            reader.known(condition, &at.to_string(), &["path"]);
            paths.push(reader.text(condition, "path", at));
        }
        Anonymous { enabled: reader.boolean(map, "enabled", &path).unwrap_or_default(), paths }
    });
    let all = reader.objects(map, "jwt", &root);
    Configuration { jwt: all.iter().map(|(path, map)| jwt(reader, map, path)).collect(), anonymous }
}

fn jwt(reader: &mut Reader, map: &Map<String, Value>, path: &Path) -> Jwt {
    let known = ["issuer", "claimValidationRules", "claimMappings", "userValidationRules"];
    reader.known(map, &path.to_string(), &known);
    let mut read = Jwt::default();
    if let Some((path, map)) = reader.object(map, "issuer", path) {
        read.issuer = issuer(reader, map, &path);
    }
    for (at, rule) in reader.objects(map, "claimValidationRules", path) {
        let known = ["claim", "requiredValue", "expression", "message"];
        reader.known(rule, &at.to_string(), &known);
        let [claim, required_value, expression, message] =
            known.map(|key| reader.text(rule, key, &at));
        read.claim_rules.push(ClaimRule { claim, required_value, expression, message });
    }
    if let Some((path, map)) = reader.object(map, "claimMappings", path) {
        read.mappings = mappings(reader, map, &path);
    }
    for (at, rule) in reader.objects(map, "userValidationRules", path) {
        let known = ["expression", "message"];
        reader.known(rule, &at.to_string(), &known);
        let [expression, message] = known.map(|key| reader.text(rule, key, &at));
        read.user_rules.push(UserRule { expression, message });
    }
    read
}

fn issuer(reader: &mut Reader, map: &Map<String, Value>, path: &Path) -> Issuer {
    let known = [
        "url",
        "discoveryURL",
        "certificateAuthority",
        "audienceMatchPolicy",
        "egressSelectorType",
        "audiences",
    ];
    reader.known(map, &path.to_string(), &known);
    let mut text = |key: &str| reader.text(map, key, path);
    Issuer {
        url: text("url"),
        discovery_url: text("discoveryURL"),
        certificate_authority: text("certificateAuthority"),
        audience_match_policy: text("audienceMatchPolicy"),
        egress_selector_type: text("egressSelectorType"),
        audiences: reader.strings(map, "audiences", path),
    }
}

fn mappings(reader: &mut Reader, map: &Map<String, Value>, path: &Path) -> Mappings {
    reader.known(map, &path.to_string(), &["username", "groups", "uid", "extra"]);
    let [username, groups, uid] = ["username", "groups", "uid"].map(|key| {
        let Some((at, map)) = reader.object(map, key, path) else { return Mapping::default() };
        let known: &[&str] = if key == "uid" {
            &["claim", "expression"]
        } else {
            &["claim", "expression", "prefix"]
        };
        reader.known(map, &at.to_string(), known);
        // An empty prefix differs from an absent one.
        let is_given = map.get("prefix").is_some_and(|prefix| !prefix.is_null());
        Mapping {
            claim: reader.text(map, "claim", &at),
            prefix: is_given.then(|| reader.text(map, "prefix", &at)),
            expression: reader.text(map, "expression", &at),
        }
    });
    let mut extra = Vec::new();
    for (at, entry) in reader.objects(map, "extra", path) {
        let known = ["key", "valueExpression"];
        reader.known(entry, &at.to_string(), &known);
        let [key, value_expression] = known.map(|key| reader.text(entry, key, &at));
        extra.push(Extra { key, value_expression });
    }
    Mappings { username, groups, uid, extra }
}
