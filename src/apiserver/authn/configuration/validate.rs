//! Validates an AuthenticationConfiguration, with upstream's messages and order
//! (`pkg/apis/apiserver/validation/validation.go`).

use std::collections::BTreeSet;
use std::sync::Arc;

use api::field::{Error, ErrorList, Path};
use api::validation::{each, names};
use sorting::CompactSort as _;

use super::url;
use super::{ClaimRule, Configuration, Issuer, Jwt, Mapping, Mappings, UserRule};
use crate::authn::jwt::{Expression, Mapper, ResultType, Variable};
use component_config::aggregate_errors;

/// The maximum number of issuers of a configuration (upstream's).
const ISSUERS_MAX: usize = 64;
const BOTH: &str = "claim and expression can't both be set";

/// Validates the configuration and compiles the expressions of every issuer. `disallowed` are the
/// issuers of this cluster's own tokens.
pub(crate) fn validate(
    configuration: &Configuration,
    disallowed: &[String],
) -> (Vec<Arc<Mapper>>, ErrorList) {
    let root = Path::new("jwt");
    let mut errors = ErrorList::new();
    if configuration.jwt.len() > ISSUERS_MAX {
        errors.push(Error::too_many(&root, configuration.jwt.len(), ISSUERS_MAX));
        return (Vec::new(), errors);
    }
    let mut mappers = Vec::with_capacity(configuration.jwt.len());
    let (mut urls, mut discovery_urls) = (BTreeSet::new(), BTreeSet::new());
    for (at, jwt) in configuration.jwt.iter().enumerate() {
        let path = root.index(at);
        mappers.push(Arc::new(check_jwt(jwt, disallowed, &path, &mut errors)));
        let issuer = &jwt.issuer;
        if !urls.insert(issuer.url.as_str()) {
            errors.push(Error::duplicate(&path.child("issuer").child("url"), issuer.url.as_str()));
        }
        let discovery = issuer.discovery_url.as_str();
        if !discovery.is_empty() && !discovery_urls.insert(discovery) {
            let path = path.child("issuer").child("discoveryURL");
            errors.push(Error::duplicate(&path, discovery));
        }
    }
    if let Some(anonymous) = &configuration.anonymous
        && !anonymous.enabled
        && !anonymous.paths.is_empty()
    {
        let paths: Vec<_> =
            anonymous.paths.iter().map(|path| serde_json::json!({"Path": path})).collect();
        let why = "enabled should be set to true when conditions are defined";
        errors.push(Error::invalid(&Path::new("anonymous").child("conditions"), paths, why));
    }
    (mappers, errors)
}

/// The errors of a configuration.
#[derive(Debug, thiserror::Error)]
#[error("{}", aggregate_errors(.0))]
pub struct InvalidConfiguration(ErrorList);

impl InvalidConfiguration {
    /// Succeeds if there are no errors.
    pub(crate) fn check(errors: ErrorList) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self(errors)) }
    }
}

fn check_jwt(jwt: &Jwt, disallowed: &[String], path: &Path, errors: &mut ErrorList) -> Mapper {
    let mut mapper = Mapper::default();
    check_issuer(&jwt.issuer, disallowed, &path.child("issuer"), errors);
    let rules = path.child("claimValidationRules");
    mapper.claim_rules = claim_rules(&jwt.claim_rules, &rules, errors);
    mappings(&jwt.mappings, &path.child("claimMappings"), &mut mapper, errors);
    let rules = path.child("userValidationRules");
    mapper.user_rules = user_rules(&jwt.user_rules, &rules, errors);
    mapper
}

fn check_issuer(issuer: &Issuer, disallowed: &[String], path: &Path, errors: &mut ErrorList) {
    let field = path.child("url");
    if issuer.url.is_empty() {
        errors.push(Error::required(&field, ""));
    } else {
        check_url(&issuer.url, disallowed, &field, errors);
    }
    let discovery = issuer.discovery_url.as_str();
    if !discovery.is_empty() {
        let field = path.child("discoveryURL");
        let same = issuer.url.trim_end_matches('/') == discovery.trim_end_matches('/');
        if !issuer.url.is_empty() && same {
            let why = "discoveryURL must be different from URL";
            errors.push(Error::invalid(&field, discovery, why));
        }
        check_url(discovery, &[], &field, errors);
    }
    check_audiences(issuer, path, errors);
    let bundle = &issuer.certificate_authority;
    if !bundle.is_empty()
        && let Err(error) = check_certificates(bundle)
    {
        let field = path.child("certificateAuthority");
        errors.push(Error::invalid(&field, "<omitted>", error.to_string()));
    }
    let egress = issuer.egress_selector_type.as_str();
    if !egress.is_empty() {
        let why = "egress selectors are not supported: the issuer is reached from this machine";
        errors.push(Error::invalid(&path.child("egressSelectorType"), egress, why));
    }
}

