//! Errors of parsing the endpoint of an external datastore. No message contains the password.

use super::POSTGRES_PARAMETERS;
use crate::external::etcd::EndpointsError;

/// Why an endpoint of a datastore is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Only one of client certificate and key is given.
    #[error("a certificate and its key are given together")]
    CertificateWithoutKey,
    /// The text has no scheme.
    #[error(
        "is neither an absolute path nor a URL; write sqlite:///PATH, \
         postgres://USER:PASSWORD@HOST:PORT/DATABASE, \
         mysql://USER:PASSWORD@tcp(HOST:PORT)/DATABASE or https://HOST:PORT of an etcd"
    )]
    NoScheme,
    /// The scheme is not supported.
    #[error(
        "there is no driver {0}: known are sqlite, postgres and mysql, and http and https for an \
         etcd"
    )]
    Driver(String),
    /// Certificates are given for a datastore without TLS.
    #[error("{kind}, to which certificates mean nothing")]
    UnusedCertificates {
        /// Description of the datastore.
        kind: &'static str,
    },
    /// The path of a SQLite file is relative.
    #[error(
        "names no absolute path; that of k3s is sqlite:///var/lib/rancher/k3s/server/db/state.db"
    )]
    RelativePath,
    /// A SQLite endpoint has parameters.
    #[error(
        "has parameters ({0}), which are settings of k3s' driver: leave them out, the file is used \
         in WAL mode and synced"
    )]
    SqliteParameters(String),
    /// The text is not a URL.
    #[error("is no URL ({0}); signs such as / and @ in a password are written percent-encoded")]
    Url(#[source] url::ParseError),
    /// A PostgreSQL parameter is not supported.
    #[error(
        "has the parameter {0}, which is not supported: known are {known}",
        known = POSTGRES_PARAMETERS.join(", ")
    )]
    PostgresParameter(String),
    /// The name of the database contains invalid characters.
    #[error("names a database with other signs than letters, digits, - _ and .")]
    DatabaseName,
    /// A MySQL data source name has another form.
    #[error("is not of the form mysql://USER:PASSWORD@tcp(HOST:PORT)/DATABASE")]
    MysqlForm,
    /// A port is not a number.
    #[error("{0} is no port")]
    Port(String),
    /// A MySQL parameter is not supported.
    #[error(
        "has the parameter {0}, which is not supported: known is tls, as false, preferred, \
         skip-verify or true"
    )]
    MysqlParameter(String),
    /// The URLs of an etcd are invalid.
    #[error(transparent)]
    Etcd(#[from] EndpointsError),
}
