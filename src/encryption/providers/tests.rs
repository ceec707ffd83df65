//! Every provider decrypts the values of the others, and values from Go's libraries.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

const KEY: &str = "/registry/secrets/default/s";

fn keyed(prefix: &'static str, keys: Vec<(&str, Method)>) -> Provider {
    let keys = keys.into_iter().map(|(name, method)| (format!("{name}:"), method)).collect();
    Provider::Keyed(Arc::new(Keyed { prefix, keys, algorithm: "AES" }))
}

fn all() -> Vec<Provider> {
    vec![
        keyed(
            "k8s:enc:aescbc:v1:",
            vec![("a", Method::cbc(&[1; 32]).unwrap()), ("b", Method::cbc(&[2; 16]).unwrap())],
        ),
        keyed(
            "k8s:enc:aesgcm:v1:",
            vec![("a", Method::gcm(&[3; 24]).unwrap()), ("b", Method::gcm(&[4; 16]).unwrap())],
        ),
        keyed("k8s:enc:secretbox:v1:", vec![("a", Method::secretbox(&[5; 32]).unwrap())]),
        Provider::Identity,
    ]
}

#[test]
fn values_of_other_providers_are_read_and_stale() {
    let metrics = EncryptionMetrics::default();
    for length in [0, 1, 15, 16, 17, 1000] {
        let plain = Bytes::from(vec![b'x'; length]);
        for first in 0..4 {
            let mut order = all();
            order.rotate_left(first);
            let stored = seal(&order, "secrets", KEY, &plain, &metrics).unwrap();
            assert!(stored.starts_with(order[0].prefix().as_bytes()));
            for (turn, stale) in [(0, false), (1, true)] {
                let mut readers = order.clone();
                readers.rotate_left(turn);
                let opened = open(&readers, "secrets", KEY, &stored, &metrics).unwrap();
                assert_eq!((opened.plain, opened.stale), (plain.clone(), stale), "{first} {turn}");
            }
        }
    }
    let mut text = String::new();
    metrics.render(&mut text);
    assert!(text.contains("apiserver_storage_transformation_operations_total{resource=\"secrets\",status=\"OK\",transformation_type=\"to_storage\",transformer_prefix=\"k8s:enc:aescbc:v1:\"} 6\n"), "{text}");
}

#[test]
fn values_of_a_former_key_are_stale_and_unusable_values_are_errors() {
    let metrics = EncryptionMetrics::default();
    let cbc = |keys: &[(&'static str, u8)]| {
        let keys = keys.iter().map(|(name, byte)| (*name, Method::cbc(&[*byte; 32]).unwrap()));
        vec![keyed("k8s:enc:aescbc:v1:", keys.collect())]
    };
    let plain = Bytes::from_static(b"{}");
    let stored = seal(&cbc(&[("a", 1)]), "secrets", KEY, &plain, &metrics).unwrap();
    let opened = open(&cbc(&[("b", 2), ("a", 1)]), "secrets", KEY, &stored, &metrics).unwrap();
    assert!(opened.stale);
    let error = |list: &[Provider], stored: &Bytes| {
        open(list, "secrets", KEY, stored, &metrics).unwrap_err().to_string()
    };
    assert_eq!(
        error(&cbc(&[("b", 2)]), &stored),
        "no matching key was found for the provided AES transformer"
    );
    assert_eq!(error(&cbc(&[("a", 1)]), &plain), "no matching prefix found");
    assert_eq!(error(&cbc(&[("a", 1)]), &stored.slice(..24)), CipherError::TooShort.to_string());
    assert_eq!(
        error(&cbc(&[("a", 1)]), &stored.slice(..stored.len() - 1)),
        "the stored data is not a multiple of the block size"
    );
    let gcm = [keyed("k8s:enc:aesgcm:v1:", vec![("a", Method::gcm(&[1; 24]).unwrap())])];
    let sealed = seal(&gcm, "secrets", KEY, &plain, &metrics).unwrap();
    let other = open(&gcm, "secrets", "/registry/secrets/default/other", &sealed, &metrics);
    assert_eq!(other.unwrap_err().to_string(), "cipher: message authentication failed");
    let sealed_box =
        [keyed("k8s:enc:secretbox:v1:", vec![("a", Method::secretbox(&[1; 32]).unwrap())])];
    let mut stored = seal(&sealed_box, "secrets", KEY, &plain, &metrics).unwrap().to_vec();
    *stored.last_mut().unwrap() ^= 1;
    assert_eq!(
        error(&sealed_box, &stored.into()),
        "output array was not large enough for encryption"
    );
}

/// Created with Go 1.26's `crypto/aes`, `crypto/cipher` and `golang.org/x/crypto/nacl/secretbox`,
/// with keys 0, 1, 2, … and nonces of 7.
#[test]
fn values_from_gos_libraries_are_read() {
    let key: Vec<u8> = (0..32).collect();
    let metrics = EncryptionMetrics::default();
    let read = |provider: Provider, text: &str| {
        let stored = Bytes::from(
            [provider.prefix().as_bytes(), b"k:", &STANDARD.decode(text).unwrap()].concat(),
        );
        open(&[provider], "secrets", KEY, &stored, &metrics).unwrap().plain
    };
    for (provider, text) in [
        (keyed("k8s:enc:aescbc:v1:", vec![("k", Method::cbc(&key).unwrap())]), CBC),
        (keyed("k8s:enc:aesgcm:v1:", vec![("k", Method::gcm(&key).unwrap())]), GCM),
        (keyed("k8s:enc:aesgcm:v1:", vec![("k", Method::gcm(&key[..24]).unwrap())]), GCM_192),
        (keyed("k8s:enc:secretbox:v1:", vec![("k", Method::secretbox(&key).unwrap())]), SECRETBOX),
    ] {
        assert_eq!(read(provider, text), "{\"kind\":\"Secret\"}");
    }
}

const CBC: &str = "BwcHBwcHBwcHBwcHBwcHBwJvDVkFNwRhltZLTfshkBpKBKBEhJs19wrh0MdFXk7c";
const GCM: &str = "BwcHBwcHBwcHBwcHdEjNNQFr9c7kznbj8jSAudwa7XAGeHebjeyQBi5J/HEg";
const GCM_192: &str = "BwcHBwcHBwcHBwcHFXAICxD5Ug0eLiS3aheooj1UyEvnFvjMh1Nm4bNINDMR";
const SECRETBOX: &str =
    "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH6ZXXXqFiYmEqsh/Fzz3FOW/3hCOmAzIDwhBiFQG3s6S2";