/// The CA certificates of an issuer are unusable. The messages are Go's.
#[derive(Debug, thiserror::Error)]
enum BundleError {
    #[error("data does not contain any valid RSA or ECDSA certificates")]
    NoCertificates,
    #[error("x509: malformed certificate: {0}")]
    Malformed(#[from] x509_parser::nom::Err<x509_parser::error::X509Error>),
}

fn check_certificates(bundle: &str) -> Result<(), BundleError> {
    let certificates = base::pki::certificates(bundle).map_err(|_| BundleError::NoCertificates)?;
    if certificates.is_empty() {
        return Err(BundleError::NoCertificates);
    }
    for certificate in &certificates {
        x509_parser::parse_x509_certificate(certificate)?;
    }
    Ok(())
}

fn check_url(text: &str, disallowed: &[String], field: &Path, errors: &mut ErrorList) {
    if disallowed.iter().any(|issuer| issuer == text) {
        let mut sorted: Vec<&str> = disallowed.iter().map(String::as_str).collect();
        sorted.compact_sort();
        let why = format!("URL must not overlap with disallowed issuers: [{}]", sorted.join(" "));
        errors.push(Error::invalid(field, text, why));
    }
    let parts = match url::parse(text) {
        Ok(parts) => parts,
        Err(error) => return errors.push(Error::invalid(field, text, error.to_string())),
    };
    for (is_wrong, why) in [
        (parts.scheme != "https", "URL scheme must be https"),
        (parts.has_user, "URL must not contain a username or password"),
        (!parts.query.is_empty(), "URL must not contain a query"),
        (!parts.fragment.is_empty(), "URL must not contain a fragment"),
    ] {
        if is_wrong {
            errors.push(Error::invalid(field, text, why));
        }
    }
}

fn check_audiences(issuer: &Issuer, path: &Path, errors: &mut ErrorList) {
    let (audiences, field) = (&issuer.audiences, path.child("audiences"));
    if audiences.is_empty() {
        return errors.push(Error::required(&field, format!("at least one {field} is required")));
    }
    let mut seen = BTreeSet::new();
    for (at, audience) in audiences.iter().enumerate() {
        let field = field.index(at);
        if audience.is_empty() {
            errors.push(Error::required(&field, ""));
        }
        if !seen.insert(audience) {
            errors.push(Error::duplicate(&field, audience.as_str()));
        }
    }
    let (policy, field) =
        (issuer.audience_match_policy.as_str(), path.child("audienceMatchPolicy"));
    let why = match (audiences.len(), policy) {
        (_, "MatchAny") | (1, "") => return,
        (1, _) => "audienceMatchPolicy must be empty or MatchAny for single audience",
        _ => "audienceMatchPolicy must be MatchAny for multiple audiences",
    };
    errors.push(Error::invalid(&field, policy, why));
}

fn compile(
    variable: Variable,
    text: &str,
    required: ResultType,
    field: &Path,
    errors: &mut ErrorList,
) -> Option<Expression> {
    let compiled = Expression::compile(variable, text, required);
    compiled.map_err(|error| errors.push(error.at(field, text))).ok()
}

fn claim_rules(
    rules: &[ClaimRule],
    path: &Path,
    errors: &mut ErrorList,
) -> Vec<(Expression, String)> {
    let (mut claims, mut expressions) = (BTreeSet::new(), BTreeSet::new());
    let mut compiled = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        let path = path.index(at);
        match (rule.claim.is_empty(), rule.expression.is_empty()) {
            (false, false) => errors.push(Error::invalid(&path, rule.claim.as_str(), BOTH)),
            (true, true) => {
                errors.push(Error::required(&path, "claim or expression is required"));
            }
            (false, true) => {
                if !rule.message.is_empty() {
                    let why = "may not be specified when claim is set";
                    let field = path.child("message");
                    errors.push(Error::invalid(&field, rule.message.as_str(), why));
                }
                if !claims.insert(&rule.claim) {
                    errors.push(Error::duplicate(&path.child("claim"), rule.claim.as_str()));
                }
            }
            (true, false) => {
                if !rule.required_value.is_empty() {
                    let why = "may not be specified when expression is set";
                    let field = path.child("requiredValue");
                    errors.push(Error::invalid(&field, rule.required_value.as_str(), why));
                }
                let (text, field) = (rule.expression.as_str(), path.child("expression"));
                if !expressions.insert(text) {
                    errors.push(Error::duplicate(&field, text));
                    continue;
                }
                let made = compile(Variable::Claims, text, ResultType::Bool, &field, errors);
                compiled.extend(made.map(|expression| (expression, rule.message.clone())));
            }
        }
    }
    compiled
}

