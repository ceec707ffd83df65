//! SQL statements per database. Tables, columns, indexes and their types are kine's.
//!
//! SQLite and PostgreSQL share statements; MySQL has other placeholders and casts.

use super::plan::KeyNames;

/// Statements and properties of a database.
#[derive(Debug)]
pub(super) struct Dialect {
    /// Name of the database, for errors.
    pub(super) name: &'static str,
    /// Keys that the database can store.
    pub(super) names: KeyNames,
    /// Creates kine's table and its indexes.
    pub(super) kine: &'static [&'static str],
    /// Indexes and columns that may be missing in an existing table.
    pub(super) repeatable: bool,
    /// Creates the tables for leases, which kine's schema does not have.
    pub(super) leases: &'static [&'static str],
    /// Counts tables with a name.
    pub(super) exists: &'static str,
    /// Begins a transaction.
    pub(super) begin: &'static str,
    /// Begins a transaction with one snapshot.
    pub(super) begin_reading: &'static str,
    /// Selects all rows, oldest first.
    pub(super) load: &'static str,
    /// Selects the newest id.
    pub(super) newest: &'static str,
    /// Selects the compacted revision.
    pub(super) compacted: &'static str,
    /// Selects row and lease of rows attached to leases.
    pub(super) attached: &'static str,
    /// Selects id and seconds of leases.
    pub(super) granted: &'static str,
    /// Inserts a row; the old value comes from the previous row.
    pub(super) insert: &'static str,
    /// Sets the next id of inserts without an id.
    pub(super) sequence: Option<&'static str>,
    /// Attaches a row to a lease.
    pub(super) attach: &'static str,
    /// Inserts a lease.
    pub(super) grant: &'static str,
    /// Deletes a lease and its attachments.
    pub(super) revoke: [&'static str; 2],
    /// Sets the compacted revision.
    pub(super) set_compacted: &'static str,
    /// Deletes all rows of the compacted revision but the newest.
    pub(super) one_compacted: &'static str,
    /// Deletes rows superseded or deleted within a range of revisions.
    pub(super) compact: &'static str,
    /// Deletes attachments of deleted rows, up to a revision.
    pub(super) forget: &'static str,
    /// Selects the size on disk.
    pub(super) size: &'static str,
    /// Returns space to the file system, where a statement can.
    pub(super) defragment: Option<&'static str>,
    /// Whether each placeholder takes an argument of its own.
    pub(super) positional: bool,
    /// Whether the connection can be lost unnoticed.
    pub(super) remote: bool,
}

const LEASES: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS kube_lite_lease (id BIGINT NOT NULL PRIMARY KEY, ttl BIGINT NOT \
     NULL)",
    "CREATE TABLE IF NOT EXISTS kube_lite_attachment (lease BIGINT NOT NULL, revision BIGINT NOT \
     NULL, PRIMARY KEY (lease, revision))",
];
const LOAD: &str = "SELECT CAST(id AS BIGINT), COALESCE(name, ''), CAST(COALESCE(created, 0) AS BIGINT), CAST(COALESCE(deleted, 0) AS BIGINT), \
    CAST(COALESCE(create_revision, 0) AS BIGINT), CAST(COALESCE(prev_revision, 0) AS BIGINT), \
    CAST(COALESCE(lease, 0) AS BIGINT), value \
    FROM kine ORDER BY id";
const NEWEST: &str = "SELECT CAST(MAX(id) AS BIGINT) FROM kine";
const COMPACTED: &str =
    "SELECT CAST(MAX(prev_revision) AS BIGINT) FROM kine WHERE name = 'compact_rev_key'";
const ATTACHED: &str = "SELECT revision, lease FROM kube_lite_attachment";
const GRANTED: &str = "SELECT id, ttl FROM kube_lite_lease";
const INSERT: &str = "INSERT INTO kine(id, name, created, deleted, create_revision, prev_revision, lease, value, old_value) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, (SELECT value FROM kine WHERE id = $6 AND deleted = \
    0))";
