//! Impersonation: the `Impersonate-*` headers, each value authorized for the requesting user.

use std::collections::BTreeMap;

use api::Status;
use http::{HeaderMap, HeaderValue};

use crate::authz::chain;
use crate::authz::{Attributes, Authorizer};
use crate::request::user::User;

const EXTRA: &str = "impersonate-extra-";

/// Decodes percent-encoding in a header's key; an invalid key is returned unchanged.
pub(super) fn unescape(key: &str) -> String {
    let mut out = Vec::with_capacity(key.len());
    let mut bytes = key.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else {
            return key.to_owned();
        };
        out.push(u8::try_from(high * 16 + low).unwrap_or_default());
    }
    String::from_utf8(out).unwrap_or_else(|_| key.to_owned())
}

/// The text of a header as UTF-8, because Go accepts bytes beyond ASCII, too.
pub(super) fn text(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}

/// Rejects unreadable values: ignoring one would run the request as its original user.
fn values<'h>(headers: &'h HeaderMap, name: &str) -> Result<Vec<&'h str>, Status> {
    headers.get_all(name).iter().map(|value| readable(name, value)).collect()
}

fn readable<'h>(name: &str, value: &'h HeaderValue) -> Result<&'h str, Status> {
    text(value).ok_or_else(|| Status::bad_request(format!("header {name} is no text")))
}

/// The namespace and name of `system:serviceaccount:<namespace>:<name>`.
pub fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// Like [`chain::require`], recorded in the metrics.
async fn require(
    authorizer: &dyn Authorizer,
    user: &User,
    attributes: &Attributes<'_>,
) -> Result<(), Status> {
    let begun = base::clock::now();
    let outcome = chain::require(authorizer, user, attributes).await;
    crate::metrics::requests::impersonation_checked(outcome.is_ok(), begun.elapsed());
    outcome
}

/// The impersonated user, if the request asks for one.
///
/// # Errors
/// 400 if groups, UID or extra come without a user, 403 if `user` may not impersonate one of the
/// values.
pub async fn impersonated(
    headers: &HeaderMap,
    user: &User,
    authorizer: &dyn Authorizer,
) -> Result<Option<User>, Status> {
    let name = values(headers, "impersonate-user")?.first().copied().unwrap_or_default();
    let uid = values(headers, "impersonate-uid")?.first().copied().unwrap_or_default();
    let groups = values(headers, "impersonate-group")?;
    let mut extra: Vec<(String, &str)> = Vec::new();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            extra.push((unescape(key), readable(name.as_str(), value)?));
        }
    }
    if name.is_empty() {
        if groups.is_empty() && extra.is_empty() && uid.is_empty() {
            return Ok(None);
        }
        return Err(Status::bad_request(format!(
            "requested {} without impersonating a user name",
            go_user(&groups, &extra, uid)
        )));
    }
    let mut acting = User { name: name.to_owned(), ..User::default() };
    let base = Attributes { verb: "impersonate", ..Attributes::default() };
    if let Some((namespace, account)) = service_account(name) {
        let attributes = Attributes {
            resource: "serviceaccounts",
            version: "v1",
            namespace,
            name: account,
            ..base.clone()
        };
        require(authorizer, user, &attributes).await?;
        if groups.is_empty() {
            acting.groups = vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{namespace}"),
            ];
        }
    } else {
        require(authorizer, user, &Attributes { resource: "users", name, ..base.clone() }).await?;
    }
    for group in &groups {
        require(authorizer, user, &Attributes { resource: "groups", name: group, ..base.clone() })
            .await?;
        acting.groups.push((*group).to_owned());
    }
    let authentication = Attributes { group: "authentication.k8s.io", version: "v1", ..base };
    for (key, value) in extra {
        let attributes = Attributes {
            resource: "userextras",
            subresource: &key,
            name: value,
            ..authentication.clone()
        };
        require(authorizer, user, &attributes).await?;
        acting.extra.entry(key).or_default().push(value.to_owned());
    }
    if !uid.is_empty() {
        require(authorizer, user, &Attributes { resource: "uids", name: uid, ..authentication })
            .await?;
        acting.uid = uid.to_owned();
    }
    complete(&mut acting);
    Ok(Some(acting))
}

/// Adds the group for authenticated or unauthenticated users, unless the request did.
fn complete(user: &mut User) {
    let (all, none) = ("system:authenticated", "system:unauthenticated");
    if user.name == "system:anonymous" {
        if !user.in_group(none) {
            user.groups.push(none.into());
        }
    } else if !user.in_group(all) && !user.in_group(none) {
        user.groups.push(all.into());
    }
}

