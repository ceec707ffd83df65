//! Valid and invalid requests and decisions, with upstream's texts.

use super::*;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SanType, SignatureAlgorithm};
use serde_json::json;
use std::time::Duration;

fn texts(errors: &ErrorList) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn stub(key: &KeyPair) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serialize_request(key).unwrap().der().to_vec()
}

fn object(signer: &str, seconds: i64, request: &[u8]) -> Value {
    json!({"metadata": {"name": "req-1", "namespace": "n"}, "spec": {
        "signerName": signer, "podName": "web", "podUID": "p1", "serviceAccountName": "default",
        "serviceAccountUID": "s1", "nodeName": "a", "nodeUID": "u1",
        "maxExpirationSeconds": seconds, "stubPKCS10Request": STANDARD.encode(request)}})
}

#[test]
fn requests_are_signed_with_a_key_of_an_allowed_type() {
    let kinds: [&SignatureAlgorithm; 3] =
        [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519];
    for kind in kinds {
        let request = stub(&KeyPair::generate_for(kind).unwrap());
        assert_eq!(texts(&validate(&object("a.b/c", 3600, &request))), [""; 0]);
        let mut broken = request.clone();
        // The last byte is the signature's.
        *broken.last_mut().unwrap() ^= 1;
        assert_eq!(
            texts(&validate(&object("a.b/c", 3600, &broken))),
            ["spec.stubPKCS10Request: Invalid value: invalid signature"]
        );
        let mut longer = request;
        longer.push(0);
        assert_eq!(
            texts(&validate(&object("a.b/c", 3600, &longer))),
            ["spec.stubPKCS10Request: Invalid value: must be a valid PKCS#10 CSR"]
        );
    }
    assert_eq!(
        texts(&validate(&object("a.b/c", 3600, &[0; 10_241]))),
        ["spec.stubPKCS10Request: Too long: may not be more than 10240 bytes"]
    );
}

#[test]
fn a_request_needs_pod_service_account_node_and_a_lifetime_within_limits() {
    let request = stub(&KeyPair::generate().unwrap());
    let life = |signer, seconds| texts(&validate(&object(signer, seconds, &request)));
    let text = |text: &str| vec![format!("spec.maxExpirationSeconds: Invalid value: {text}")];
    assert_eq!(life("a.b/c", 7_862_400), [""; 0]);
    assert_eq!(life("a.b/c", 3599), text("3599: must be in the range [3600, 7862400]"));
    assert_eq!(life("kubernetes.io/c", 86_401), text("86401: must be in the range [3600, 86400]"));
    assert_eq!(
        texts(&validate(&json!({"spec": {"podUID": "x".repeat(129)}}))),
        [
            "spec.signerName: Required value",
            "spec.podName: Invalid value: \"\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            "spec.podUID: Too long: may not be more than 128 bytes",
            "spec.serviceAccountName: Invalid value: \"\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            "spec.serviceAccountUID: Invalid value: \"\": must not be empty",
            "spec.nodeName: Invalid value: \"\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            "spec.nodeUID: Invalid value: \"\": must not be empty",
            "spec.maxExpirationSeconds: Required value: must be set",
        ]
    );
    assert_eq!(
        texts(&validate(&object("a.b/c", 3600, &[]))),
        [
            "spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set"
        ]
    );
}