const ATTACH: &str = "INSERT INTO kube_lite_attachment(revision, lease) VALUES ($1, $2)";
const GRANT: &str = "INSERT INTO kube_lite_lease(id, ttl) VALUES ($1, $2)";
const REVOKE: [&str; 2] = [
    "DELETE FROM kube_lite_lease WHERE id = $1",
    "DELETE FROM kube_lite_attachment WHERE lease = $1",
];
const SET_COMPACTED: &str = "UPDATE kine SET prev_revision = $1 WHERE name = 'compact_rev_key'";
const ONE_COMPACTED: &str = "DELETE FROM kine WHERE name = 'compact_rev_key' AND id <> \
    (SELECT id FROM kine WHERE name = 'compact_rev_key' ORDER BY prev_revision DESC, id DESC LIMIT \
    1)";
const COMPACT: &str = "DELETE FROM kine WHERE id IN \
    (SELECT kp.prev_revision FROM kine AS kp WHERE kp.name <> 'compact_rev_key' AND \
    kp.prev_revision <> 0 AND kp.id >= $1 AND kp.id < $2 \
    UNION ALL SELECT kd.id FROM kine AS kd WHERE kd.deleted <> 0 AND kd.id >= $1 AND kd.id < $2)";
const FORGET: &str = "DELETE FROM kube_lite_attachment WHERE revision < $1 \
    AND NOT EXISTS (SELECT 1 FROM kine WHERE kine.id = kube_lite_attachment.revision)";

/// SQLite, one file; k3s's `server/db/state.db` is one.
pub(super) const SQLITE: Dialect = Dialect {
    name: "SQLite",
    names: KeyNames { ascii: false, max: usize::MAX },
    kine: &[
        "CREATE TABLE IF NOT EXISTS kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created INTEGER, deleted INTEGER, \
            create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value \
            BLOB)",
        "CREATE INDEX IF NOT EXISTS kine_name_index ON kine (name)",
        "CREATE INDEX IF NOT EXISTS kine_name_id_index ON kine (name,id)",
        "CREATE INDEX IF NOT EXISTS kine_id_deleted_index ON kine (id,deleted)",
        "CREATE INDEX IF NOT EXISTS kine_prev_revision_index ON kine (prev_revision)",
        "CREATE UNIQUE INDEX IF NOT EXISTS kine_name_prev_revision_uindex ON kine (name, \
         prev_revision)",
        "CREATE INDEX IF NOT EXISTS kine_id_compact_rev_key_with_prev_revision_index ON kine (id, name, prev_revision) \
            WHERE name != 'compact_rev_key' AND prev_revision != 0",
    ],
    repeatable: true,
    leases: LEASES,
    exists: "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name = $1",
    begin: "BEGIN IMMEDIATE",
    begin_reading: "BEGIN",
    load: LOAD,
    newest: NEWEST,
    compacted: COMPACTED,
    attached: ATTACHED,
    granted: GRANTED,
    insert: INSERT,
    sequence: None,
    attach: ATTACH,
    grant: GRANT,
    revoke: REVOKE,
    set_compacted: SET_COMPACTED,
    one_compacted: ONE_COMPACTED,
    compact: COMPACT,
    forget: FORGET,
    size: "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count(), \
        pragma_freelist_count(), pragma_page_size()",
    defragment: Some("VACUUM"),
    positional: false,
    remote: false,
};

/// PostgreSQL.
pub(super) const POSTGRES: Dialect = Dialect {
    name: "PostgreSQL",
    names: KeyNames { ascii: false, max: usize::MAX },
    kine: &[
        "CREATE TABLE IF NOT EXISTS kine (id BIGSERIAL PRIMARY KEY, name text COLLATE \"C\", created INTEGER, deleted INTEGER, \
            create_revision BIGINT, prev_revision BIGINT, lease INTEGER, value bytea, old_value \
            bytea)",
        "CREATE INDEX IF NOT EXISTS kine_name_index ON kine (name)",
        "CREATE INDEX IF NOT EXISTS kine_name_id_index ON kine (name,id)",
        "CREATE INDEX IF NOT EXISTS kine_id_deleted_index ON kine (id,deleted)",
        "CREATE INDEX IF NOT EXISTS kine_prev_revision_index ON kine (prev_revision)",
        "CREATE UNIQUE INDEX IF NOT EXISTS kine_name_prev_revision_uindex ON kine (name, \
         prev_revision)",
        "CREATE INDEX IF NOT EXISTS kine_list_query_index ON kine (name, id DESC, deleted)",
    ],
    exists: "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = current_schema() \
        AND table_name = $1",
    begin: "BEGIN",
    begin_reading: "BEGIN ISOLATION LEVEL REPEATABLE READ",
    // Later inserts without an id, as by k3s, continue after these ids.
    sequence: Some("SELECT setval(pg_get_serial_sequence('kine', 'id'), $1)"),
    size: "SELECT CAST(pg_total_relation_size('kine') AS BIGINT)",
    defragment: None,
    remote: true,
    ..SQLITE
};

