//! Operations on the database: create tables, read all rows, write changes, compact.

use std::time::Duration;

use super::connect::{Access, connect, dialect};
use super::dialect::Dialect;
use super::load::{Leases, Loader};
use super::plan::{COMPACT_KEY, Changes, LeaseChange, Row};
use super::session::{Arg, Session, SqlError};
use crate::external::endpoint::Endpoint;
use crate::mvcc::State;

/// Timeout of a statement over a network, after which the connection counts as lost; a compaction
/// of kine's batch size takes milliseconds.
const ANSWER: Duration = Duration::from_secs(20);

/// A database with its connection.
pub(super) struct Database {
    endpoint: Endpoint,
    dialect: &'static Dialect,
    session: Option<Box<dyn Session>>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Database {
    /// Connects to the database.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub(super) async fn open(endpoint: Endpoint, access: Access) -> Result<Self, SqlError> {
        let session = connect(&endpoint, access).await?;
        Ok(Self { dialect: dialect(&endpoint)?, endpoint, session: Some(session) })
    }

    /// Reconnects and takes the lock again.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub(super) async fn reopen(&mut self) -> Result<(), SqlError> {
        // The old connection is closed first, because SQLite's lock belongs to the process.
        self.session = None;
        self.session = Some(connect(&self.endpoint, Access::Exclusive).await?);
        Ok(())
    }

    /// Wraps the session.
    #[cfg(test)]
    pub(super) fn wrap(&mut self, wrap: impl FnOnce(Box<dyn Session>) -> Box<dyn Session>) {
        self.session = self.session.take().map(wrap);
    }

    /// The dialect of the database.
    pub(super) fn dialect(&self) -> &'static Dialect {
        self.dialect
    }

    /// The endpoint of the database.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn session(&mut self) -> Result<&mut dyn Session, SqlError> {
        let lost = || SqlError::Lost("the connection is closed".to_owned());
        Ok(self.session.as_mut().ok_or_else(lost)?.as_mut())
    }

    /// Creates missing tables.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub(super) async fn prepare(&mut self) -> Result<(), SqlError> {
        let dialect = self.dialect;
        let there = self.exists("kine").await?;
        let session = self.session()?;
        // As kine at each start: indexes that an older kine lacks are created.
        if !there || dialect.repeatable {
            for sql in dialect.kine {
                session.run(sql).await?;
            }
        }
        for sql in dialect.leases {
            session.run(sql).await?;
        }
        // A former kine created several of these.
        session.run(dialect.one_compacted).await?;
        if session.number(dialect.compacted, &[]).await?.is_none() {
            let newest = session.number(dialect.newest, &[]).await?.unwrap_or_default();
            let row = Row {
                id: newest + 1,
                name: COMPACT_KEY.to_owned(),
                created: true,
                deleted: false,
                create_revision: 0,
                prev_revision: 0,
                ttl: 0,
                lease: 0,
                value: Some(bytes::Bytes::new()),
            };
            self.write(&Changes { rows: vec![row], leases: Vec::new() }).await?;
        }
        Ok(())
    }

    async fn exists(&mut self, table: &str) -> Result<bool, SqlError> {
        let sql = self.dialect.exists;
        let found = self.session()?.number(sql, &[Arg::Text(table)]).await?;
        Ok(found.is_some_and(|tables| tables > 0))
    }

    /// Reads all rows.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub(super) async fn load(&mut self) -> Result<State, SqlError> {
        let dialect = self.dialect;
        if !self.exists("kine").await? {
            let text = format!("{} has no table kine: it is not a datastore of k3s", self.endpoint);
            return Err(SqlError::Failed(text));
        }
        let mut leases = Leases::default();
        let ours = self.exists("kube_lite_lease").await?;
        let session = self.session()?;
        if ours {
            leases.attached = session.pairs(dialect.attached).await?.into_iter().collect();
            leases.granted = session.pairs(dialect.granted).await?.into_iter().collect();
        }
        let compacted = session.number(dialect.compacted, &[]).await?.unwrap_or_default();
        let mut loader = Loader::new(leases, compacted);
        session.rows(dialect.load, &mut |row| loader.take(row)).await?;
        Ok(loader.finish())
    }

    /// Reads all rows as of one moment, while others may continue to write.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub(super) async fn load_as_of_one_moment(&mut self) -> Result<State, SqlError> {
        let begin = self.dialect.begin_reading;
        self.session()?.run(begin).await?;
        let state = self.load().await;
        self.session()?.run("ROLLBACK").await?;
        state
    }

    /// The newest id.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub(super) async fn newest(&mut self) -> Result<i64, SqlError> {
        let sql = self.dialect.newest;
        let remote = self.dialect.remote;
        let session = self.session()?;
        let newest = within(remote, session.number(sql, &[])).await?;
        Ok(newest.unwrap_or_default())
    }

    /// Bytes on disk.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub(super) async fn size(&mut self) -> Result<u64, SqlError> {
        let sql = self.dialect.size;
        let remote = self.dialect.remote;
        let size = within(remote, self.session()?.number(sql, &[])).await?;
        Ok(size.and_then(|size| u64::try_from(size).ok()).unwrap_or_default())
    }

    /// Writes changes atomically.
    ///
    /// # Errors
    /// See [`SqlError`]; only after [`SqlError::Lost`] the changes may have been written.
    pub(super) async fn write(&mut self, changes: &Changes) -> Result<(), SqlError> {
        let dialect = self.dialect;
        let session = self.session()?;
        let outcome = within(dialect.remote, write(dialect, session, changes)).await;
        self.conclude(outcome).await
    }

    /// Deletes rows superseded or deleted in `[from, to)`, and sets the compacted revision to `to`.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub(super) async fn compact(&mut self, from: i64, to: i64) -> Result<(), SqlError> {
        let dialect = self.dialect;
        let session = self.session()?;
        let outcome = within(dialect.remote, compact(dialect, session, from, to)).await;
        self.conclude(outcome).await
    }

    /// Ends a failed transaction.
    async fn conclude(&mut self, outcome: Result<(), SqlError>) -> Result<(), SqlError> {
        match outcome {
            Ok(()) => Ok(()),
            Err(lost @ SqlError::Lost(_)) => Err(lost),
            Err(error) => {
                let remote = self.dialect.remote;
                within(remote, self.session()?.run("ROLLBACK")).await.or_else(|rollback| {
                    // A failed transaction may have ended itself; then there is nothing to roll
                    // back.
                    match rollback {
                        lost @ SqlError::Lost(_) => Err(lost),
                        _ => Ok(()),
                    }
                })?;
                Err(error)
            }
        }
    }

    /// Returns space to the file system.
    ///
    /// # Errors
    /// See [`SqlError`]; a database server does so itself.
    pub(super) async fn defragment(&mut self) -> Result<(), SqlError> {
        match self.dialect.defragment {
            Some(sql) => self.session()?.run(sql).await,
            None => Err(SqlError::Failed(format!(
                "{} manages its disk space itself, defragmentation is not supported",
                self.dialect.name
            ))),
        }
    }

    /// Closes the connection in order, which releases the lock.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub(super) async fn close(&mut self) -> Result<(), SqlError> {
        match self.session.take() {
            Some(session) => session.close().await,
            None => Ok(()),
        }
    }
}

