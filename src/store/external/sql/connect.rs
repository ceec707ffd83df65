//! Connects to a database and takes its lock.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteLockingMode, SqliteSynchronous};
use url::Url;

use super::dialect::{Dialect, MYSQL, POSTGRES, SQLITE};
use super::session::{Arg, Open, Session, SqlError, classify};
use crate::external::endpoint::{
    DatastoreKind, Endpoint, Mysql, MysqlAddress, MysqlTls, SqlEndpoint,
};

/// The advisory lock in PostgreSQL, one per database: `kubelite` in ASCII.
const LOCK: i64 = 0x6b75_6265_6c69_7465;
/// Timeout of a connection attempt.
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum wait for the lock: the database may still have the session of a server that just ended.
const WAIT: Duration = Duration::from_secs(3);

/// Query for the session that holds the advisory lock in PostgreSQL.
const POSTGRES_HOLDER: &str = "SELECT a.application_name || ', ' || \
     COALESCE(host(a.client_addr), 'a local socket') || ', process ' || a.pid \
     FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' \
     AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = \
     current_database()) AND (l.classid::bigint << 32) + l.objid::bigint = $1 LIMIT 1";
/// Query for the connection that holds the named lock in MySQL.
const MYSQL_HOLDER: &str = "SELECT CONCAT('connection ', id, ' of ', user, ' from ', host) FROM \
     information_schema.processlist WHERE id = IS_USED_LOCK(CONCAT('kube-lite:', DATABASE()))";

/// How the database is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Exclusive: no other server may write, nor read a SQLite file.
    Exclusive,
    /// Read once, without a lock.
    ReadOnly,
}

/// The dialect of an endpoint.
///
/// # Errors
/// The endpoint is not a database.
pub(super) fn dialect(endpoint: &Endpoint) -> Result<&'static Dialect, SqlError> {
    Ok(match sql_endpoint(endpoint)? {
        SqlEndpoint::Sqlite(_) => &SQLITE,
        SqlEndpoint::Postgres(_) => &POSTGRES,
        SqlEndpoint::Mysql(_) => &MYSQL,
    })
}

fn sql_endpoint(endpoint: &Endpoint) -> Result<&SqlEndpoint, SqlError> {
    match &endpoint.kind {
        DatastoreKind::Sql(sql) => Ok(sql),
        DatastoreKind::Etcd(_) => Err(SqlError::Failed(format!("{endpoint} is not a database"))),
    }
}

/// Connects, and takes the lock for exclusive access.
///
/// # Errors
/// [`SqlError::Held`] names the holder.
pub(super) async fn connect(
    endpoint: &Endpoint,
    access: Access,
) -> Result<Box<dyn Session>, SqlError> {
    match sql_endpoint(endpoint)? {
        SqlEndpoint::Sqlite(path) => sqlite(path, access).await,
        SqlEndpoint::Postgres(_) | SqlEndpoint::Mysql(_) => {
            let connecting = remote(endpoint, access);
            let late = || SqlError::Lost(format!("{endpoint} does not answer"));
            tokio::time::timeout(CONNECT, connecting).await.unwrap_or_else(|_| Err(late()))
        }
    }
}

async fn remote(endpoint: &Endpoint, access: Access) -> Result<Box<dyn Session>, SqlError> {
    match sql_endpoint(endpoint)? {
        SqlEndpoint::Postgres(url) => connect_postgres(url, endpoint, access).await,
        SqlEndpoint::Mysql(source) => connect_mysql(source, endpoint, access).await,
        SqlEndpoint::Sqlite(path) => sqlite(path, access).await,
    }
}

/// The error of a lock that another session holds.
fn held(endpoint: &Endpoint, holder: Option<String>) -> SqlError {
    let holder = holder.unwrap_or_else(|| "another session".to_owned());
    SqlError::Held(format!("{endpoint} is in use by {holder}: only one server may write to it"))
}

