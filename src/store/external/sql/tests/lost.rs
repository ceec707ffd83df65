//! A connection that is lost during a transaction: a committed one is applied once, others are
//! retried.

use async_trait::async_trait;

use super::{end, endpoint, tasks};
use crate::contract::{KeyRange, Op, Revision, StoreError, Txn};
use crate::external::sql::connect::Access;
use crate::external::sql::database::Database;
use crate::external::sql::engine::begin;
use crate::external::sql::plan::Row;
use crate::external::sql::session::{Arg, Session, SqlError};

/// A connection whose first `COMMIT` after `left` others is not answered.
struct LossyConnection {
    inner: Box<dyn Session>,
    left: usize,
    /// Whether the commit is executed.
    happens: bool,
}

#[async_trait]
impl Session for LossyConnection {
    async fn run(&mut self, sql: &str) -> Result<(), SqlError> {
        if sql != "COMMIT" || self.left > 0 {
            self.left -= usize::from(sql == "COMMIT");
            return self.inner.run(sql).await;
        }
        if self.happens {
            self.inner.run(sql).await?;
        }
        Err(SqlError::Lost("pulled out".to_owned()))
    }

    async fn execute(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<(), SqlError> {
        self.inner.execute(sql, args).await
    }

    async fn number(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<i64>, SqlError> {
        self.inner.number(sql, args).await
    }

    async fn text(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<String>, SqlError> {
        self.inner.text(sql, args).await
    }

    async fn pairs(&mut self, sql: &'static str) -> Result<Vec<(i64, i64)>, SqlError> {
        self.inner.pairs(sql).await
    }

    async fn rows(
        &mut self,
        sql: &'static str,
        take: &mut (dyn FnMut(Row) + Send),
    ) -> Result<(), SqlError> {
        self.inner.rows(sql, take).await
    }

    async fn close(self: Box<Self>) -> Result<(), SqlError> {
        self.inner.close().await
    }
}

fn put(key: &str) -> Txn {
    let op = Op::Put { key: key.to_owned().into(), value: "v".into(), lease: 0, prev_kv: false };
    Txn { success: vec![op], ..Txn::default() }
}

/// The first transaction creates the row of the compacted revision.
async fn lose(left: usize, happens: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let tasks = tasks();
    let mut database = Database::open(endpoint(&path), Access::Exclusive).await.unwrap();
    database.wrap(|inner| Box::new(LossyConnection { inner, left, happens }));
    let store = begin(database, &tasks).await.unwrap();
    let mut watcher = store.watch(KeyRange::prefix("k/"), Some(Revision(2))).await.unwrap();
    let mut revisions = Vec::new();
    for key in ["k/1", "k/2", "k/3"] {
        revisions.push(store.txn(put(key)).await.unwrap().revision.0);
    }
    assert_eq!(revisions, [2, 3, 4]);
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let batch = watcher.batches.recv().await.unwrap().unwrap();
        seen.extend(batch.events.iter().map(|event| event.kv.mod_revision.0));
    }
    assert_eq!(seen, [2, 3, 4]);
    store.lease_grant(9, 60).await.unwrap();
    store.compact(Revision(3)).await.unwrap();
    end(tasks).await;
    let again = super::tasks();
    let store = super::sqlite(&path, &again).await;
    assert_eq!((store.revision(), store.compacted()), (Revision(4), Revision(3)));
    assert_eq!(store.leases().await.unwrap(), [9]);
    end(again).await;
}

#[tokio::test]
async fn a_committed_transaction_with_a_lost_response_is_applied_once() {
    for left in 1..6 {
        lose(left, true).await;
    }
}

#[tokio::test]
async fn a_transaction_that_was_not_committed_is_retried() {
    for left in 1..6 {
        lose(left, false).await;
    }
}

/// A writer outside the store has taken the next id.
#[tokio::test]
async fn a_second_writer_stops_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = tasks();
    let database = Database::open(endpoint(&dir.path().join("state.db")), Access::Exclusive);
    let mut database = database.await.unwrap();
    database.wrap(|inner| Box::new(OtherWriter(inner)));
    let store = begin(database, &tasks).await.unwrap();
    store.txn(put("a")).await.unwrap();
    let refused = store.txn(put("b")).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Stopped(why) if why.contains("another program writes to")),
        "{refused}"
    );
    assert!(matches!(store.txn(put("c")).await, Err(StoreError::Stopped(_))));
    tasks.drain(std::time::Duration::from_secs(10)).await;
    assert!(tasks.fault().unwrap().starts_with("datastore: "));
}

/// Inserts a row before the one of the key `b`.
struct OtherWriter(Box<dyn Session>);

#[async_trait]
impl Session for OtherWriter {
    async fn run(&mut self, sql: &str) -> Result<(), SqlError> {
        self.0.run(sql).await
    }

    async fn execute(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<(), SqlError> {
        if matches!(args, [_, Arg::Text("b"), ..]) {
            let foreign =
                "INSERT INTO kine(name, created, deleted, prev_revision) VALUES ('f', 1, 0, 0)";
            self.0.run("ROLLBACK").await?;
            self.0.run(foreign).await?;
            self.0.run("BEGIN").await?;
        }
        self.0.execute(sql, args).await
    }

    async fn number(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<i64>, SqlError> {
        self.0.number(sql, args).await
    }

    async fn text(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<String>, SqlError> {
        self.0.text(sql, args).await
    }

    async fn pairs(&mut self, sql: &'static str) -> Result<Vec<(i64, i64)>, SqlError> {
        self.0.pairs(sql).await
    }

    async fn rows(
        &mut self,
        sql: &'static str,
        take: &mut (dyn FnMut(Row) + Send),
    ) -> Result<(), SqlError> {
        self.0.rows(sql, take).await
    }

    async fn close(self: Box<Self>) -> Result<(), SqlError> {
        self.0.close().await
    }
}