fn mapping(
    mapping: &Mapping,
    path: &Path,
    is_required: bool,
    errors: &mut ErrorList,
) -> Option<Expression> {
    match (mapping.claim.is_empty(), mapping.expression.is_empty()) {
        (false, false) => errors.push(Error::invalid(path, "", BOTH)),
        (true, true) if is_required => {
            errors.push(Error::required(path, "claim or expression is required"));
        }
        (true, true) => {}
        (true, false) => {
            if let Some(prefix) = &mapping.prefix {
                let why = "may not be specified when expression is set";
                errors.push(Error::invalid(&path.child("prefix"), prefix.as_str(), why));
            }
            let (text, field) = (mapping.expression.as_str(), path.child("expression"));
            return compile(Variable::Claims, text, ResultType::Any, &field, errors);
        }
        (false, true) if mapping.prefix.is_none() => {
            let why = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
            errors.push(Error::required(&path.child("prefix"), why));
        }
        (false, true) => {}
    }
    None
}

fn mappings(given: &Mappings, path: &Path, mapper: &mut Mapper, errors: &mut ErrorList) {
    mapper.username = mapping(&given.username, &path.child("username"), true, errors);
    mapper.groups = mapping(&given.groups, &path.child("groups"), false, errors);
    let uid = &given.uid;
    if !uid.claim.is_empty() && !uid.expression.is_empty() {
        errors.push(Error::invalid(&path.child("uid"), "", BOTH));
    } else if !uid.expression.is_empty() {
        let field = path.child("uid").child("expression");
        mapper.uid = compile(Variable::Claims, &uid.expression, ResultType::Any, &field, errors);
    }
    extra(given, path, mapper, errors);
    let uses_verified = |expression: &Expression| expression.selects("email_verified");
    let uses_email = mapper.username.as_ref().is_some_and(|e| e.selects("email"));
    let is_verified = mapper.username.as_ref().is_some_and(uses_verified)
        || mapper.extra.iter().any(|(_, expression)| uses_verified(expression))
        || mapper.claim_rules.iter().any(|(expression, _)| uses_verified(expression));
    if uses_email && !is_verified {
        let why = "claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression";
        let field = path.child("username").child("expression");
        errors.push(Error::invalid(&field, given.username.expression.as_str(), why));
    }
}

fn extra(given: &Mappings, path: &Path, mapper: &mut Mapper, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (at, entry) in given.extra.iter().enumerate() {
        let path = path.child("extra").index(at);
        let (key, field) = (entry.key.as_str(), path.child("key"));
        errors.extend(domain_prefixed_path(key, &field));
        if key != key.to_lowercase() {
            errors.push(Error::invalid(&field, key, "must be lowercase"));
        }
        if is_of_kubernetes(key) {
            let why = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
            errors.push(Error::invalid(&field, key, why));
        }
        if !seen.insert(key) {
            errors.push(Error::duplicate(&field, key));
            continue;
        }
        let field = path.child("valueExpression");
        if entry.value_expression.is_empty() {
            errors.push(Error::required(&field, ""));
            continue;
        }
        let text = &entry.value_expression;
        let made = compile(Variable::Claims, text, ResultType::Any, &field, errors);
        mapper.extra.extend(made.map(|expression| (key.to_owned(), expression)));
    }
}

/// Upstream's `IsDomainPrefixedPath`.
fn domain_prefixed_path(value: &str, field: &Path) -> ErrorList {
    if value.is_empty() {
        return vec![Error::required(field, "")];
    }
    let Some((host, path)) = value.split_once('/').filter(|(h, p)| !h.is_empty() && !p.is_empty())
    else {
        let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return vec![Error::invalid(field, value, why)];
    };
    let mut errors: ErrorList = each(field, host, names::dns1123_subdomain(host)).collect();
    let is_good = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !path.bytes().all(is_good) {
        let why = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
        errors.push(Error::invalid(field, path, why));
    }
    errors
}

fn is_of_kubernetes(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    ["kubernetes.io", "k8s.io"].into_iter().any(|own| {
        domain == own || domain.strip_suffix(own).is_some_and(|rest| rest.ends_with('.'))
    })
}

fn user_rules(
    rules: &[UserRule],
    path: &Path,
    errors: &mut ErrorList,
) -> Vec<(Expression, String)> {
    let mut seen = BTreeSet::new();
    let mut compiled = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        let (text, field) = (rule.expression.as_str(), path.index(at).child("expression"));
        if text.is_empty() {
            errors.push(Error::required(&field, ""));
        } else if !seen.insert(text) {
            errors.push(Error::duplicate(&field, text));
        } else {
            let made = compile(Variable::User, text, ResultType::Bool, &field, errors);
            compiled.extend(made.map(|expression| (expression, rule.message.clone())));
        }
    }
    compiled
}
