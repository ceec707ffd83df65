//! The health checks of `/livez` and `/readyz`, by name.

/// A health check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Check {
    /// The alarm CORRUPT is not raised.
    DataCorruption,
    /// The local state is readable.
    SerializableRead,
    /// A quorum confirms a linearizable read.
    LinearizableRead,
    /// This member is a voter.
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

/// A set of checks with its own path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The process works.
    Livez,
    /// The process accepts requests.
    Readyz,
}

impl Kind {
    /// The path without its leading slash.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }

    /// The checks of the set.
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
