//! Rings, the steps of a change, and the file.

use super::*;

const KEY: &str = "/registry/secrets/a/s";

fn ring(lines: &[(&str, u8)]) -> Ring {
    let text: Vec<String> =
        lines.iter().map(|(id, byte)| format!("{id} {}", STANDARD.encode([*byte; 32]))).collect();
    Ring::parse(&text.join("\n"), "f").unwrap()
}

fn sealed(ring: &Ring, value: &[u8]) -> Bytes {
    ring.encrypt(KEY, value).unwrap().unwrap()
}

fn names(ring: &Ring) -> (Option<&str>, Vec<&str>, &str) {
    (ring.active(), ring.inactive(), ring.stage().name())
}

fn steps(ring: &Ring, wish: Wish) -> (Option<Ring>, Ring, Ring) {
    match ring.next(wish).unwrap() {
        Next::Steps { prepared, active, finished } => (prepared, active, finished),
        Next::Nothing => panic!("nothing to do"),
    }
}

#[test]
fn values_are_encrypted_and_bound_to_their_storage_key() {
    let ring = ring(&[("key1", 1)]);
    let stored = sealed(&ring, b"hunter2");
    assert!(stored.starts_with(b"k8s:enc:aesgcm:v1:key1:"));
    assert!(!stored.windows(7).any(|w| w == b"hunter2"));
    assert_ne!(stored, sealed(&ring, b"hunter2"));
    assert_eq!(ring.decrypt(KEY, &stored).unwrap(), "hunter2");
    assert!(matches!(
        ring.decrypt("/registry/secrets/a/other", &stored),
        Err(Error::Damaged { .. })
    ));
    let mut flipped = stored.to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    assert!(matches!(ring.decrypt(KEY, &flipped.into()), Err(Error::Damaged { .. })));
    assert!(matches!(ring.decrypt(KEY, &stored.slice(..25)), Err(Error::Damaged { .. })));
}

#[test]
fn the_first_key_encrypts_and_all_keys_decrypt() {
    let old = sealed(&ring(&[("key1", 1)]), b"x");
    let both = ring(&[("key2", 2), ("key1", 1)]);
    assert_eq!(both.decrypt(KEY, &old).unwrap(), "x");
    assert!(both.stale(&old) && both.stale(b"{}"));
    assert!(!both.stale(&sealed(&both, b"x")));
    let error = ring(&[("key2", 2)]).decrypt(KEY, &old).unwrap_err().to_string();
    assert!(error.contains("\"key1\"") && error.contains("keys file"), "{error}");
    assert_eq!(both.decrypt(KEY, &Bytes::from_static(b"{\"a\":1}")).unwrap(), "{\"a\":1}");
}

#[test]
fn a_rotation_distributes_uses_and_drops_keys_in_this_order() {
    let start = ring(&[("key1", 1)]);
    assert_eq!(names(&start), (Some("key1"), vec![], "start"));
    let (prepared, active, finished) = steps(&start, Wish::Rotate);
    let prepared = prepared.unwrap();
    assert_eq!(names(&prepared), (Some("key1"), vec!["key2"], "prepare"));
    assert_eq!(names(&active), (Some("key2"), vec!["key1"], "reencrypt_active"));
    assert_eq!(names(&finished), (Some("key2"), vec![], "reencrypt_finished"));
    assert_eq!([1, 2, 3], [&prepared, &active, &finished].map(Ring::generation));
    // After a restart at any step, the change continues with the same key.
    let again = Ring::parse(&prepared.render(), "f").unwrap();
    assert_eq!(again.hash(), prepared.hash());
    let (none, resumed, _) = steps(&again, Wish::Rotate);
    assert!(none.is_none() && resumed.hash() == active.hash());
    let again = Ring::parse(&active.render(), "f").unwrap();
    let (none, resumed, end) = steps(&again, Wish::Rotate);
    assert!(none.is_none() && resumed.hash() == active.hash() && end.hash() == finished.hash());
    let refused = prepared.next(Wish::Disable).unwrap_err().to_string();
    assert!(refused.contains("rotate-keys` first"), "{refused}");
    let (next, ..) = steps(&finished, Wish::Rotate);
    assert_eq!(names(&next.unwrap()), (Some("key2"), vec!["key3"], "prepare"));
}

