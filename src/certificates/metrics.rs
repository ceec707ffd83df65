//! The expiry of the certificates of this machine, with k3s's name and labels
//! (`pkg/certmonitor`).

use std::collections::BTreeMap;
use std::path::Path;

use base::metrics::Family;

use super::check;

/// Appends the remaining lifetime of each certificate at `now`, in seconds since the epoch.
/// Certificates with the same subject and usages are one series, as in k3s: that of the first one
/// that expires. Files that cannot be read are left out; `kube-lite certificate check` names them.
pub(crate) fn render(data_dir: &Path, now: i64, out: &mut String) {
    let mut expirations: BTreeMap<(String, String), i64> = BTreeMap::new();
    for path in check::files(data_dir) {
        let certificates = check::certificates(&path).unwrap_or_default();
        for certificate in certificates {
            let labels = (subject(&certificate.subject), certificate.usages.join(","));
            let end = expirations.entry(labels).or_insert(i64::MAX);
            *end = certificate.not_after.min(*end);
        }
    }
    let family = Family::gauge(
        "k3s_certificate_expiration_seconds",
        "Remaining lifetime in seconds of the certificate, labeled by certificate subject and \
         usages.",
        &["subject", "usages"],
    );
    for ((subject, usages), end) in &expirations {
        family.set(&[subject, usages], end.saturating_sub(now) as f64);
    }
    family.render(out);
}

/// A subject in Go's form (`pkix.Name.String`): the attributes in reverse order, separated by a
/// comma alone. `name` has them in the order of the certificate, separated by a comma and a space.
fn subject(name: &str) -> String {
    let mut attributes: Vec<String> = Vec::new();
    for part in name.split(", ") {
        let is_attribute = part.split_once('=').is_some_and(|(key, _)| {
            !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '.')
        });
        match attributes.last_mut() {
            // A comma in a value, which Go escapes.
            Some(last) if !is_attribute => {
                last.push_str("\\, ");
                last.push_str(part);
            }
            _ => attributes.push(part.to_owned()),
        }
    }
    attributes.reverse();
    attributes.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_certificate_of_a_server_has_a_series_with_its_remaining_lifetime() {
        let dir = tempfile::tempdir().unwrap();
        let mut empty = String::new();
        render(dir.path(), 0, &mut empty);
        assert_eq!(empty, "");
        cluster::certs::ensure(dir.path(), &cluster::certs::Names::default()).unwrap();
        let now = i64::try_from(base::pki::now()).unwrap();
        let mut page = String::new();
        render(dir.path(), now, &mut page);
        assert!(page.starts_with(
            "# HELP k3s_certificate_expiration_seconds Remaining lifetime in seconds of the \
             certificate, labeled by certificate subject and usages.\n\
             # TYPE k3s_certificate_expiration_seconds gauge\n"
        ));
        let value = |labels: &str| {
            let line = page.lines().find(|line| line.contains(labels));
            let line = line.unwrap_or_else(|| panic!("no {labels} in {page}"));
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        let day = 24.0 * 60.0 * 60.0;
        let admin = value("subject=\"CN=system:admin,O=system:masters\",usages=\"ClientAuth\"");
        assert!((300.0 * day..=366.0 * day).contains(&admin), "{admin}");
        assert!(value("usages=\"CertSign\"") > 3000.0 * day);
    }

    #[test]
    fn subjects_have_the_form_of_go() {
        assert_eq!(subject("O=system:nodes, CN=system:node:a"), "CN=system:node:a,O=system:nodes");
        assert_eq!(subject("CN=etcd-client"), "CN=etcd-client");
        assert_eq!(subject("O=Acme, Inc., CN=ca"), "CN=ca,O=Acme\\, Inc.");
    }
}