/// Connects to PostgreSQL, creates a missing database and takes the advisory lock.
async fn connect_postgres(
    url: &Url,
    endpoint: &Endpoint,
    access: Access,
) -> Result<Box<dyn Session>, SqlError> {
    let options = postgres(url, endpoint)?;
    let connected = match options.connect().await.map_err(classify) {
        Err(SqlError::NoDatabase(_)) if access == Access::Exclusive => {
            let name = options.get_database().unwrap_or_default();
            let maintenance = options.clone().database("postgres").connect().await;
            let mut maintenance = Open(maintenance.map_err(classify)?);
            // The name was checked when the endpoint was parsed.
            maintenance.run(&format!("CREATE DATABASE \"{name}\"")).await?;
            Box::new(maintenance).close().await?;
            options.connect().await.map_err(classify)
        }
        connected => connected,
    };
    let mut session = Open(connected?);
    if access == Access::Exclusive {
        session.run(&format!("SET lock_timeout = {}", WAIT.as_millis())).await?;
        let lock = session.execute("SELECT pg_advisory_lock($1)", &[Arg::Number(LOCK)]);
        let taken = lock.await;
        session.run("SET lock_timeout = 0").await?;
        if let Err(SqlError::Held(_)) = taken {
            let holder = session.text(POSTGRES_HOLDER, &[Arg::Number(LOCK)]);
            return Err(held(endpoint, holder.await?));
        }
        taken?;
    }
    Ok(Box::new(session))
}

/// Connects to MySQL, creates a missing database and takes the named lock.
async fn connect_mysql(
    source: &Mysql,
    endpoint: &Endpoint,
    access: Access,
) -> Result<Box<dyn Session>, SqlError> {
    let options = mysql(source, endpoint);
    let connected = match options.connect().await.map_err(classify) {
        Err(SqlError::NoDatabase(_)) if access == Access::Exclusive => {
            let mut nowhere = source.clone();
            nowhere.database = String::new();
            let connected = mysql(&nowhere, endpoint).connect().await;
            let mut maintenance = Open(connected.map_err(classify)?);
            let name = &source.database;
            maintenance.run(&format!("CREATE DATABASE IF NOT EXISTS `{name}`")).await?;
            Box::new(maintenance).close().await?;
            options.connect().await.map_err(classify)
        }
        connected => connected,
    };
    let mut session = Open(connected?);
    if access == Access::Exclusive {
        let taken = session
            .number(
                "SELECT CAST(GET_LOCK(CONCAT('kube-lite:', DATABASE()), ?) AS SIGNED)",
                &[Arg::Number(WAIT.as_secs().cast_signed())],
            )
            .await?;
        if taken != Some(1) {
            return Err(held(endpoint, session.text(MYSQL_HOLDER, &[]).await?));
        }
        // The database releases the lock of a server that disappeared.
        session.run("SET SESSION wait_timeout = 60").await?;
    }
    Ok(Box::new(session))
}

async fn sqlite(path: &Path, access: Access) -> Result<Box<dyn Session>, SqlError> {
    let options =
        SqliteConnectOptions::new().filename(path).busy_timeout(WAIT).disable_statement_logging();
    let options = match access {
        Access::Exclusive => options
            .create_if_missing(true)
            .locking_mode(SqliteLockingMode::Exclusive)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full),
        Access::ReadOnly => options.read_only(true),
    };
    let opened = async {
        let mut session = Open(options.connect().await.map_err(classify)?);
        if access == Access::Exclusive {
            // The lock is held from the first transaction on.
            session.run("BEGIN EXCLUSIVE; COMMIT").await?;
        }
        Ok(session)
    };
    match opened.await {
        Ok(session) => Ok(Box::new(session)),
        Err(SqlError::Held(_)) => {
            let shown = path.display();
            let holder = holder(path).unwrap_or_else(|| "another process".to_owned());
            Err(SqlError::Held(format!(
                "{shown} is in use by {holder}: stop k3s or the other server first"
            )))
        }
        Err(error) => {
            let shown = path.display();
            Err(SqlError::Failed(format!("cannot open {shown}: {error}")))
        }
    }
}

