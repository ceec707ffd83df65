//! Certificates and private keys. Keys are ECDSA on P-256 where sprig makes RSA.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use crate::error::Failure;
use crate::function::{Args, Call, Function, fixed};
use crate::signature::Param::{Certificate as Cert, Int, List, Str};
use crate::value::{Object, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("genPrivateKey", &[Str], private_key),
    fixed("buildCustomCert", &[Str, Str], custom),
    fixed("genCA", &[Str, Int], |_, args| authority(args, &new_key()?)),
    fixed("genCAWithKey", &[Str, Int, Str], |_, args| authority(args, &read_key(&args.text(2))?)),
    fixed("genSelfSignedCert", &[Str, List, List, Int], |_, args| self_signed(args, &new_key()?)),
    fixed("genSelfSignedCertWithKey", &[Str, List, List, Int, Str], |_, args| {
        self_signed(args, &read_key(&args.text(4))?)
    }),
    fixed("genSignedCert", &[Str, List, List, Int, Cert], |_, args| signed(args, &new_key()?)),
    fixed("genSignedCertWithKey", &[Str, List, List, Int, Cert, Str], |_, args| {
        signed(args, &read_key(&args.text(5))?)
    }),
];

/// A certificate and its key in PEM: `.Cert` and `.Key`.
struct Certificate {
    cert: String,
    key: String,
}

impl Object for Certificate {
    fn type_name(&self) -> &'static str {
        "sprig.certificate"
    }

    fn field(&self, name: &str) -> Option<Value> {
        match name {
            "Cert" => Some(Value::from(self.cert.clone())),
            "Key" => Some(Value::from(self.key.clone())),
            _ => None,
        }
    }

    fn text(&self) -> String {
        format!("{{{} {}}}", self.cert, self.key)
    }

    fn data(&self) -> Value {
        let pairs = [("Cert", self.cert.clone()), ("Key", self.key.clone())];
        pairs.into_iter().map(|(name, text)| (name, Value::from(text))).collect()
    }
}

fn value(cert: String, key: String) -> Value {
    Value::Object(Arc::new(Certificate { cert, key }))
}

fn failed(what: &str, error: &impl std::fmt::Display) -> Failure {
    Failure::new(format!("{what}: {error}"))
}

fn new_key() -> Result<KeyPair, Failure> {
    KeyPair::generate().map_err(|error| failed("error generating key", &error))
}

fn read_key(pem: &str) -> Result<KeyPair, Failure> {
    if !pem.contains("-----BEGIN ") {
        return Err(Failure::new("parsing private key: no PEM data in input"));
    }
    KeyPair::from_pem(pem).map_err(|error| failed("parsing private key", &error))
}

fn private_key(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let algorithm = match &*args.text(0) {
        "ecdsa" => &rcgen::PKCS_ECDSA_P256_SHA256,
        "ed25519" => &rcgen::PKCS_ED25519,
        kind @ ("" | "rsa" | "dsa") => {
            let kind = if kind.is_empty() { "rsa" } else { kind };
            let fix = "use \"ecdsa\" or \"ed25519\", or give the key in the chart's values";
            let text = format!("genPrivateKey: kube-lite does not generate {kind} keys: {fix}");
            return Err(Failure::new(text));
        }
        kind => return Ok(Value::from(format!("Unknown type {kind}"))),
    };
    let key = KeyPair::generate_for(algorithm)
        .map_err(|error| failed("failed to generate private key", &error))?;
    Ok(Value::from(key.serialize_pem()))
}

fn strings(value: &Value, what: &str) -> Result<Vec<String>, Failure> {
    let items = value.items().unwrap_or_default();
    let texts = items.iter().map(|item| match item {
        Value::String(text) => Ok(text.to_string()),
        other => {
            let text = other.type_name();
            Err(Failure::new(format!("error {what}: {text} is not a string")))
        }
    });
    texts.collect()
}

fn params(args: &[Value], days: i64, names: bool) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, args.text(0).into_owned());
    params.distinguished_name = name;
    let now = std::time::SystemTime::now();
    params.not_before = now.into();
    let day = std::time::Duration::from_secs(86_400);
    let days = u32::try_from(days).unwrap_or(0).min(365 * 1000);
    params.not_after = (now + day * days).into();
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.is_ca = IsCa::ExplicitNoCa;
    if names {
        for text in strings(&args.value(1), "parsing ip")? {
            let address = text.parse();
            let address = address.map_err(|_| Failure::new(format!("error parsing ip: {text}")))?;
            params.subject_alt_names.push(SanType::IpAddress(address));
        }
        for text in strings(&args.value(2), "processing alternate dns name")? {
            let name = text.as_str().try_into();
            let name =
                name.map_err(|error| failed("error processing alternate dns name", &error))?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
    }
    Ok(params)
}

fn authority(args: &[Value], key: &KeyPair) -> Result<Value, Failure> {
    let mut params = params(args, args.int(1), false)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages.push(KeyUsagePurpose::KeyCertSign);
    finish(&params, key)
}

fn self_signed(args: &[Value], key: &KeyPair) -> Result<Value, Failure> {
    finish(&params(args, args.int(3), true)?, key)
}

fn finish(params: &CertificateParams, key: &KeyPair) -> Result<Value, Failure> {
    let cert = params
        .clone()
        .self_signed(key)
        .map_err(|error| failed("error creating certificate", &error))?;
    Ok(value(cert.pem(), key.serialize_pem()))
}

fn signed(args: &[Value], key: &KeyPair) -> Result<Value, Failure> {
    let ca = args.value(4);
    let Value::Object(ca) = &ca else {
        return Err(Failure::new("unable to decode certificate"));
    };
    let field = |name: &str| {
        let text = ca.field(name).and_then(|field| field.string_bytes().map(<[u8]>::to_vec));
        String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
    };
    let issuer_key = KeyPair::from_pem(&field("Key"))
        .map_err(|error| failed("error parsing private key", &error))?;
    let issuer = Issuer::from_ca_cert_pem(&field("Cert"), issuer_key)
        .map_err(|error| failed("error parsing certificate: decodedSignerCert.Bytes", &error))?;
    let cert = params(args, args.int(3), true)?
        .signed_by(key, &issuer)
        .map_err(|error| failed("error creating certificate", &error))?;
    Ok(value(cert.pem(), key.serialize_pem()))
}

fn custom(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let decode = |at: usize, what: &str| {
        let bytes = STANDARD.decode(args.bytes(at)).ok();
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        text.ok_or_else(|| Failure::new(format!("unable to decode base64 {what}")))
    };
    let cert = decode(0, "certificate")?;
    let key = decode(1, "private key")?;
    if !cert.contains("-----BEGIN ") {
        return Err(Failure::new("unable to decode certificate"));
    }
    if !key.contains(" PRIVATE KEY-----") {
        return Err(Failure::new("error parsing private key: no PEM data in input"));
    }
    Ok(value(cert, key))
}
