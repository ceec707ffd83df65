//! `kube-lite etcd-env`: what etcdctl needs to reach the store of the server on this machine.

use std::fmt::Write;
use std::path::Path;

use super::{Command, Environment, Output, block_on};
use crate::command_line::EtcdEnvArgs;
use crate::error_catalogue::{ETCD_OFF, Refusal, SERVER_STOPPED, SERVER_UNREACHABLE};
use crate::status;

impl Command for EtcdEnvArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, Refusal> {
        let data_dir = self.data_dir.unwrap_or_else(|| environment.locations().data);
        let answer = block_on(SERVER_STOPPED, || async { Ok(status::ask(&data_dir).await) })?;
        let Some(store) = answer.and_then(|answer| answer.store) else {
            let text = format!("no server answers in {}", data_dir.display());
            return Err(SERVER_UNREACHABLE.refuse(text));
        };
        render(&store.etcd, &data_dir).map(Output::from)
    }
}

/// A word that a shell takes as it is.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._:-,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Lines for a shell. `urls` is where the interface listens, those with TLS are preferred.
///
/// # Errors
/// The interface is off.
fn render(urls: &[String], data_dir: &Path) -> Result<String, Refusal> {
    let secure: Vec<&str> =
        urls.iter().map(String::as_str).filter(|url| url.starts_with("https://")).collect();
    let endpoints = if secure.is_empty() {
        urls.iter().map(String::as_str).collect::<Vec<_>>().join(",")
    } else {
        secure.join(",")
    };
    if endpoints.is_empty() {
        return Err(ETCD_OFF.refuse("the server was started without --etcd-listen"));
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
    fn etcdctl_gets_the_certificates_where_there_is_tls() {
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
    fn without_the_interface_it_is_refused_with_the_remedy() {
        let refusal = render(&[], Path::new("/d")).unwrap_err();
        assert!(refusal.to_string().contains("KL0105"), "{refusal}");
        assert!(refusal.to_string().contains("--etcd-listen=127.0.0.1:2379"), "{refusal}");
    }
}