#[test]
fn encryption_is_disabled_and_enabled_with_the_same_key() {
    let start = ring(&[("key1", 1)]);
    assert!(matches!(start.next(Wish::Enable), Ok(Next::Nothing)));
    let (none, active, finished) = steps(&start, Wish::Disable);
    assert!(none.is_none());
    assert_eq!(names(&active), (None, vec!["key1"], "reencrypt_active"));
    let old = sealed(&start, b"x");
    assert!(active.stale(&old) && !active.stale(b"{}"));
    assert_eq!(active.decrypt(KEY, &old).unwrap(), "x");
    assert!(active.encrypt(KEY, b"x").unwrap().is_none());
    assert!(active.next(Wish::Rotate).unwrap_err().to_string().contains("disable` first"));
    let finished = Ring::parse(&finished.render(), "f").unwrap();
    assert_eq!(names(&finished), (None, vec!["key1"], "reencrypt_finished"));
    assert!(finished.next(Wish::Rotate).unwrap_err().to_string().contains("enable` first"));
    let (_, active, finished) = steps(&finished, Wish::Enable);
    assert_eq!(names(&active), (Some("key1"), vec![], "reencrypt_active"));
    assert!(active.stale(b"{}") && !finished.stale(&old));
}

#[test]
fn a_dropped_key_decrypts_old_snapshots() {
    let start = ring(&[("key1", 1)]);
    let old = sealed(&start, b"x");
    let (_, active, finished) = steps(&start, Wish::Rotate);
    assert_eq!(start.dropped(&active), "");
    let former = Ring::parse(&active.dropped(&finished), "f").unwrap();
    assert_eq!(names(&former), (Some("key1"), vec![], "start"));
    assert!(finished.decrypt(KEY, &old).is_err());
    let both = finished.with_keys_of(&former);
    assert_eq!(both.decrypt(KEY, &old).unwrap(), "x");
    assert_eq!(names(&both), (Some("key2"), vec!["key1"], "reencrypt_finished"));
    assert_eq!(finished.with_keys_of(&finished).hash(), finished.hash());
}

#[test]
fn merged_rings_are_the_newest_and_keep_keys_in_use() {
    let start = ring(&[("key1", 1)]);
    let (prepared, active, finished) = steps(&start, Wish::Rotate);
    let prepared = prepared.unwrap();
    let merged = |rings: &[&Ring]| {
        Ring::merged(rings.iter().map(|ring| (*ring).clone()).collect()).unwrap().hash()
    };
    assert_eq!(merged(&[&start, &prepared, &start]), prepared.hash());
    assert_eq!(merged(&[&active, &prepared]), active.hash());
    assert_eq!(merged(&[&active, &finished]), finished.hash(), "what is dropped stays so");
    // Two concurrent changes on two servers: both new keys are kept.
    let other = Ring::parse(
        &format!("generation 1\nstage prepare\nkey1 {0}\nkeyx {0}", STANDARD.encode([9; 32])),
        "f",
    );
    let both = Ring::merged(vec![prepared, other.unwrap()]).unwrap();
    assert_eq!(both.inactive().len(), 2, "{both:?}");
    assert_eq!(both.generation(), 2);
}

#[test]
fn errors_of_the_keys_file_name_the_line() {
    let error = |text: &str| Ring::parse(text, "f").unwrap_err().to_string();
    let good = STANDARD.encode([1; 32]);
    for (text, why) in [
        ("key1 abc".to_owned(), "f: line 1: the key is not base64; "),
        (format!("a {good}\na {good}"), "f: line 2: the key's id occurs twice; "),
        (format!("a:b {good}"), "f: line 1: the key's id is not a short word; "),
        ("a AAAA".to_owned(), "f: line 1: the key has not 32 bytes; "),
        ("a".to_owned(), "f: line 1: no id and key; "),
        ("identity".to_owned(), "f: line 1: the file holds no key; "),
        (String::new(), "f: line 1: the file holds no key; "),
    ] {
        assert!(error(&text).starts_with(why), "{}", error(&text));
    }
    assert!(!format!("{:?}", ring(&[("key1", 1)])).contains("AQEB"));
}
