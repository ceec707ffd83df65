//! `kube-lite etcd-env`: prints the environment variables of etcdctl for the store of this server.

use std::fmt::Write;
use std::path::Path;

use super::{Command, Environment, Output, block_on};
use crate::command_line::EtcdEnvArgs;
use crate::error_catalogue::{CommandError, ETCD_OFF, SERVER_STOPPED, SERVER_UNREACHABLE};
use crate::status;

impl Command for EtcdEnvArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, CommandError> {
        let data_dir = self.data_dir.unwrap_or_else(|| environment.locations().data);
        let status = block_on(SERVER_STOPPED, || async { Ok(status::query(&data_dir).await) })?;
        let Some(store) = status.and_then(|status| status.store) else {
            let text = format!("no server answers in {}", data_dir.display());
            return Err(SERVER_UNREACHABLE.error(text));
        };
        render(&store.etcd, &data_dir).map(Output::from)
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._:-,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Lines for a shell. `urls` are those of the etcd-compatible API; those with TLS are preferred.
///
/// # Errors
/// The API is off.
fn render(urls: &[String], data_dir: &Path) -> Result<String, CommandError> {
    let secure: Vec<&str> =
        urls.iter().map(String::as_str).filter(|url| url.starts_with("https://")).collect();
    let endpoints = if secure.is_empty() {
        urls.iter().map(String::as_str).collect::<Vec<_>>().join(",")
    } else {
        secure.join(",")
    };
    if endpoints.is_empty() {
        return Err(ETCD_OFF.error("the server was started without --etcd-listen"));
    }
    let mut variables = vec![("API", "3".to_owned()), ("ENDPOINTS", endpoints)];
    if !secure.is_empty() {
        let tls = data_dir.join("server/tls/etcd");
        let file = |name: &str| tls.join(name).display().to_string();
        variables.push(("CACERT", file("server-ca.crt")));
        variables.push(("CERT", file("client.crt")));
        variables.push(("KEY", file("client.key")));
    }
    let mut text = String::new();
    for (name, value) in variables {
        // Writing to a string does not fail.
        let _ = writeln!(text, "export ETCDCTL_{name}={}", quoted(&value));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_include_certificates_if_there_is_tls() {
        let urls = ["https://127.0.0.1:2379".to_owned(), "http://127.0.0.1:2389".to_owned()];
        let text = render(&urls, Path::new("/var/lib/kube lite")).unwrap();
        assert_eq!(
            text,
            "export ETCDCTL_API=3\n\
             export ETCDCTL_ENDPOINTS=https://127.0.0.1:2379\n\
             export ETCDCTL_CACERT='/var/lib/kube lite/server/tls/etcd/server-ca.crt'\n\
             export ETCDCTL_CERT='/var/lib/kube lite/server/tls/etcd/client.crt'\n\
             export ETCDCTL_KEY='/var/lib/kube lite/server/tls/etcd/client.key'\n"
        );
        let plain = render(&urls[1..], Path::new("/d")).unwrap();
        assert_eq!(plain, "export ETCDCTL_API=3\nexport ETCDCTL_ENDPOINTS=http://127.0.0.1:2389\n");
        assert_eq!(quoted("https://[::1]:2379"), "'https://[::1]:2379'");
    }

    #[test]
    fn without_the_api_the_error_names_the_flag() {
        let error = render(&[], Path::new("/d")).unwrap_err();
        assert!(error.to_string().contains("KL0105"), "{error}");
        assert!(error.to_string().contains("--etcd-listen=127.0.0.1:2379"), "{error}");
    }
}
