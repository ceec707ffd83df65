//! Endpoints of external datastores, in the forms of k3s' `--datastore-endpoint`.

use std::fmt;
use std::path::{Path, PathBuf};

use url::Url;

use super::config::DatastoreTls;
use super::etcd;

mod error;

pub use error::EndpointError;

/// The database that k3s uses if the endpoint names none.
const DATABASE: &str = "kubernetes";
/// Supported parameters of PostgreSQL URLs.
const POSTGRES_PARAMETERS: [&str; 4] = ["sslmode", "sslrootcert", "sslcert", "sslkey"];

/// An external datastore. It may contain a password, which `Display` and `Debug` omit.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) kind: DatastoreKind,
    pub(crate) tls: DatastoreTls,
}

/// Kind and address of a datastore.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum DatastoreKind {
    Etcd(etcd::Endpoints),
    Sql(SqlEndpoint),
}

/// A database in kine's schema.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum SqlEndpoint {
    Sqlite(PathBuf),
    Postgres(Box<Url>),
    Mysql(Mysql),
}

/// A data source name of Go's MySQL driver.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Mysql {
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    pub(crate) address: MysqlAddress,
    pub(crate) database: String,
    pub(crate) tls: Option<MysqlTls>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MysqlAddress {
    Tcp(String, u16),
    Unix(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MysqlTls {
    Off,
    Preferred,
    Unverified,
    Verified,
}

impl Endpoint {
    /// Parses an endpoint.
    ///
    /// # Errors
    /// A message without the password that the endpoint may contain.
    pub fn parse(text: &str, tls: DatastoreTls) -> Result<Self, EndpointError> {
        if tls.certificate.is_some() != tls.key.is_some() {
            return Err(EndpointError::CertificateWithoutKey);
        }
        let kind = match text.split_once("://") {
            None if text.starts_with('/') => DatastoreKind::Sql(SqlEndpoint::Sqlite(sqlite(text)?)),
            None => return Err(EndpointError::NoScheme),
            Some(("sqlite", path)) => DatastoreKind::Sql(SqlEndpoint::Sqlite(sqlite(path)?)),
            Some(("postgres" | "postgresql", rest)) => {
                DatastoreKind::Sql(SqlEndpoint::Postgres(Box::new(postgres(rest)?)))
            }
            Some(("mysql", rest)) => DatastoreKind::Sql(SqlEndpoint::Mysql(mysql(rest)?)),
            Some(("http" | "https", _)) => DatastoreKind::Etcd(etcd::Endpoints::parse(text)?),
            Some((scheme, _)) => return Err(EndpointError::Driver(scheme.to_owned())),
        };
        let unused = match &kind {
            DatastoreKind::Sql(SqlEndpoint::Sqlite(_)) => Some("is a file"),
            DatastoreKind::Etcd(etcd) if !etcd.is_tls() => Some("is an http:// URL"),
            DatastoreKind::Etcd(_) | DatastoreKind::Sql(_) => None,
        };
        match unused {
            Some(kind) if tls != DatastoreTls::default() => {
                Err(EndpointError::UnusedCertificates { kind })
            }
            _ => Ok(Self { kind, tls }),
        }
    }

    /// The file of a SQLite database.
    pub fn file(&self) -> Option<&Path> {
        match &self.kind {
            DatastoreKind::Sql(SqlEndpoint::Sqlite(path)) => Some(path),
            DatastoreKind::Sql(_) | DatastoreKind::Etcd(_) => None,
        }
    }

    /// Whether this is an etcd, which can be copied as a snapshot.
    pub fn is_etcd(&self) -> bool {
        matches!(self.kind, DatastoreKind::Etcd(_))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sql = match &self.kind {
            DatastoreKind::Etcd(etcd) => return write!(f, "{etcd}"),
            DatastoreKind::Sql(sql) => sql,
        };
        match sql {
            SqlEndpoint::Sqlite(path) => write!(f, "sqlite://{}", path.display()),
            SqlEndpoint::Postgres(url) => {
                let host = url.host_str().unwrap_or("localhost");
                write!(f, "postgres://{}@{host}", url.username())?;
                url.port().map_or(Ok(()), |port| write!(f, ":{port}"))?;
                write!(f, "{}", url.path())
            }
            SqlEndpoint::Mysql(Mysql { user, address, database, .. }) => match address {
                MysqlAddress::Tcp(host, port) => {
                    write!(f, "mysql://{user}@tcp({host}:{port})/{database}")
                }
                MysqlAddress::Unix(path) => {
                    write!(f, "mysql://{user}@unix({})/{database}", path.display())
                }
            },
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

fn sqlite(text: &str) -> Result<PathBuf, EndpointError> {
    let (path, parameters) = text.split_once('?').unwrap_or((text, ""));
    if !path.starts_with('/') {
        return Err(EndpointError::RelativePath);
    }
    if !parameters.is_empty() {
        return Err(EndpointError::SqliteParameters(parameters.to_owned()));
    }
    Ok(PathBuf::from(path))
}

fn postgres(rest: &str) -> Result<Url, EndpointError> {
    // Unparsable text may be the password: it is not repeated.
    let mut url = Url::parse(&format!("postgres://{rest}")).map_err(EndpointError::Url)?;
    for (name, _) in url.query_pairs() {
        if !POSTGRES_PARAMETERS.contains(&name.as_ref()) {
            return Err(EndpointError::PostgresParameter(name.into_owned()));
        }
    }
    // As in k3s: names without quotes are lower case.
    let path = match url.path() {
        "" | "/" => format!("/{DATABASE}"),
        path => path.to_lowercase(),
    };
    let name = path.trim_start_matches('/');
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')) {
        return Err(EndpointError::DatabaseName);
    }
    url.set_path(&path);
    Ok(url)
}

/// Parses `[USER[:PASSWORD]@][NET[(ADDRESS)]]/DATABASE[?PARAMETERS]`, the form of Go's driver.
fn mysql(rest: &str) -> Result<Mysql, EndpointError> {
    // The password may contain a slash; database names do not.
    let (before, after) = rest.rsplit_once('/').ok_or(EndpointError::MysqlForm)?;
    let (name, parameters) = after.split_once('?').unwrap_or((after, ""));
    let (user, address) = before.rsplit_once('@').unwrap_or(("", before));
    let (user, password) = match user.split_once(':') {
        Some((user, password)) => (user, Some(password.to_owned())),
        None => (user, None),
    };
    let (net, at) = match address.split_once('(') {
        Some((net, at)) => (net, at.strip_suffix(')').ok_or(EndpointError::MysqlForm)?),
        None => (address, ""),
    };
    let address = match (net, at) {
        ("" | "tcp", "") => MysqlAddress::Tcp("127.0.0.1".to_owned(), 3306),
        ("tcp", at) => match at.rsplit_once(':') {
            // IPv6 addresses are in brackets.
            Some((host, port)) if !port.contains(']') => {
                let port = port.parse().map_err(|_| EndpointError::Port(port.to_owned()))?;
                MysqlAddress::Tcp(host.to_owned(), port)
            }
            _ => MysqlAddress::Tcp(at.to_owned(), 3306),
        },
        ("unix", at) if at.starts_with('/') => MysqlAddress::Unix(PathBuf::from(at)),
        _ => return Err(EndpointError::MysqlForm),
    };
    let name = if name.is_empty() { DATABASE } else { name };
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')) {
        return Err(EndpointError::DatabaseName);
    }
    let mut tls = None;
    for parameter in parameters.split('&').filter(|p| !p.is_empty()) {
        tls = Some(match parameter {
            "tls=false" => MysqlTls::Off,
            "tls=preferred" => MysqlTls::Preferred,
            "tls=skip-verify" => MysqlTls::Unverified,
            "tls=true" => MysqlTls::Verified,
            other => return Err(EndpointError::MysqlParameter(other.to_owned())),
        });
    }
    let user = if user.is_empty() { "root" } else { user }.to_owned();
    Ok(Mysql { user, password, address, database: name.to_owned(), tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(text: &str) -> Result<String, String> {
        let endpoint = Endpoint::parse(text, DatastoreTls::default()).map_err(|e| e.to_string())?;
        assert!(!format!("{endpoint:?} {endpoint}").contains("secret"), "{endpoint}");
        Ok(endpoint.to_string())
    }

    /// The forms of <https://docs.k3s.io/datastore>.
    #[test]
    fn endpoints_of_k3s_are_parsed_and_passwords_are_not_shown() {
        for (text, want) in [
            ("/var/lib/state.db", "sqlite:///var/lib/state.db"),
            ("sqlite:///var/lib/state.db", "sqlite:///var/lib/state.db"),
            ("postgres://u:secret@h:5432/Db", "postgres://u@h:5432/db"),
            ("postgresql://u:secret@h", "postgres://u@h/kubernetes"),
            ("postgres://u:secret@h/k?sslmode=require", "postgres://u@h/k"),
            ("mysql://u:secret@tcp(h:3307)/k3s", "mysql://u@tcp(h:3307)/k3s"),
            ("mysql://u:sec@ret/secret@tcp(h)/", "mysql://u@tcp(h:3306)/kubernetes"),
            ("mysql://u:secret@unix(/run/m.sock)/k", "mysql://u@unix(/run/m.sock)/k"),
            ("mysql://u:secret@tcp([::1]:3306)/k?tls=true", "mysql://u@tcp([::1]:3306)/k"),
            ("https://a:2379,https://b:2379", "https://a:2379,https://b:2379"),
            ("mysql://", "a form"),
        ] {
            match redacted(text) {
                Ok(got) => assert_eq!(got, want, "{text}"),
                Err(why) => assert!(want == "a form" && why.contains("form"), "{text}: {why}"),
            }
        }
    }

    #[test]
    fn endpoints_with_ignored_parts_are_refused() {
        for (text, why) in [
            ("state.db", "absolute path"),
            ("sqlite://state.db", "absolute path"),
            ("sqlite:///x?cache=shared", "settings of k3s' driver"),
            ("https://u:secret@etcd:2379", "has a user of etcd"),
            ("etcd://etcd:2379", "no driver etcd"),
            ("nats://x", "no driver nats"),
            ("postgres://u:secret@h/k?target_session_attrs=any", "parameter target_session_attrs"),
            ("postgres://u:secret@h/a;b", "other signs"),
            ("mysql://u:secret@tcp(h)/k?charset=utf8", "parameter charset=utf8"),
            ("mysql://u:secret@tcp(h:x)/k", "x is no port"),
            ("mysql://u:secret@tcp(h", "not of the form"),
        ] {
            let refused = redacted(text).unwrap_err();
            assert!(refused.contains(why) && !refused.contains("secret"), "{text}: {refused}");
        }
        let tls = DatastoreTls { ca: Some("/ca".into()), ..DatastoreTls::default() };
        let refusal = |text: &str, tls| Endpoint::parse(text, tls).unwrap_err().to_string();
        assert!(refusal("/x", tls.clone()).contains("is a file"));
        assert!(refusal("http://h:1", tls).contains("is an http:// URL"));
        let tls = DatastoreTls { key: Some("/key".into()), ..DatastoreTls::default() };
        assert!(refusal("postgres://h", tls).contains("together"));
    }
}