/// Bounds a statement over a network by the timeout of the connection; a file has no timeout.
async fn within<T>(
    remote: bool,
    asked: impl Future<Output = Result<T, SqlError>>,
) -> Result<T, SqlError> {
    if !remote {
        return asked.await;
    }
    let late = || SqlError::Lost(format!("no answer for {} s", ANSWER.as_secs()));
    tokio::time::timeout(ANSWER, asked).await.unwrap_or_else(|_| Err(late()))
}

async fn write(
    dialect: &Dialect,
    session: &mut dyn Session,
    changes: &Changes,
) -> Result<(), SqlError> {
    session.run(dialect.begin).await?;
    for change in &changes.leases {
        let (LeaseChange::Granted(id, _) | LeaseChange::Revoked(id)) = *change;
        // Grants are written first, too, and only once, if it is unknown whether they were.
        for sql in dialect.revoke {
            session.execute(sql, &[Arg::Number(id)]).await?;
        }
        if let LeaseChange::Granted(id, ttl) = *change {
            session.execute(dialect.grant, &[Arg::Number(id), Arg::Number(ttl)]).await?;
        }
    }
    for row in &changes.rows {
        // The column is a small integer; a larger number is longer than any server lives.
        let ttl = row.ttl.min(i64::from(i32::MAX));
        let args = [
            Arg::Number(row.id),
            Arg::Text(&row.name),
            Arg::Number(i64::from(row.created)),
            Arg::Number(i64::from(row.deleted)),
            Arg::Number(row.create_revision),
            Arg::Number(row.prev_revision),
            Arg::Number(ttl),
            Arg::Bytes(row.value.as_deref()),
            Arg::Number(row.prev_revision),
        ];
        let (named, _) = args.split_at(if dialect.positional { 9 } else { 8 });
        session.execute(dialect.insert, named).await?;
        if row.lease != 0 {
            session.execute(dialect.attach, &[Arg::Number(row.id), Arg::Number(row.lease)]).await?;
        }
    }
    if let (Some(sql), Some(last)) = (dialect.sequence, changes.rows.last()) {
        session.number(sql, &[Arg::Number(last.id)]).await?;
    }
    session.run("COMMIT").await
}

async fn compact(
    dialect: &Dialect,
    session: &mut dyn Session,
    from: i64,
    to: i64,
) -> Result<(), SqlError> {
    session.run(dialect.begin).await?;
    session.execute(dialect.set_compacted, &[Arg::Number(to)]).await?;
    let range = [Arg::Number(from), Arg::Number(to), Arg::Number(from), Arg::Number(to)];
    let (range, _) = range.split_at(if dialect.positional { 4 } else { 2 });
    session.execute(dialect.compact, range).await?;
    session.execute(dialect.forget, &[Arg::Number(to)]).await?;
    session.run("COMMIT").await
}
