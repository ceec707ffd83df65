//! SQLite: the content after a restart, the rows that k3s reads, and the lock of the file.

use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Row, SqliteConnection};

use super::{end, endpoint, sqlite, tasks};
use crate::contract::{
    Alarm, Compare, KeyRange, Op, Ordering, RangeRequest, Revision, Target, Txn,
};
use crate::{DatastoreError, open_external};

fn put(key: &str, value: &str, lease: i64) -> Txn {
    let op = Op::Put {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        lease,
        prev_kv: false,
    };
    Txn { success: vec![op], ..Txn::default() }
}

fn delete(key: &str) -> Txn {
    let op = Op::Delete { range: KeyRange::key(key.to_owned()), prev_kv: false };
    Txn { success: vec![op], ..Txn::default() }
}

async fn raw(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    options.connect().await.unwrap()
}

async fn texts(path: &Path, sql: &'static str) -> Vec<String> {
    let mut connection = raw(path).await;
    let rows = sqlx::query(sql).fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    rows.iter().map(|row| row.get::<Option<String>, _>(0).unwrap_or_else(|| "-".into())).collect()
}

/// All columns of kine's table in one text.
const TABLE: &str = "SELECT id || ' ' || name || ' ' || created || deleted || ' ' || COALESCE(create_revision, 0) || ' ' || \
    prev_revision || ' ' || lease || ' ' || COALESCE(value, '-') || ' ' || COALESCE(old_value, \
    '-') FROM kine ORDER BY id";

/// Separable puts are kine's rows, one revision each, and the response is that of the last one.
#[tokio::test]
async fn separable_puts_are_stored_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let tasks = tasks();
    let store = sqlite(&path, &tasks).await;
    store.txn(put("quota", "0", 0)).await.unwrap();
    let both = |expected| Txn {
        compare: vec![Compare {
            range: KeyRange::key("quota"),
            target: Target::ModRevision(expected),
            ordering: Ordering::Equal,
        }],
        success: [put("quota", "1", 0), put("object", "o", 0)].map(|txn| txn.success).concat(),
        separable: true,
        ..Txn::default()
    };
    let answer = store.txn(both(2)).await.unwrap();
    assert_eq!((answer.succeeded, answer.revision), (true, Revision(4)));
    assert_eq!(answer.responses.len(), 1);
    let again = store.txn(both(2)).await.unwrap();
    assert_eq!((again.succeeded, again.revision), (false, Revision(4)));
    let refused = store.txn(Txn { separable: false, ..both(3) }).await.unwrap_err();
    assert!(refused.to_string().contains("one change per revision"), "{refused}");
    end(tasks).await;
    let rows = texts(
        &path,
        "SELECT id || ' ' || name || ' ' || COALESCE(value, '-') FROM kine WHERE id > 1",
    )
    .await;
    assert_eq!(rows, ["2 quota 0", "3 quota 1", "4 object o"]);
}

#[tokio::test]
async fn acknowledged_writes_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let first = tasks();
    let store = sqlite(&path, &first).await;
    store.lease_grant(1 << 40, 600).await.unwrap();
    for txn in [put("a", "1", 0), put("b", "1", 1 << 40), put("a", "2", 0), delete("a")] {
        store.txn(txn).await.unwrap();
    }
    store.compact(Revision(4)).await.unwrap();
    store.txn(put("a", "3", 0)).await.unwrap();
    end(first).await;
    assert_eq!(
        texts(&path, TABLE).await,
        [
            "1 compact_rev_key 10 0 4 0  -",
            // The change at the compacted revision is kept for watches that start there.
            "2 a 10 0 0 0 1 -",
            "3 b 10 0 0 600 1 -",
            "4 a 00 2 2 0 2 1",
            "5 a 01 2 4 0 - 2",
            "6 a 10 0 5 0 3 -",
        ]
    );

    let second = tasks();
    let store = sqlite(&path, &second).await;
    assert_eq!((store.revision(), store.compacted()), (Revision(6), Revision(4)));
    let found = store.range(RangeRequest::new(KeyRange::prefix(""))).await.unwrap();
    let shown: Vec<_> = found
        .kvs
        .iter()
        .map(|kv| (kv.key.as_ref(), kv.value.as_ref(), kv.create_revision.0, kv.mod_revision.0))
        .collect();
    assert_eq!(shown, [(&b"a"[..], &b"3"[..], 6, 6), (b"b", b"1", 3, 3)]);
    assert_eq!(store.leases().await.unwrap(), [1 << 40]);
    assert_eq!(store.lease(1 << 40).await.unwrap().1, ["b"]);
    store.lease_revoke(1 << 40).await.unwrap();
    assert_eq!(store.txn(put("c", "1", 0)).await.unwrap().revision, Revision(8));
    end(second).await;
    assert_eq!(
        texts(&path, "SELECT 'attached' FROM kube_lite_attachment").await,
        Vec::<String>::new()
    );
}

