//! Kubeconfig files that this program writes.

use base::pki::Leaf;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A kubeconfig with cluster, user and context named `default`, as k3s writes it; for a file with
/// mode 0600.
///
/// `server` is the URL, such as `https://127.0.0.1:6443`; `server_ca` the PEM of the CA that it is
/// verified against.
pub fn render(server: &str, server_ca: &str, user: &Leaf) -> String {
    let data = |pem: &str| STANDARD.encode(pem.as_bytes());
    let (ca, cert, key) = (data(server_ca), data(&user.cert_pem), data(&user.key_pem));
    format!(
        "apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {ca}
    server: {server}
  name: default
contexts:
- context:
    cluster: default
    user: default
  name: default
current-context: default
kind: Config
preferences: {{}}
users:
- name: default
  user:
    client-certificate-data: {cert}
    client-key-data: {key}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendered_kubeconfig_has_the_fields_that_kubectl_reads() {
        let user = Leaf { cert_pem: "C".into(), key_pem: "K".to_owned().into(), not_after: 0 };
        let text = render("https://127.0.0.1:6443", "A", &user);
        for line in [
            "    certificate-authority-data: QQ==",
            "    server: https://127.0.0.1:6443",
            "current-context: default",
            "    client-key-data: Sw==",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}");
        }
    }
}
