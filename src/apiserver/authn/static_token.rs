//! Static tokens: from the administrator's token file, read at start.

use async_trait::async_trait;
use ring::digest::{SHA256, digest};

use super::{TokenAuthenticator, TokenError, TokenIdentity};
use crate::request::user::User;

/// Users by digest of the token, so that comparisons take constant time and tokens are not kept in
/// memory.
pub struct StaticTokens(Vec<([u8; 32], User)>);

fn fingerprint(token: &str) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    out
}

/// Compares in constant time.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0_u8, |difference, (x, y)| difference | (x ^ y)) == 0
}

impl StaticTokens {
    /// Creates the authenticator; empty tokens are skipped.
    pub fn new(tokens: impl IntoIterator<Item = (String, User)>) -> Self {
        Self(
            tokens
                .into_iter()
                .filter(|(token, _)| !token.is_empty())
                .map(|(token, user)| (fingerprint(&token), user))
                .collect(),
        )
    }
}

/// A line of a token file is invalid; lines count from 1.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TokenFileError {
    line: usize,
    problem: LineProblem,
}

#[derive(Debug, thiserror::Error)]
enum LineProblem {
    #[error("a quote is not closed")]
    OpenQuote,
    #[error("at least three columns are needed: token, user name, user uid")]
    MissingColumns,
    #[error("the token is empty")]
    EmptyToken,
}

/// Parses a token file (upstream's `--token-auth-file`): CSV with token, user name, user UID and,
/// quoted, the groups.
///
/// # Errors
/// The first invalid line.
pub fn parse(text: &str) -> Result<Vec<(String, User)>, TokenFileError> {
    let mut users = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let invalid = |problem| TokenFileError { line: index + 1, problem };
        let columns = columns(line).ok_or_else(|| invalid(LineProblem::OpenQuote))?;
        let [token, name, uid, rest @ ..] = columns.as_slice() else {
            return Err(invalid(LineProblem::MissingColumns));
        };
        if token.is_empty() {
            return Err(invalid(LineProblem::EmptyToken));
        }
        let groups = rest.first().map(String::as_str).unwrap_or_default();
        let groups: Vec<&str> =
            groups.split(',').map(str::trim).filter(|group| !group.is_empty()).collect();
        let user = User { uid: uid.clone(), ..User::authenticated(name, &groups) };
        users.push((token.clone(), user));
    }
    Ok(users)
}

/// The columns of a line; a quoted column can contain commas.
fn columns(line: &str) -> Option<Vec<String>> {
    let (mut columns, mut quoted) = (vec![String::new()], false);
    for c in line.trim().chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => columns.push(String::new()),
            c => {
                if let Some(last) = columns.last_mut() {
                    last.push(c);
                }
            }
        }
    }
    (!quoted).then(|| columns.into_iter().map(|column| column.trim().to_owned()).collect())
}

#[async_trait]
impl TokenAuthenticator for StaticTokens {
    async fn authenticate_token(
        &self,
        token: &str,
        _: &[String],
    ) -> Result<Option<TokenIdentity>, TokenError> {
        let given = fingerprint(token);
        let found = self.0.iter().rfind(|(known, _)| same(known, &given));
        Ok(found.map(|(_, user)| TokenIdentity { user: user.clone(), audiences: Vec::new() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_files_name_users_with_uid_and_groups() {
        let users = parse("t1,admin,1,\"system:masters,b\"\n\nt2,jane,2\n").unwrap();
        let [(token, admin), (_, jane)] = users.as_slice() else { panic!("{users:?}") };
        assert_eq!((token.as_str(), admin.name.as_str(), admin.uid.as_str()), ("t1", "admin", "1"));
        assert_eq!(admin.groups, ["system:masters", "b", "system:authenticated"]);
        assert_eq!(jane.groups, ["system:authenticated"]);
        assert_eq!(
            parse("t,u").unwrap_err().to_string(),
            "line 1: at least three columns are needed: token, user name, user uid"
        );
        assert_eq!(parse("a,b,c\n,x,y").unwrap_err().to_string(), "line 2: the token is empty");
        assert_eq!(parse("a,b,c,\"g").unwrap_err().to_string(), "line 1: a quote is not closed");
    }
}
