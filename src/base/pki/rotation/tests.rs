//! Tests: which CA may replace another, and which certificates verify after the rotation.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyUsagePurpose};

use super::*;

/// 2027-01-15.
const NOW: u64 = 1_800_000_000;
const DAY: u64 = 24 * 60 * 60;

/// A CA that was created 400 days ago.
fn initial_ca() -> CaFiles {
    let key = KeyPair::generate().unwrap();
    let cert = super::super::ca_params("kube-lite-server-ca@1", NOW - 400 * DAY);
    CaFiles { cert: cert.self_signed(&key).unwrap().pem(), key: key.serialize_pem().into() }
}

fn parse_ca(files: &CaFiles) -> Ca {
    Ca::parse(files.cert.clone(), &files.key).unwrap()
}

fn successor_of(files: &CaFiles, at: u64) -> CaFiles {
    parse_ca(files).successor(at).unwrap()
}

/// Whether a certificate of `signer` verifies against the bundle of `verifier`.
fn trusts(verifier: &CaFiles, signer: &CaFiles) -> bool {
    let leaf = probe(&parse_ca(signer), Usage::Peer, NOW).unwrap();
    let anchors = tls::roots(&parse_ca(verifier).bundle()).unwrap();
    verify_chain(&leaf, anchors, Usage::Peer, NOW).is_ok()
}

fn refusal_of(old: &CaFiles, new: &CaFiles) -> String {
    admit(old, new, Usage::Peer, false, NOW).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn a_successor_and_its_predecessor_trust_each_other_but_not_older_ones() {
    let old = initial_ca();
    let new = successor_of(&old, NOW);
    assert!(admit(&old, &new, Usage::Peer, false, NOW).is_ok());
    assert!(trusts(&old, &new) && trusts(&new, &old));
    assert_eq!(certificates(&new.cert).unwrap().len(), 3);
    // The names of the CAs differ, even if they are created in the same second.
    let third = successor_of(&new, NOW);
    assert!(admit(&new, &third, Usage::Peer, false, NOW).is_ok());
    assert!(trusts(&new, &third) && trusts(&third, &new));
    assert!(!trusts(&old, &third) && !trusts(&third, &old));
    assert_eq!(certificates(&third.cert).unwrap().len(), 3);
    let names: std::collections::BTreeSet<String> = [&old, &new, &third]
        .map(|files| parse_ca(files).der)
        .iter()
        .map(|der| X509Certificate::from_der(der).unwrap().1.subject().to_string())
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[test]
fn an_unlinked_ca_is_refused_unless_forced() {
    let (old, other) = (initial_ca(), initial_ca());
    let refusal = refusal_of(&old, &other);
    assert!(refusal.contains("would not trust certificates of the new one"), "{refusal}");
    assert!(admit(&old, &other, Usage::Peer, true, NOW).is_ok());
    // With the old certificate in the bundle, old certificates still verify, but machines with the
    // old bundle do not trust new ones.
    let with_old = CaFiles { cert: format!("{}{}", other.cert, old.cert), ..other.clone() };
    assert!(refusal_of(&old, &with_old).contains("would not trust certificates of the new one"));
    // Cross-signed, but without the old certificate.
    let new = successor_of(&old, NOW);
    let two: String = certificates(&new.cert).unwrap()[..2].iter().map(pem).collect();
    let refusal = refusal_of(&old, &CaFiles { cert: two, ..new });
    assert!(refusal.contains("append the certificate of the CA in use"), "{refusal}");
}

#[test]
fn an_unusable_ca_is_refused_even_when_forced() {
    let (old, other) = (initial_ca(), initial_ca());
    let with =
        |cert: &str, key: &str| CaFiles { cert: cert.to_owned(), key: key.to_owned().into() };
    let leaf = parse_ca(&old).issue(&Profile::client("jane", None)).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = super::super::ca_params("other", NOW - 4000 * DAY);
    let expired_pem = params.self_signed(&key).unwrap().pem();
    params.not_after = rcgen::date_time_ymd(2040, 1, 1);
    params.not_before = rcgen::date_time_ymd(2039, 1, 1);
    let not_yet_valid = params.self_signed(&key).unwrap().pem();
    for (text, new) in [
        ("the certificate: the file holds none", with("", &other.key)),
        ("the key: holds no private key", with(&other.cert, "")),
        ("is not the key of the CA's certificate", with(&other.cert, &old.key)),
        ("not one of a CA", with(&leaf.cert_pem, &leaf.key_pem)),
        ("valid from Jan  1 00:00:00 1970", with(&expired_pem, &key.serialize_pem())),
        ("valid from Jan  1 00:00:00 2039", with(&not_yet_valid, &key.serialize_pem())),
        ("more than 16", with(&other.cert.repeat(17), &other.key)),
        (
            "the certificate: no PEM certificate",
            with("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", &other.key),
        ),
    ] {
        let refusal =
            admit(&old, &new, Usage::Peer, true, NOW).map(|_| ()).unwrap_err().to_string();
        assert!(refusal.contains(text), "{text}: {refusal}");
    }
}

#[test]
fn an_intermediate_may_replace_another_one_under_the_same_root() {
    let root_key = KeyPair::generate().unwrap();
    let params = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    };
    let root = params("root").self_signed(&root_key).unwrap();
    let issuer = rcgen::Issuer::new(params("root"), &root_key);
    let under = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let own = params(name).signed_by(&key, &issuer).unwrap();
        CaFiles { cert: format!("{}{}", own.pem(), root.pem()), key: key.serialize_pem().into() }
    };
    let (a, b) = (under("a"), under("b"));
    assert!(admit(&a, &b, Usage::Peer, false, NOW).is_ok());
    // The hash in tokens is that of the root and does not change.
    let hash = |files: &CaFiles| super::super::ca_hash(&files.cert).unwrap();
    assert_eq!(hash(&a), hash(&b));
    // A generated successor keeps the chain to the root.
    let ours = successor_of(&b, NOW);
    assert!(admit(&b, &ours, Usage::Peer, false, NOW).is_ok());
    assert_eq!(certificates(&ours.cert).unwrap().len(), 4);
}