/// The result of kine's SQL (v0.17): its schema, its rows, an interrupted compaction and a filled
/// gap.
#[tokio::test]
async fn a_file_of_k3s_opens_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let mut connection = raw(&path).await;
    sqlx::raw_sql(
        "PRAGMA journal_mode = WAL;
         CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER, created INTEGER, deleted INTEGER, create_revision INTEGER,
            prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB);
         CREATE UNIQUE INDEX kine_name_prev_revision_uindex ON kine (name, prev_revision);
         INSERT INTO kine VALUES (1, 'compact_rev_key', 1, 0, 0, 0, 0, '', NULL);
         INSERT INTO kine VALUES (2, '/registry/health', 1, 0, 0, 0, 0, '{\"health\":\"true\"}', NULL);
         INSERT INTO kine VALUES (3, '/registry/events/e', 1, 0, NULL, 0, 3600, 'e', NULL);
         INSERT INTO kine VALUES (4, '/registry/pods/p', 1, 0, NULL, 0, 0, 'p1', NULL);
         INSERT INTO kine VALUES (5, '/registry/pods/p', 0, 0, 4, 4, 0, 'p2', 'p1');
         INSERT INTO kine VALUES (6, 'gap-6', 0, 1, 0, 0, 0, NULL, NULL);
         INSERT INTO kine VALUES (7, '/registry/pods/p', 0, 1, 4, 5, 0, 'p2', 'p2');",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    connection.close().await.unwrap();

    let tasks = tasks();
    let store = sqlite(&path, &tasks).await;
    assert_eq!(store.revision(), Revision(7));
    let found = store.range(RangeRequest::new(KeyRange::prefix("/"))).await.unwrap();
    let keys: Vec<_> = found.kvs.iter().map(|kv| (kv.key.clone(), kv.lease)).collect();
    assert_eq!(keys, [("/registry/events/e".into(), 3600), ("/registry/health".into(), 0)]);
    assert_eq!(store.txn(put("/registry/pods/p", "p3", 0)).await.unwrap().revision, Revision(8));
    store.compact(Revision(8)).await.unwrap();
    end(tasks).await;
    assert_eq!(
        texts(&path, TABLE).await,
        [
            "1 compact_rev_key 10 0 8 0  -",
            "2 /registry/health 10 0 0 0 {\"health\":\"true\"} -",
            "3 /registry/events/e 10 0 0 3600 e -",
            "8 /registry/pods/p 10 0 7 0 p3 -",
        ]
    );
    // An insert without an id continues after our rows.
    let next = "INSERT INTO kine(name, prev_revision) VALUES ('x', 0) RETURNING CAST(id AS TEXT)";
    assert_eq!(texts(&path, next).await, ["9"]);
}

#[tokio::test]
async fn a_second_one_is_refused_and_told_who_has_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    // k3s keeps its file open.
    let mut other = raw(&path).await;
    sqlx::raw_sql("PRAGMA journal_mode = WAL; CREATE TABLE t (x); SELECT * FROM t")
        .execute(&mut other)
        .await
        .unwrap();
    let tasks_here = tasks();
    let refused = open_external(endpoint(&path), None, &tasks_here).await.unwrap_err();
    assert!(matches!(&refused, DatastoreError::Held(why) if why.contains("stop k3s")), "{refused}");
    other.close().await.unwrap();

    let store = sqlite(&path, &tasks_here).await;
    store.txn(put("a", "1", 0)).await.unwrap();
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .busy_timeout(std::time::Duration::from_millis(1));
    let mut second = options.connect().await.unwrap();
    let locked = sqlx::query("SELECT * FROM kine").fetch_all(&mut second).await.unwrap_err();
    assert!(locked.to_string().contains("locked"), "{locked}");
    drop(second);
    end(tasks_here).await;
}

#[tokio::test]
async fn several_keys_at_once_are_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = tasks();
    let store = sqlite(&dir.path().join("state.db"), &tasks).await;
    let (mut both, other) = (put("a", "1", 0), put("b", "1", 0));
    both.success.extend(other.success);
    let refused = store.txn(both).await.unwrap_err();
    assert!(refused.to_string().contains("one change per revision"), "{refused}");
    assert_eq!(store.revision(), Revision(1));
    let refused = store.set_alarm(1, Alarm::NOSPACE, true).await.unwrap_err();
    assert!(refused.to_string().contains("embedded store"), "{refused}");
    end(tasks).await;
}
