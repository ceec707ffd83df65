//! Validation of `windowsOptions`: the name and content of the GMSA credential spec, and the user
//! name (`validateWindowsSecurityContextOptions`).

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::validation::{each, names};
use crate::value::get;

/// Maximum size of a GMSA credential spec, in KiB.
const CREDENTIALS_KIB_MAX: usize = 64;
/// Limit of the length of the domain in a user name, in bytes; the length has to be less.
const DOMAIN_MAX: usize = 256;
/// Maximum length of the user in a user name, in bytes.
const USER_MAX: usize = 104;
/// Maximum length of a NetBIOS name, in characters.
const NETBIOS_MAX: usize = 15;
/// Maximum length of a label of a DNS name, in bytes.
const LABEL_MAX: usize = 63;

/// Validates `windowsOptions` of a pod or a container.
pub(super) fn options(options: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if let Some(name) = get(options, "gmsaCredentialSpecName").as_str() {
        let field = path.child("gmsaCredentialSpecName");
        errors.extend(each(&field, name, names::dns1123_subdomain(name)));
    }
    if let Some(spec) = get(options, "gmsaCredentialSpec").as_str() {
        let field = path.child("gmsaCredentialSpec");
        if spec.is_empty() {
            let text = "gmsaCredentialSpec cannot be an empty string";
            errors.push(Error::invalid(&field, spec, text));
        } else if spec.len() > CREDENTIALS_KIB_MAX * 1024 {
            let text = format!("gmsaCredentialSpec size must be under {CREDENTIALS_KIB_MAX} KiB");
            errors.push(Error::invalid(&field, spec, text));
        }
    }
    if let Some(name) = get(options, "runAsUserName").as_str() {
        errors.extend(each(&path.child("runAsUserName"), name, user_name(name)));
    }
    errors
}

/// Returns the errors of a user name of the form `DOMAIN\\user` or `user`.
fn user_name(name: &str) -> Vec<String> {
    let only = |text: &str| vec![text.to_owned()];
    if name.is_empty() {
        return only("runAsUserName cannot be an empty string");
    }
    if name.bytes().any(|byte| byte.is_ascii_control()) {
        return only("runAsUserName cannot contain control characters");
    }
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return only("runAsUserName cannot contain more than one backslash"),
    };
    let mut texts = Vec::new();
    if let Some(domain) = domain {
        if domain.len() >= DOMAIN_MAX {
            let text = "runAsUserName's Domain length must be under";
            texts.push(format!("{text} {DOMAIN_MAX} characters"));
        }
        if !is_net_bios(domain) && !is_dns(domain) {
            let text = "runAsUserName's Domain doesn't match the NetBios nor the DNS format";
            texts.push(text.into());
        }
    }
    if user.is_empty() {
        texts.push("runAsUserName's User cannot be empty".into());
    } else if user.len() > USER_MAX {
        let text = "runAsUserName's User length must not be longer than";
        texts.push(format!("{text} {USER_MAX} characters"));
    }
    if !user.is_empty() && user.chars().all(|c| matches!(c, '.' | ' ')) {
        texts.push("runAsUserName's User cannot contain only periods or spaces".into());
    }
    if user
        .contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']'])
    {
        let text =
            "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]";
        texts.push(text.into());
    }
    texts
}

fn is_net_bios(domain: &str) -> bool {
    let bad = ['\\', '/', ':', '*', '?', '"', '<', '>', '|'];
    (1..=NETBIOS_MAX).contains(&domain.chars().count())
        && !domain.starts_with('.')
        && !domain.contains(bad)
}

fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| {
        let edge = |c: char| c.is_ascii_alphanumeric();
        label.len() <= LABEL_MAX
            && label.starts_with(edge)
            && label.ends_with(edge)
            && label.chars().all(|c| edge(c) || c == '-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Cases of upstream's `TestValidateWindowsSecurityContextOptions`.
    #[test]
    fn users_are_named_as_windows_names_them() {
        for good in [
            "ContainerUser",
            "NT AUTHORITY\\NETWORK SERVICE",
            "test-domain.example.com\\alice",
            "test$domain\\user",
        ] {
            assert_eq!(user_name(good), [""; 0], "{good}");
        }
        let dots = "runAsUserName's User cannot contain only periods or spaces";
        for (bad, why) in [
            ("", "runAsUserName cannot be an empty string"),
            ("a\tb", "runAsUserName cannot contain control characters"),
            ("Foo\\Bar\\Lish", "runAsUserName cannot contain more than one backslash"),
            ("Foo\\", "runAsUserName's User cannot be empty"),
            ("... ...", dots),
            (
                ".netbios\\user",
                "runAsUserName's Domain doesn't match the NetBios nor the DNS format",
            ),
            (
                "user[",
                "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]",
            ),
        ] {
            assert_eq!(user_name(bad), [why], "{bad}");
        }
        let long = format!("{}\\u", "a".repeat(256));
        assert_eq!(
            user_name(&long)[0],
            "runAsUserName's Domain length must be under 256 characters"
        );
        let long = format!("d\\{}", "u".repeat(105));
        assert_eq!(
            user_name(&long),
            ["runAsUserName's User length must not be longer than 104 characters"]
        );
    }

    #[test]
    fn credentials_are_named() {
        let said = options(
            &json!({"gmsaCredentialSpecName": "aValue", "gmsaCredentialSpec": ""}),
            &Path::new("w"),
        );
        let said: Vec<String> = said.iter().map(ToString::to_string).collect();
        assert!(said[0].starts_with(
            "w.gmsaCredentialSpecName: Invalid value: \"aValue\": a lowercase RFC 1123 subdomain"
        ));
        assert_eq!(
            said[1],
            "w.gmsaCredentialSpec: Invalid value: \"\": gmsaCredentialSpec cannot be an empty string"
        );
    }
}
