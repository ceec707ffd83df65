//! AuthenticationConfiguration (`apiserver.config.k8s.io`): which tokens are believed and who is anonymous, read from a file.

mod url;
mod validate;

#[cfg(test)]
mod tests;

use api::field::{Path, go_quote};
use serde_json::{Map, Value};

use crate::strict_config::Reader;

pub(crate) use validate::{text_of, validate};

/// The versions of the API; they have the same fields.
const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"];
const KIND: &str = "AuthenticationConfiguration";

/// The whole of a file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Configuration {
    /// Issuers of tokens.
    pub jwt: Vec<Jwt>,
    /// Who is anonymous, when the file says it.
    pub anonymous: Option<Anonymous>,
}

/// `anonymous`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Anonymous {
    /// Requests without credentials are `system:anonymous`.
    pub enabled: bool,
    /// Only on these paths; all when empty.
    pub paths: Vec<String>,
}

/// One issuer and what its tokens mean.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Jwt {
    /// Who issues.
    pub issuer: Issuer,
    /// What must hold of claims.
    pub claim_rules: Vec<ClaimRule>,
    /// How claims become a user.
    pub mappings: Mappings,
    /// What must hold of the user.
    pub user_rules: Vec<UserRule>,
}

/// `issuer`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Issuer {
    /// As the claim `iss` has it.
    pub url: String,
    /// Where its description is, when it is not at `url` with `/.well-known/openid-configuration`.
    pub discovery_url: String,
    /// PEM of those who vouch for its server; empty: those this machine trusts.
    pub certificate_authority: String,
    /// One of them must be in the claim `aud`.
    pub audiences: Vec<String>,
    /// Empty or `MatchAny`.
    pub audience_match_policy: String,
    /// Not supported.
    pub egress_selector_type: String,
}

/// A claim with its value, or an expression with its message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimRule {
    /// Name of the claim.
    pub claim: String,
    /// What it must be.
    pub required_value: String,
    /// What must be true.
    pub expression: String,
    /// What is said when it is not.
    pub message: String,
}

/// `claimMappings`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mappings {
    /// Name of the user.
    pub username: Mapping,
    /// Its groups.
    pub groups: Mapping,
    /// Its uid.
    pub uid: Mapping,
    /// More about it.
    pub extra: Vec<Extra>,
}

/// A claim with its prefix, or an expression.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapping {
    /// Name of the claim.
    pub claim: String,
    /// Put before its value.
    pub prefix: Option<String>,
    /// What yields the value.
    pub expression: String,
}

/// A key of the user's extra.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extra {
    /// Such as `example.com/team`.
    pub key: String,
    /// What yields its values.
    pub value_expression: String,
}

/// `userValidationRules`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserRule {
    /// What must be true.
    pub expression: String,
    /// What is said when it is not.
    pub message: String,
}

/// Reads a file, YAML or JSON. Its values are not validated yet.
///
/// # Errors
/// What cannot be read in it, with the field.
pub(crate) fn read(text: &[u8]) -> Result<Configuration, String> {
    if text.is_empty() {
        return Err("empty config data".into());
    }
    let (value, doubled) = crate::serialization::any_yaml_doubled(text)?;
    if let Some(doubled) = doubled {
        return Err(format!("strict decoding error: {doubled}"));
    }
    let Value::Object(map) = &value else {
        return Err("is no object with apiVersion, kind and jwt".into());
    };
    let word = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    if !VERSIONS.contains(&word("apiVersion")) {
        let given = go_quote(word("apiVersion"));
        return Err(format!(
            "apiVersion: Unsupported value: {given}: must be {} or {}",
            VERSIONS[0], VERSIONS[1]
        ));
    }
    if word("kind") != KIND {
        let given = go_quote(word("kind"));
        return Err(format!("kind: Unsupported value: {given}: must be {KIND}"));
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
        // An empty prefix is one, an absent one is none.
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