#[test]
fn the_spec_is_immutable() {
    let old = object("a.b/c", 3600, &[]);
    let mut new = old.clone();
    new["spec"]["podName"] = json!("other");
    assert_eq!(validate_change(&old, &old), []);
    assert_eq!(
        texts(&validate_change(&new, &old)),
        [
            r#"spec: Invalid value: {"SignerName":"a.b/c","PodName":"other","PodUID":"p1","ServiceAccountName":"default","ServiceAccountUID":"s1","NodeName":"a","NodeUID":"u1","MaxExpirationSeconds":3600,"PKIXPublicKey":null,"ProofOfPossession":null,"StubPKCS10Request":"","UnverifiedUserAnnotations":null}: field is immutable"#
        ]
    );
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "reason": "Why", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn decide(old: &Value, status: Value) -> Vec<String> {
    let mut new = old.clone();
    new["status"] = status;
    texts(&validate_status("status", &new, old))
}

#[test]
fn a_request_has_one_decision_that_does_not_change() {
    let old = object("a.b/c", 3600, &[]);
    assert_eq!(decide(&old, json!({"conditions": [condition("Denied", "True")]})), [""; 0]);
    assert_eq!(decide(&old, json!({"conditions": [condition("Failed", "True")]})), [""; 0]);
    assert_eq!(decide(&old, json!({})), [""; 0]);
    assert_eq!(
        decide(
            &old,
            json!({"conditions": [condition("Denied", "True"), condition("Failed", "False")]})
        ),
        [
            "status.conditions.[1].type: Invalid value: \"Failed\": There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"",
            "status.conditions.[1].status: Unsupported value: \"False\": supported values: \"True\"",
        ]
    );
    assert_eq!(
        decide(&old, json!({"conditions": [condition("Approved", "True")]})),
        [
            "status.conditions.[0].type: Unsupported value: \"Approved\": supported values: \"Issued\", \"Denied\", \"Failed\""
        ]
    );
    let with_chain = json!({"conditions": [condition("Denied", "True")], "certificateChain": "x"});
    assert_eq!(
        decide(&old, with_chain.clone()),
        [
            "status: Invalid value: non-condition status fields must be empty when denying or failing the PodCertificateRequest"
        ]
    );
    assert_eq!(
        decide(&old, json!({"certificateChain": "x"})),
        [
            "status: Invalid value: status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\""
        ]
    );
    let mut denied = old.clone();
    denied["status"] = json!({"conditions": [condition("Denied", "True")]});
    assert_eq!(
        decide(&denied, json!({"conditions": [condition("Failed", "True")]})),
        [
            "status: Invalid value: immutable after PodCertificateRequest is issued, denied, or failed"
        ]
    );
    assert_eq!(decide(&denied, denied["status"].clone()), [""; 0]);
}

/// An issued status whose leaf lives from `begin` to `end` (seconds since the epoch), for the key.
fn issued(key: &KeyPair, begin: u64, end: u64, names: Vec<SanType>) -> Value {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.not_before = epoch + Duration::from_secs(begin);
    params.not_after = epoch + Duration::from_secs(end);
    params.subject_alt_names = names;
    let pem = params.self_signed(key).unwrap().pem();
    let time = |seconds: u64| {
        let seconds = i64::try_from(seconds).unwrap();
        jiff::Timestamp::from_second(seconds).unwrap().to_string()
    };
    json!({"conditions": [condition("Issued", "True")], "certificateChain": pem,
        "notBefore": time(begin), "notAfter": time(end), "beginRefreshAt": time(begin + 1800)})
}

#[test]
fn an_issued_certificate_has_the_requested_key_and_lifetime() {
    let key = KeyPair::generate().unwrap();
    let old = object("a.b/c", 7200, &stub(&key));
    let now = base::clock::unix_time().as_secs();
    let good = issued(&key, now, now + 7200, Vec::new());
    assert_eq!(decide(&old, good.clone()), [""; 0]);
    let with = |field: &str, value: Value| {
        let mut status = good.clone();
        status[field] = value;
        decide(&old, status)
    };
    let chain = good["certificateChain"].as_str().unwrap();
    let quoted = api::field::go_quote;
    let of_chain = |chain: &str, why: &str| {
        vec![format!("status.certificateChain: Invalid value: {}: {why}", quoted(chain))]
    };
    assert_eq!(
        with("certificateChain", json!("")),
        of_chain("", "issued certificate chain must contain at least one certificate")
    );
    let private = chain.replace("CERTIFICATE", "PRIVATE KEY");
    assert_eq!(
        with("certificateChain", json!(private)),
        of_chain(
            &private,
            "issued certificate chain must consist entirely of CERTIFICATE PEM blocks"
        )
    );
    let with_key = format!("{chain}{private}");
    assert_eq!(
        with("certificateChain", json!(with_key)),
        of_chain(
            &with_key,
            "issued certificate chain must consist entirely of CERTFICATE PEM blocks"
        )
    );
    let noise = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert_eq!(
        with("certificateChain", json!(noise)),
        of_chain(noise, "leaf certificate does not parse as valid X.509")
    );
    let after = format!("{chain}{noise}");
    assert_eq!(
        with("certificateChain", json!(after)),
        of_chain(&after, "intermediate certificate does not parse as valid X.509")
    );
    assert_eq!(with("certificateChain", json!(format!("{chain}{chain}"))), [""; 0]);
    let foreign = issued(&KeyPair::generate().unwrap(), now, now + 7200, Vec::new());
    let text = foreign["certificateChain"].as_str().unwrap().to_owned();
    assert_eq!(
        decide(&old, foreign),
        of_chain(&text, "leaf certificate was not issued to the requested public key")
    );
}

#[test]
fn the_times_of_a_status_equal_those_of_the_leaf() {
    let key = KeyPair::generate().unwrap();
    let old = object("a.b/c", 7200, &stub(&key));
    let now = base::clock::unix_time().as_secs();
    let good = issued(&key, now, now + 7200, Vec::new());
    let with = |field: &str, value: Value| {
        let mut status = good.clone();
        status[field] = value;
        decide(&old, status)
    };
    assert_eq!(
        with("beginRefreshAt", Value::Null),
        [
            "status.beginRefreshAt: Required value: must be present and in the range [notbefore+10min, notafter-10min]"
        ]
    );
    assert_eq!(
        with("notBefore", good["notAfter"].clone())[0]
            .split_once(": must")
            .map(|(_, why)| why.to_owned()),
        Some(" be set to the NotBefore time encoded in the leaf certificate".to_owned())
    );
    let begin = good["notBefore"].as_str().unwrap();
    assert_eq!(
        with("beginRefreshAt", json!(begin)),
        [format!(
            "status.beginRefreshAt: Invalid value: \"{begin}\": must be at least 10 minutes after status.notBefore"
        )]
    );
    for (field, what) in [("notBefore", "NotBefore"), ("notAfter", "NotAfter")] {
        let whole = good[field].as_str().unwrap().trim_end_matches('Z');
        let part = format!("{whole}.5Z");
        assert_eq!(
            with(field, json!(part)),
            [format!(
                "status.{field}: Invalid value: \"{part}\": must be set to the {what} time encoded in the leaf certificate"
            )]
        );
    }
    let end = good["notAfter"].as_str().unwrap();
    assert_eq!(
        with("beginRefreshAt", json!(end)),
        [format!(
            "status.beginRefreshAt: Invalid value: \"{end}\": must be at least 10 minutes before status.notAfter"
        )]
    );
    let lives = |begin, end| decide(&old, issued(&key, begin, end, Vec::new()));
    assert_eq!(
        lives(now, now + 3599),
        [
            "status.certificateChain: Invalid value: 3599000000000: leaf certificate lifetime must be >= 1 hour"
        ]
    );
    assert_eq!(
        lives(now, now + 7201),
        [
            "status.certificateChain: Invalid value: 7201000000000: leaf certificate lifetime must be <= spec.maxExpirationSeconds (7200)"
        ]
    );
    assert!(
        lives(now - 301, now + 3600)[0]
            .ends_with("must be set to within 5 minutes of kube-apiserver's current time")
    );
}

/// Validation sees fractions as the client sent them, by JSON and by a patch; the stored times have
/// none.
#[test]
fn fractions_of_a_second_are_validated_and_dropped() {
    let schema = api::schema::Schema::builtin();
    let kind = api::Gvk::new("certificates.k8s.io", "v1", "PodCertificateRequest");
    let id = schema.kind(&kind).unwrap();
    let time = "2026-01-01T00:00:05.5Z";
    let mut object = json!({"status": {"notBefore": time, "beginRefreshAt": time}});
    api::codec::normalize(&schema, id, &mut object);
    assert_eq!(object["status"]["notBefore"], time);
    whole_seconds(&mut object);
    assert_eq!(object["status"]["beginRefreshAt"], "2026-01-01T00:00:05Z");
}

#[test]
fn invalid_names_of_the_leaf_are_rejected() {
    let key = KeyPair::generate().unwrap();
    let old = object("a.b/c", 7200, &stub(&key));
    let now = base::clock::unix_time().as_secs();
    let names = vec![
        SanType::DnsName("a..b".try_into().unwrap()),
        SanType::DnsName(".c".try_into().unwrap()),
        SanType::Rfc822Name("no-address".try_into().unwrap()),
        SanType::URI("spiffe://cluster.local/ns/a".try_into().unwrap()),
    ];
    assert_eq!(
        decide(&old, issued(&key, now, now + 7200, names)),
        [
            "status.certificateChain: Invalid value: \"a..b\": leaf certificate's DNSName should not contain '..'",
            "status.certificateChain: Invalid value: \".c\": leaf certificate's DNSName should not start or end with '.'",
            "status.certificateChain: Invalid value: \"no-address\": leaf certificate should not contain invalid EmailAddress",
        ]
    );
}
