//! Hashes of passwords, and passwords that are derived from a main password.

use ring::hmac;

use crate::error::Failure;
use crate::function::{Args, Call, Function, fixed};
use crate::random;
use crate::signature::Param::{Int, Str};
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("bcrypt", &[Str], |call, args| Ok(Value::from(hash(call, args.bytes(0))?))),
    fixed("htpasswd", &[Str, Str], htpasswd),
    fixed("derivePassword", &[Int, Str, Str, Str, Str], derive),
];

/// Steps of the budget for one hash, which takes some 0.1 s: a rendering has room for 100.
const HASH_STEPS: u64 = 200_000;
/// The cost and the longest password of Go's `bcrypt`.
const BCRYPT_COST: u32 = 10;
const BCRYPT_MAX: usize = 72;
/// The first bytes of all salts and messages of derived passwords.
const SEED: &[u8] = b"com.lyndir.masterpassword";
/// scrypt with 2^15 rounds of 8 blocks, twice, as sprig calls it.
const SCRYPT: (u8, u32, u32) = (15, 8, 2);
const KEY_BYTES: usize = 64;

/// The forms of passwords by their type; each letter is a class of characters.
const TEMPLATES: &[(&str, &str)] = &[
    ("maximum", "anoxxxxxxxxxxxxxxxxx axxxxxxxxxxxxxxxxxno"),
    (
        "long",
        "CvcvnoCvcvCvcv CvcvCvcvnoCvcv CvcvCvcvCvcvno CvccnoCvcvCvcv CvccCvcvnoCvcv \
         CvccCvcvCvcvno CvcvnoCvccCvcv CvcvCvccnoCvcv CvcvCvccCvcvno CvcvnoCvcvCvcc \
         CvcvCvcvnoCvcc CvcvCvcvCvccno CvccnoCvccCvcv CvccCvccnoCvcv CvccCvccCvcvno \
         CvcvnoCvccCvcc CvcvCvccnoCvcc CvcvCvccCvccno CvccnoCvcvCvcc CvccCvcvnoCvcc \
         CvccCvcvCvccno",
    ),
    ("medium", "CvcnoCvc CvcCvcno"),
    ("short", "Cvcn"),
    ("basic", "aaanaaan aannaaan aaannaaa"),
    ("pin", "nnnn"),
];

/// The characters of a class.
fn class(letter: u8) -> &'static [u8] {
    match letter {
        b'V' => b"AEIOU",
        b'C' => b"BCDFGHJKLMNPQRSTVWXYZ",
        b'v' => b"aeiou",
        b'c' => b"bcdfghjklmnpqrstvwxyz",
        b'A' => b"AEIOUBCDFGHJKLMNPQRSTVWXYZ",
        b'a' => b"AEIOUaeiouBCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz",
        b'n' => b"0123456789",
        b'o' => b"@&%?,=[]_:-+*$#!'^~;()/.",
        _ => b"AEIOUaeiouBCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz0123456789!@#$%^&*()",
    }
}

/// The hash in the form of Go's `bcrypt`; a password that is too long is an error in the text, as
/// in sprig.
fn hash(call: &mut Call<'_>, password: &[u8]) -> Result<String, Failure> {
    call.budget.step(HASH_STEPS)?;
    if password.len() > BCRYPT_MAX {
        let text = "failed to encrypt string with bcrypt: bcrypt: password length exceeds 72 bytes";
        return Ok(text.to_owned());
    }
    let mut salt = [0; 16];
    salt.iter_mut().zip(random::bytes(16)?).for_each(|(byte, random)| *byte = random);
    let hashed = bcrypt::hash_with_salt(password, BCRYPT_COST, salt);
    let hashed = hashed.map_err(|error| Failure::new(format!("bcrypt: {error}")))?;
    Ok(hashed.format_for_version(bcrypt::Version::TwoA))
}

fn htpasswd(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let user = args.text(0);
    if user.contains(':') {
        return Ok(Value::from(format!("invalid username: {user}")));
    }
    Ok(Value::from(format!("{user}:{}", hash(call, args.bytes(1))?)))
}

/// A length as sprig writes it.
fn length(text: &[u8]) -> [u8; 4] {
    u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes()
}

