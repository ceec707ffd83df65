//! The health checks of `/livez` and `/readyz`, by name.

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Check {
    /// No alarm says that members differ.
    DataCorruption,
    /// What is applied here can be read.
    SerializableRead,
    /// A quorum agrees that what is read is the newest.
    LinearizableRead,
    /// This member votes.
    NonLearner,
}

impl Check {
    /// etcd's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DataCorruption => "data_corruption",
            Self::SerializableRead => "serializable_read",
            Self::LinearizableRead => "linearizable_read",
            Self::NonLearner => "non_learner",
        }
    }
}

/// A set of checks with a path of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The process does its work.
    Livez,
    /// It takes requests.
    Readyz,
}

impl Kind {
    /// The path without its slash.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }

    /// Its checks.
    pub(crate) fn checks(self) -> &'static [Check] {
        match self {
            Self::Livez => &[Check::SerializableRead],
            Self::Readyz => &[
                Check::DataCorruption,
                Check::SerializableRead,
                Check::LinearizableRead,
                Check::NonLearner,
            ],
        }
    }
}