#[test]
fn a_token_from_before_a_rotation_selects_its_certificate_in_the_bundle() {
    let old = initial_ca();
    let new = successor_of(&old, NOW);
    let hash = |files: &CaFiles| super::super::ca_hash(&files.cert).unwrap();
    let all = certificates(&new.cert).unwrap();
    assert_eq!(named(&new.cert, &hash(&old)).unwrap(), [all[2].clone()]);
    assert_eq!(named(&new.cert, &hash(&new)).unwrap(), [all[0].clone()]);
    assert_eq!(named(&old.cert, &hash(&new)).unwrap(), Vec::<CertificateDer<'_>>::new());
    assert_eq!(named(&old.cert, &hash(&old)).unwrap().len(), 1);
    // An attacker adds another CA to the bundle, with the name of the real one.
    let attacker_key = KeyPair::generate().unwrap();
    let false_ca = super::super::ca_params("kube-lite-server-ca@1", NOW).self_signed(&attacker_key);
    let shown = format!("{}{}", false_ca.unwrap().pem(), new.cert);
    assert_eq!(named(&shown, &hash(&new)).unwrap(), [all[0].clone()]);
    assert_eq!(named(&shown, &hash(&old)).unwrap(), [all[2].clone()]);
}

/// Keys in the formats of k3s's scripts: `openssl ecparam -name prime256v1 -genkey -noout` and
/// `openssl genrsa -traditional 2048`.
const SEC1: &str = include_str!("sec1.pem");
const PKCS1: &str = include_str!("pkcs1.pem");

#[test]
fn keys_of_all_openssl_formats_are_stored_as_pkcs8() {
    for (text, p256) in [(SEC1, true), (PKCS1, false)] {
        let key = keys(text).unwrap().swap_remove(0);
        assert_eq!(key.is_compatible(&rcgen::PKCS_ECDSA_P256_SHA256), p256);
        assert!(key.serialize_pem().starts_with("-----BEGIN PRIVATE KEY-----"));
        assert_eq!(spki(&keys(&key.serialize_pem()).unwrap()[0]), spki(&key));
    }
    assert_eq!(keys(&format!("{SEC1}{PKCS1}")).unwrap().len(), 2);
    assert!(keys("").unwrap_err().to_string().contains("no private key"));
    assert!(keys(&SEC1.repeat(17)).unwrap_err().to_string().contains("more than 16"));
}

#[test]
fn the_current_signing_key_must_stay_among_the_keys() {
    let old = KeyPair::generate().unwrap().serialize_pem();
    let new = signing_successor(&old).unwrap();
    let both = keys(&new).unwrap();
    assert_eq!(both.len(), 2);
    assert_eq!(spki(&both[1]), spki(&keys(&old).unwrap()[0]));
    assert_eq!(admit_signing(&old, &new, false).unwrap(), new);
    // As k3s's scripts: an RSA key of openssl before the current keys.
    let mixed = admit_signing(&old, &format!("{PKCS1}{old}"), false).unwrap();
    assert_eq!(keys(&mixed).unwrap().len(), 2);
    let refusal = admit_signing(&old, PKCS1, false).unwrap_err().to_string();
    assert!(refusal.contains("lacks the key that signs tokens now"), "{refusal}");
    assert!(admit_signing(&old, PKCS1, true).is_ok());
    let public = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
    assert!(
        admit_signing(&old, &format!("{old}{public}"), true)
            .unwrap_err()
            .to_string()
            .contains("public key")
    );
    let many = signing_successor(&old.repeat(16)).unwrap();
    assert_eq!(keys(&many).unwrap().len(), 16);
}
