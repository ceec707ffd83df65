//! The certificates of an Ingress.

use std::sync::Arc;

use api::k8s::api::networking::v1::IngressSpec;
use rustls::sign::CertifiedKey;

use super::{Compiler, Source};
use crate::objects::ingress::References;
use http_proxy::proxy::{Certificates, NoCertificate};

/// Why a Secret has no certificate.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    #[error("Secret {0} of type kubernetes.io/tls does not exist")]
    NoSecret(String),
    #[error("Secret {secret} has no {key}")]
    NoKey { secret: String, key: &'static str },
    #[error("Secret {secret}: {source}")]
    Certificate { secret: String, source: NoCertificate },
}

impl<R: References> Compiler<'_, R> {
    pub(super) fn add_certificates(&mut self, source: &Source<'_>, spec: &IngressSpec) {
        let hosts = spec.rules.iter().flatten().filter_map(|rule| rule.host.as_deref());
        let all: Vec<&str> = hosts.collect();
        for tls in spec.tls.iter().flatten() {
            let own = tls.hosts.as_deref().unwrap_or_default();
            let own: Vec<&str> = own.iter().map(String::as_str).collect();
            let hosts = match (own.is_empty(), all.is_empty()) {
                (false, _) => own,
                (true, false) => all.clone(),
                (true, true) => vec![""],
            };
            if let Some(secret) = tls.secret_name.as_deref().filter(|name| !name.is_empty()) {
                self.add_certificate(source, secret, &hosts);
            }
        }
    }

    fn add_certificate(&mut self, source: &Source<'_>, name: &str, hosts: &[&str]) {
        match self.certificate(source.namespace, name) {
            Ok(certificate) => {
                if let Some(end) = Certificates::expired(&certificate, base::clock::unix_time()) {
                    let namespace = source.namespace;
                    let message = format!(
                        "the certificate of Secret {namespace}/{name} has expired ({end}); clients \
                         refuse it until the Secret has a new one"
                    );
                    self.problem(source, message);
                }
                let each = hosts.iter().map(|host| ((*host).to_owned(), Arc::clone(&certificate)));
                self.out.certificates.extend(each);
            }
            Err(error) => {
                let message = format!("the default certificate is used: {error}");
                self.problem(source, message);
            }
        }
    }

    fn certificate(
        &mut self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<CertifiedKey>, SecretError> {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(known) = self.certificates.get(&key) {
            return Ok(Arc::clone(known));
        }
        let full = || format!("{namespace}/{name}");
        let secret = self.references.secret(namespace, name);
        let secret = secret.ok_or_else(|| SecretError::NoSecret(full()))?;
        let data = secret.data.unwrap_or_default();
        let field = |key: &'static str| {
            let value = data.get(key).map(|bytes| bytes.0.as_slice());
            value.ok_or_else(|| SecretError::NoKey { secret: full(), key })
        };
        let pair = Certificates::pair(field("tls.crt")?, field("tls.key")?)
            .map_err(|source| SecretError::Certificate { secret: full(), source })?;
        self.certificates.insert(key, Arc::clone(&pair));
        Ok(pair)
    }
}