fn derive(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let counter = u32::try_from(args.int(0))
        .map_err(|_| Failure::new("derivePassword: the counter is not between 0 and 4294967295"))?;
    let (kind, password) = (args.text(1), args.bytes(2));
    let (user, site) = (args.bytes(3), args.bytes(4));
    let Some((_, forms)) = TEMPLATES.iter().find(|(name, _)| *name == kind) else {
        return Ok(Value::from(format!("cannot find password template {kind}")));
    };
    call.budget.step(HASH_STEPS)?;
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("derivePassword: {error}"));
    let params = scrypt::Params::new(SCRYPT.0, SCRYPT.1, SCRYPT.2, KEY_BYTES);
    let params = params.map_err(|error| failed(&error))?;
    let salt = [SEED, &length(user), user].concat();
    let mut key = [0; KEY_BYTES];
    scrypt::scrypt(password, &salt, &params, &mut key).map_err(|error| failed(&error))?;
    let message = [SEED, &length(site), site, &counter.to_be_bytes()].concat();
    let seed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &message);
    let mut seed = seed.as_ref().iter().map(|byte| usize::from(*byte));
    let forms: Vec<&str> = forms.split(' ').collect();
    let chosen = seed.next().unwrap_or_default() % forms.len().max(1);
    let form = forms.get(chosen).copied().unwrap_or_default();
    let characters = form.bytes().zip(seed).filter_map(|(letter, number)| {
        let class = class(letter);
        class.get(number % class.len()).map(|byte| char::from(*byte))
    });
    Ok(Value::from(characters.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use crate::{NoCluster, Options, Source, Value, render};

    fn text(template: &str) -> String {
        let name = "app/templates/t.yaml";
        let sources = [Source { name, text: template, root: Value::map(), render: true }];
        match render(&sources, &NoCluster, &Options::default()) {
            Ok(mut files) => files.remove(name).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    /// From `TestDerivePassword` of sprig.
    #[test]
    fn derived_passwords_are_those_of_sprig() {
        for (template, want) in [
            (r#"{{derivePassword 1 "long" "password" "user" "example.com"}}"#, "ZedaFaxcZaso9*"),
            (r#"{{derivePassword 2 "long" "password" "user" "example.com"}}"#, "Fovi2@JifpTupx"),
            (
                r#"{{derivePassword 1 "maximum" "password" "user" "example.com"}}"#,
                "pf4zS1LjCg&LjhsZ7T2~",
            ),
            (r#"{{derivePassword 1 "medium" "password" "user" "example.com"}}"#, "ZedJuz8$"),
            (r#"{{derivePassword 1 "basic" "password" "user" "example.com"}}"#, "pIS54PLs"),
            (r#"{{derivePassword 1 "short" "password" "user" "example.com"}}"#, "Zed5"),
            (r#"{{derivePassword 1 "pin" "password" "user" "example.com"}}"#, "6685"),
            (r#"{{derivePassword 1 "x" "p" "u" "s"}}"#, "cannot find password template x"),
        ] {
            assert_eq!(text(template), want, "{template}");
        }
    }

    #[test]
    fn hashes_are_those_of_go() {
        let hash = text(r#"{{ bcrypt "abc" }}"#);
        assert!(hash.starts_with("$2a$10$") && hash.len() == 60, "{hash}");
        assert!(bcrypt::verify("abc", &hash).unwrap());
        let line = text(r#"{{ htpasswd "myUser" "myPassword" }}"#);
        let (user, hash) = line.split_once(':').unwrap();
        assert_eq!(user, "myUser");
        assert!(bcrypt::verify("myPassword", hash).unwrap());
        assert_eq!(text(r#"{{ htpasswd "a:b" "c" }}"#), "invalid username: a:b");
        let long = text(r#"{{ bcrypt (repeat 73 "x") }}"#);
        assert!(long.ends_with("bcrypt: password length exceeds 72 bytes"), "{long}");
    }

    #[test]
    fn a_rendering_has_room_for_few_hashes() {
        let name = "app/templates/t.yaml";
        let template = r#"{{ range until 100 }}{{ bcrypt "a" }}{{ end }}"#;
        let sources = [Source { name, text: template, root: Value::map(), render: true }];
        let options = Options { max_steps: 300_000, ..Options::default() };
        let error = render(&sources, &NoCluster, &options).unwrap_err().to_string();
        assert!(error.contains("takes more than 300000 steps"), "{error}");
    }
}
