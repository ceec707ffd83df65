//! A token given by a flag, or by a flag that names its file.

use std::path::Path;

use cluster::token::Secret;

use crate::error_catalogue::{BAD_VALUE, CommandError};

/// The token of `--<flag>` or `--<flag>-file`.
///
/// # Errors
/// Both were given, or the file cannot be read.
pub fn read_token(
    flag: &str,
    token: Option<&Secret>,
    file: Option<&Path>,
) -> Result<Option<Secret>, CommandError> {
    match (token, file) {
        (Some(_), Some(file)) => Err(BAD_VALUE.usage_error(format!(
            "--{flag}-file={}: contradicts --{flag}; use only one of them",
            file.display()
        ))),
        (Some(token), None) => Ok(Some(token.clone())),
        (None, Some(file)) => {
            let text = base::fs::read_to_string(file)
                .map_err(|e| BAD_VALUE.usage_error(format!("--{flag}-file: {e}")))
                .map_err(|error| error.with_fix(missing_file(flag)))?;
            Ok(Some(text.trim().parse().unwrap_or_else(|never| match never {})))
        }
        (None, None) => Ok(None),
    }
}

/// The fix for a token file that cannot be read.
fn missing_file(flag: &str) -> String {
    let variable = flag.replace('-', "_").to_uppercase();
    format!("Create the file, or correct --{flag}-file or K3S_{variable}_FILE.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_and_token_file_are_mutually_exclusive() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t");
        std::fs::write(&file, "abc\n").unwrap();
        let typed: Secret = "x".parse().unwrap();
        assert_eq!(read_token("token", None, Some(&file)).unwrap().unwrap().reveal(), "abc");
        assert_eq!(read_token("token", Some(&typed), None).unwrap().unwrap().reveal(), "x");
        assert!(read_token("token", None, None).unwrap().is_none());
        let both = read_token("token", Some(&typed), Some(&file)).unwrap_err().to_string();
        assert!(both.contains("contradicts --token"), "{both}");
        let absent =
            read_token("token", None, Some(&dir.path().join("no"))).unwrap_err().to_string();
        assert!(absent.contains("--token-file: cannot read"), "{absent}");
    }
}