/// The requested user in Go's format.
fn go_user(groups: &[&str], extra: &[(String, &str)], uid: &str) -> String {
    let quoted = |texts: &[&str]| {
        let texts: Vec<String> = texts.iter().map(|text| api::field::go_quote(text)).collect();
        format!("[]string{{{}}}", texts.join(", "))
    };
    let groups = if groups.is_empty() { "[]string(nil)".to_owned() } else { quoted(groups) };
    let mut by_key = BTreeMap::<&str, Vec<&str>>::new();
    for (key, value) in extra {
        by_key.entry(key).or_default().push(value);
    }
    let pairs: Vec<String> = by_key
        .iter()
        .map(|(key, values)| format!("{}:{}", api::field::go_quote(key), quoted(values)))
        .collect();
    let extra =
        if pairs.is_empty() { "(nil)".to_owned() } else { format!("{{{}}}", pairs.join(", ")) };
    let uid = api::field::go_quote(uid);
    format!(
        r#"&user.DefaultInfo{{Name:"", UID:{uid}, Groups:{groups}, Extra:map[string][]string{extra}}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::Decision;
    use async_trait::async_trait;
    use parking_lot::Mutex;

    /// Allows everything except one resource, and records the checks.
    struct Except(&'static str, Mutex<Vec<String>>);

    #[async_trait]
    impl Authorizer for Except {
        async fn authorize(&self, _: &User, a: &Attributes<'_>) -> Decision {
            self.1
                .lock()
                .push(format!("{}/{} {}/{}", a.resource, a.subresource, a.namespace, a.name));
            if a.resource == self.0 {
                Decision::NoOpinion(String::new())
            } else {
                Decision::Allow(String::new())
            }
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(k, v)| (http::HeaderName::from_static(k), http::HeaderValue::from_static(v)))
            .collect()
    }

    #[tokio::test]
    async fn every_value_is_authorized() {
        let all = [
            ("impersonate-user", "jane"),
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
            ("impersonate-extra-acme.com%2fproject", "x"),
            ("impersonate-uid", "7"),
        ];
        let none = Except("", Mutex::default());
        let user = impersonated(&headers(&all), &User::authenticated("root", &[]), &none)
            .await
            .unwrap()
            .unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "7"));
        assert_eq!(user.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(user.extra["acme.com/project"], ["x"]);
        assert_eq!(
            *none.1.lock(),
            [
                "users/ /jane",
                "groups/ /dev",
                "groups/ /ops",
                "userextras/acme.com/project /x",
                "uids/ /7"
            ]
        );
        for resource in ["users", "groups", "userextras", "uids"] {
            let error = impersonated(
                &headers(&all),
                &User::authenticated("root", &[]),
                &Except(resource, Mutex::default()),
            )
            .await
            .unwrap_err();
            assert_eq!(error.code, 403);
        }
    }

    #[tokio::test]
    async fn unauthorized_impersonation_is_rejected() {
        let joe = User::authenticated("joe", &[]);
        let error = impersonated(
            &headers(&[("impersonate-user", "jane")]),
            &joe,
            &Except("users", Mutex::default()),
        )
        .await
        .unwrap_err();
        assert_eq!(
            error.message,
            r#"users "jane" is forbidden: User "joe" cannot impersonate resource "users" in API group "" at the cluster scope"#
        );
        let error = impersonated(
            &headers(&[("impersonate-group", "dev")]),
            &joe,
            &Except("", Mutex::default()),
        )
        .await
        .unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (
                400,
                r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"dev"}, Extra:map[string][]string(nil)} without impersonating a user name"#
            )
        );
    }

    /// C1.3: each header is authorized separately, in upstream's form; the request then runs as the
    /// impersonated user only.
    #[tokio::test]
    async fn each_impersonated_value_needs_its_own_permission() {
        let root = User::authenticated("root", &["system:masters"]);
        let user = ("impersonate-user", "jane");
        for (pairs, missing, want) in [
            (vec![user], "", Ok("jane [system:authenticated]")),
            (vec![user], "users", Err(403)),
            (vec![user, ("impersonate-group", "system:masters")], "groups", Err(403)),
            (vec![user, ("impersonate-uid", "7")], "uids", Err(403)),
            (vec![user, ("impersonate-extra-scopes", "view")], "userextras", Err(403)),
            (vec![("impersonate-group", "dev")], "", Err(400)),
            (vec![("impersonate-uid", "7")], "", Err(400)),
            (vec![("impersonate-extra-scopes", "view")], "", Err(400)),
            (
                vec![("impersonate-user", "system:serviceaccount:a:b")],
                "users",
                Ok(
                    "system:serviceaccount:a:b [system:serviceaccounts system:serviceaccounts:a system:authenticated]",
                ),
            ),
            (vec![("impersonate-user", "system:serviceaccount:a:b")], "serviceaccounts", Err(403)),
            (
                vec![("impersonate-user", "system:anonymous")],
                "",
                Ok("system:anonymous [system:unauthenticated]"),
            ),
        ] {
            let authorizer = Except(missing, Mutex::default());
            let got = impersonated(&headers(&pairs), &root, &authorizer).await;
            let got = got.map_err(|status| status.code);
            let got = got.map(|user| user.map(|u| format!("{} [{}]", u.name, u.groups.join(" "))));
            assert_eq!(got, want.map(|w| Some(w.to_owned())), "{pairs:?} without {missing}");
        }
    }

    /// C1.3: an unreadable value never lets a request run as its original user.
    #[tokio::test]
    async fn non_ascii_values_are_decoded_or_rejected() {
        let root = User::authenticated("root", &["system:masters"]);
        let all = Except("", Mutex::default());
        for name in
            ["impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-x"]
        {
            let with = |value: &[u8]| {
                let mut map = headers(&[("impersonate-user", "jane")]);
                map.insert(name, HeaderValue::from_bytes(value).unwrap());
                map
            };
            let refused = impersonated(&with(b"jan\xff"), &root, &all).await.unwrap_err();
            assert_eq!(refused.code, 400, "{name}");
            let read = impersonated(&with("jané".as_bytes()), &root, &all).await.unwrap().unwrap();
            assert!(format!("{read:?}").contains("jané"), "{name}: {read:?}");
        }
    }

    #[tokio::test]
    async fn an_impersonated_service_account_has_its_groups() {
        let header = headers(&[("impersonate-user", "system:serviceaccount:shop:bot")]);
        let user =
            impersonated(&header, &User::authenticated("root", &[]), &Except("", Mutex::default()))
                .await
                .unwrap()
                .unwrap();
        assert_eq!(
            user.groups,
            ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"]
        );
    }
}