/// MySQL and MariaDB.
pub(super) const MYSQL: Dialect = Dialect {
    name: "MySQL",
    names: KeyNames { ascii: true, max: 630 },
    kine: &[
        "CREATE TABLE IF NOT EXISTS kine (id BIGINT UNSIGNED AUTO_INCREMENT, name VARCHAR(630) CHARACTER SET ascii, created INTEGER, \
            deleted INTEGER, create_revision BIGINT UNSIGNED, prev_revision BIGINT UNSIGNED, lease \
            INTEGER, value MEDIUMBLOB, \
            old_value MEDIUMBLOB, PRIMARY KEY (id))",
        "CREATE INDEX kine_name_index ON kine (name)",
        "CREATE INDEX kine_name_id_index ON kine (name,id)",
        "CREATE INDEX kine_id_deleted_index ON kine (id,deleted)",
        "CREATE INDEX kine_prev_revision_index ON kine (prev_revision)",
        "CREATE UNIQUE INDEX kine_name_prev_revision_uindex ON kine (name, prev_revision)",
    ],
    repeatable: false,
    leases: LEASES,
    exists: "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND \
        table_name = ?",
    begin: "START TRANSACTION",
    begin_reading: "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    load: "SELECT CAST(id AS SIGNED), COALESCE(name, ''), CAST(COALESCE(created, 0) AS SIGNED), CAST(COALESCE(deleted, 0) AS SIGNED), \
        CAST(COALESCE(create_revision, 0) AS SIGNED), CAST(COALESCE(prev_revision, 0) AS SIGNED), \
        CAST(COALESCE(lease, 0) AS SIGNED), value \
        FROM kine ORDER BY id",
    newest: "SELECT CAST(MAX(id) AS SIGNED) FROM kine",
    compacted: "SELECT CAST(MAX(prev_revision) AS SIGNED) FROM kine WHERE name = 'compact_rev_key'",
    attached: ATTACHED,
    granted: GRANTED,
    insert: "INSERT INTO kine(id, name, created, deleted, create_revision, prev_revision, lease, value, old_value) \
        SELECT ?, ?, ?, ?, ?, ?, ?, ?, (SELECT value FROM kine WHERE id = ? AND deleted = 0)",
    sequence: None,
    attach: "INSERT INTO kube_lite_attachment(revision, lease) VALUES (?, ?)",
    grant: "INSERT INTO kube_lite_lease(id, ttl) VALUES (?, ?)",
    revoke: [
        "DELETE FROM kube_lite_lease WHERE id = ?",
        "DELETE FROM kube_lite_attachment WHERE lease = ?",
    ],
    set_compacted: "UPDATE kine SET prev_revision = ? WHERE name = 'compact_rev_key'",
    one_compacted: "DELETE FROM kine WHERE name = 'compact_rev_key' AND id <> (SELECT id FROM \
        (SELECT id FROM kine WHERE name = 'compact_rev_key' ORDER BY prev_revision DESC, id DESC \
        LIMIT 1) AS newest)",
    compact: "DELETE kv FROM kine AS kv INNER JOIN \
        (SELECT kp.prev_revision AS id FROM kine AS kp WHERE kp.name <> 'compact_rev_key' AND \
        kp.prev_revision <> 0 AND kp.id >= ? AND kp.id < ? \
        UNION ALL SELECT kd.id AS id FROM kine AS kd WHERE kd.deleted <> 0 AND kd.id >= ? AND \
        kd.id < ?) AS ks ON kv.id = ks.id",
    forget: "DELETE FROM kube_lite_attachment WHERE revision < ? \
        AND NOT EXISTS (SELECT 1 FROM kine WHERE kine.id = kube_lite_attachment.revision)",
    size: "SELECT CAST(COALESCE(SUM(data_length + index_length), 0) AS SIGNED) FROM information_schema.tables \
        WHERE table_schema = DATABASE() AND table_name = 'kine'",
    defragment: None,
    positional: true,
    remote: true,
};
