//! Several errors in one, for clean-up that must go on after a failure.

use std::fmt;

/// A non-empty or empty list of failures, shown joined by `; `.
#[derive(Debug, Default)]
pub struct ErrorList(Vec<String>);

impl ErrorList {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the error of `result`, if any, and returns its value.
    pub fn keep<T, E: fmt::Display>(&mut self, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.push(error.to_string());
                None
            }
        }
    }

    /// `Ok` when nothing failed.
    ///
    /// # Errors
    /// Returns the list itself when it is not empty.
    pub fn into_result(self) -> Result<(), ErrorList> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for ErrorList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for ErrorList {}