/// The process that locks a SQLite file. Only for a file that this process does not have open:
/// closing a file releases all of the process' locks on it.
fn holder(path: &Path) -> Option<String> {
    // The "pending" byte and those after it, up to the end of the shared range.
    const PENDING: libc::off_t = 0x4000_0000;
    let file = File::open(path).ok()?;
    let mut lock = libc::flock {
        l_type: i16::try_from(libc::F_WRLCK).ok()?,
        l_whence: i16::try_from(libc::SEEK_SET).ok()?,
        l_start: PENDING,
        l_len: 512,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_GETLK(&mut lock)).ok()?;
    if i32::from(lock.l_type) == libc::F_UNLCK || lock.l_pid <= 0 {
        return None;
    }
    let name = std::fs::read_to_string(format!("/proc/{}/comm", lock.l_pid)).unwrap_or_default();
    Some(format!("the process {} {}", lock.l_pid, name.trim()).trim_end().to_owned())
}

fn postgres(url: &Url, endpoint: &Endpoint) -> Result<PgConnectOptions, SqlError> {
    let mut url = url.clone();
    let given = |name: &str| url.query_pairs().any(|(given, _)| given == name);
    let path = |path: &Option<PathBuf>| path.as_ref().and_then(|p| Some(p.to_str()?.to_owned()));
    let mut add = Vec::new();
    let tls = &endpoint.tls;
    for (name, file) in
        [("sslrootcert", &tls.ca), ("sslcert", &tls.certificate), ("sslkey", &tls.key)]
    {
        match path(file) {
            Some(file) if !given(name) => add.push((name, file)),
            _ => {}
        }
    }
    // As in k3s: naming certificates turns on verification.
    if !add.is_empty() && !given("sslmode") {
        add.push(("sslmode", "verify-full".to_owned()));
    }
    for (name, value) in add {
        url.query_pairs_mut().append_pair(name, &value);
    }
    let options = PgConnectOptions::from_url(&url).map_err(classify)?;
    Ok(options
        .application_name(&format!("kube-lite on {}", machine()))
        // The database releases the lock of a server that disappeared.
        .options([
            ("tcp_keepalives_idle", "10"),
            ("tcp_keepalives_interval", "5"),
            ("tcp_keepalives_count", "4"),
        ])
        .disable_statement_logging())
}

fn mysql(source: &Mysql, endpoint: &Endpoint) -> MySqlConnectOptions {
    let tls = &endpoint.tls;
    let mut options = MySqlConnectOptions::new().username(&source.user).disable_statement_logging();
    if !source.database.is_empty() {
        options = options.database(&source.database);
    }
    options = match &source.address {
        MysqlAddress::Tcp(host, port) => options.host(host).port(*port),
        MysqlAddress::Unix(path) => options.socket(path),
    };
    if let Some(password) = &source.password {
        options = options.password(password);
    }
    if let Some(ca) = &tls.ca {
        options = options.ssl_ca(ca);
    }
    if let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) {
        options = options.ssl_client_cert(certificate).ssl_client_key(key);
    }
    let named = tls.ca.is_some() || tls.certificate.is_some();
    options.ssl_mode(match source.tls {
        Some(MysqlTls::Off) => MySqlSslMode::Disabled,
        Some(MysqlTls::Preferred) => MySqlSslMode::Preferred,
        Some(MysqlTls::Unverified) => MySqlSslMode::Required,
        Some(MysqlTls::Verified) => MySqlSslMode::VerifyIdentity,
        None if named => MySqlSslMode::VerifyIdentity,
        None => MySqlSslMode::Preferred,
    })
}

/// This machine's name, for the error messages of other servers.
fn machine() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| "a machine without a name".to_owned())
}
