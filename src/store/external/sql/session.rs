//! A connection to a database and its lock.

use async_trait::async_trait;
use futures::TryStreamExt;
use sqlx::{Connection, Row as _};

use super::plan::Row;

/// An argument of a statement.
#[derive(Debug, Clone, Copy)]
pub(super) enum Arg<'a> {
    Number(i64),
    Text(&'a str),
    Bytes(Option<&'a [u8]>),
}

/// Errors of statements.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum SqlError {
    /// The connection is lost: the statement may have been executed or not.
    #[error("the connection to the database is lost: {0}")]
    Lost(String),
    /// A unique index refused the statement.
    #[error("the row exists already: {0}")]
    Taken(String),
    /// Another server holds the database.
    #[error("{0}")]
    Held(String),
    /// The database does not exist.
    #[error("{0}")]
    NoDatabase(String),
    /// The database is out of space.
    #[error("the database has no space left: {0}")]
    Full(String),
    /// Any other error.
    #[error("{0}")]
    Failed(String),
}

/// One connection.
#[async_trait]
pub(super) trait Session: Send {
    /// Runs statements without arguments.
    async fn run(&mut self, sql: &str) -> Result<(), SqlError>;
    /// Executes a statement.
    async fn execute(&mut self, sql: &'static str, args: &[Arg<'_>]) -> Result<(), SqlError>;
    /// The number in the first column of the first row; `None` without a row, or for NULL.
    async fn number(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<i64>, SqlError>;
    /// The text in the first column of the first row.
    async fn text(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<String>, SqlError>;
    /// Two numbers of each row.
    async fn pairs(&mut self, sql: &'static str) -> Result<Vec<(i64, i64)>, SqlError>;
    /// Calls a function with each row of kine's table.
    async fn rows(
        &mut self,
        sql: &'static str,
        take: &mut (dyn FnMut(Row) + Send),
    ) -> Result<(), SqlError>;
    /// Closes the connection in order.
    async fn close(self: Box<Self>) -> Result<(), SqlError>;
}

/// SQLSTATE and error codes that mean that the connection or the server is stopping.
fn ends(code: &str) -> bool {
    code.starts_with("08") || matches!(code, "57P01" | "57P02" | "57P03" | "25P03" | "57P05")
}

/// Classifies an error of a driver.
pub(super) fn classify(error: sqlx::Error) -> SqlError {
    let Some(database) = error.as_database_error() else {
        return match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Tls(_) => SqlError::Lost(error.to_string()),
            _ => SqlError::Failed(error.to_string()),
        };
    };
    let (text, code) = (database.message().to_owned(), database.code().unwrap_or_default());
    // MySQL's error numbers are more specific than the SQLSTATE that several errors share.
    let number = database.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().map(|e| e.number());
    match (number, &*code) {
        _ if database.is_unique_violation() => SqlError::Taken(text),
        (Some(1049), _) | (None, "3D000") => SqlError::NoDatabase(text),
        (Some(1021 | 1114), _) | (None, "13" | "53100") => SqlError::Full(text),
        (Some(1053 | 1077 | 1927 | 4031), _) => SqlError::Lost(text),
        (None, "5" | "261" | "517" | "773" | "55P03") => SqlError::Held(text),
        (None, code) if ends(code) => SqlError::Lost(text),
        _ => SqlError::Failed(format!("{text} ({code})")),
    }
}

/// A connection of a driver.
pub(super) struct Open<C>(pub(super) C);

macro_rules! session {
    (bound $database:ty, $sql:expr, $args:expr) => {{
        let mut query = sqlx::query::<$database>($sql);
        for arg in $args {
            query = match *arg {
                Arg::Number(number) => query.bind(number),
                Arg::Text(text) => query.bind(text.to_owned()),
                Arg::Bytes(bytes) => query.bind(bytes.map(<[u8]>::to_vec)),
            };
        }
        query
    }};
    ($database:ty, $connection:ty) => {
        #[async_trait]
        impl Session for Open<$connection> {
            async fn run(&mut self, sql: &str) -> Result<(), SqlError> {
                let sql = sqlx::AssertSqlSafe(sql.to_owned());
                sqlx::raw_sql(sql).execute(&mut self.0).await.map(drop).map_err(classify)
            }

            async fn execute(
                &mut self,
                sql: &'static str,
                args: &[Arg<'_>],
            ) -> Result<(), SqlError> {
                let query = session!(bound $database, sql, args);
                query.execute(&mut self.0).await.map(drop).map_err(classify)
            }

            async fn number(
                &mut self,
                sql: &'static str,
                args: &[Arg<'_>],
            ) -> Result<Option<i64>, SqlError> {
                let query = session!(bound $database, sql, args);
                let row = query.fetch_optional(&mut self.0).await.map_err(classify)?;
                row.map_or(Ok(None), |row| row.try_get(0)).map_err(classify)
            }

            async fn text(
                &mut self,
                sql: &'static str,
                args: &[Arg<'_>],
            ) -> Result<Option<String>, SqlError> {
                let query = session!(bound $database, sql, args);
                let row = query.fetch_optional(&mut self.0).await.map_err(classify)?;
                row.map_or(Ok(None), |row| row.try_get(0)).map_err(classify)
            }

            async fn pairs(&mut self, sql: &'static str) -> Result<Vec<(i64, i64)>, SqlError> {
                let rows = sqlx::query::<$database>(sql).fetch_all(&mut self.0).await;
                let mut pairs = Vec::new();
                for row in rows.map_err(classify)? {
                    let first = row.try_get(0).map_err(classify)?;
                    pairs.push((first, row.try_get(1).map_err(classify)?));
                }
                Ok(pairs)
            }

            async fn rows(
                &mut self,
                sql: &'static str,
                take: &mut (dyn FnMut(Row) + Send),
            ) -> Result<(), SqlError> {
                let mut rows = sqlx::query::<$database>(sql).fetch(&mut self.0);
                while let Some(row) = rows.try_next().await.map_err(classify)? {
                    let number = |at: usize| row.try_get::<i64, _>(at).map_err(classify);
                    let value: Option<Vec<u8>> = row.try_get(7).map_err(classify)?;
                    take(Row {
                        id: number(0)?,
                        name: row.try_get(1).map_err(classify)?,
                        created: number(2)? != 0,
                        deleted: number(3)? != 0,
                        create_revision: number(4)?,
                        prev_revision: number(5)?,
                        ttl: number(6)?,
                        lease: 0,
                        value: value.map(Into::into),
                    });
                }
                Ok(())
            }

            async fn close(self: Box<Self>) -> Result<(), SqlError> {
                self.0.close().await.map_err(classify)
            }
        }
    };
}

session!(sqlx::Sqlite, sqlx::SqliteConnection);
session!(sqlx::Postgres, sqlx::PgConnection);
session!(sqlx::MySql, sqlx::MySqlConnection);
