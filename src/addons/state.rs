//! What the controller has done with each file, and what it does next.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base::Backoff;
use tokio::time::Instant;

use crate::addon::VersionedKind;
use crate::applier::ObjectIdentity;
use crate::file::Fingerprint;
use crate::folder::{Listing, ManifestFile, addon_name};

/// A file that no writer closed is read once it has not changed for this time: its writer may not
/// have finished. A file that is missing is gone after this time: its writer may replace it.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);
/// The same for a file that was applied before, whose missing part would delete objects: `helm
/// template >app.yaml` empties it seconds before it writes.
const SETTLE_APPLIED: Duration = Duration::from_secs(30);
/// Delays before a failed file is applied again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// A failure of a file.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The message of its event.
    pub(crate) message: String,
    /// When it is applied again; `None` if only a change helps.
    pub(crate) retry_at: Option<Instant>,
    /// Whether a change of another file can help.
    pub(crate) depends_on_others: bool,
    /// Kinds that are not served yet.
    pub(crate) missing: BTreeSet<VersionedKind>,
    backoff: Backoff,
}

/// What is known about a file.
#[derive(Debug, Default)]
pub(crate) struct FileState {
    /// Its state on disk when it was processed last.
    pub(crate) fingerprint: Option<Fingerprint>,
    /// The objects that it contained then.
    pub(crate) objects: BTreeSet<ObjectIdentity>,
    /// Whether it was applied since the start: the first time repairs its objects.
    pub(crate) is_applied: bool,
    /// Why it is not applied.
    pub(crate) failure: Option<Failure>,
    /// Since when it is missing.
    pub(crate) missing_since: Option<Instant>,
}

impl FileState {
    /// Records a failure at `now`. Without `is_retried` only a change ends it.
    pub(crate) fn fail(&mut self, message: String, is_retried: bool, now: Instant) -> &mut Failure {
        let previous = self.failure.take();
        let mut backoff = previous.map_or_else(|| Backoff::new(RETRY.0, RETRY.1), |f| f.backoff);
        let retry_at = is_retried.then(|| now + backoff.next_delay());
        self.failure.insert(Failure {
            message,
            retry_at,
            depends_on_others: false,
            missing: BTreeSet::new(),
            backoff,
        })
    }
}

/// The states of all files, by path.
pub(crate) type States = BTreeMap<PathBuf, FileState>;

/// The next work.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Files to apply, or to delete if they are disabled.
    pub(crate) due: Vec<PathBuf>,
    /// Files that do not exist any more.
    pub(crate) gone: Vec<PathBuf>,
    /// Files that are missing since now.
    pub(crate) missing: Vec<PathBuf>,
    /// When to list the folder again.
    pub(crate) wake: Option<Instant>,
}

/// Decides which files are due. `complete` are the names of files whose writers have finished.
pub(crate) fn plan(
    listing: &Listing,
    states: &States,
    complete: &BTreeSet<OsString>,
    now: (Instant, SystemTime),
) -> Plan {
    let mut plan = Plan::default();
    let mut wakes = Vec::new();
    for (path, file) in &listing.files {
        match due_at(path, file, states.get(path), complete, now) {
            Some(at) if at <= now.0 => plan.due.push(path.clone()),
            Some(at) => wakes.push(at),
            None => {}
        }
    }
    for (path, state) in states.iter().filter(|(path, _)| listing.is_removed(path)) {
        match state.missing_since.map(|since| since + SETTLE) {
            Some(at) if at <= now.0 => plan.gone.push(path.clone()),
            Some(at) => wakes.push(at),
            None => {
                plan.missing.push(path.clone());
                wakes.push(now.0 + SETTLE);
            }
        }
    }
    plan.wake = wakes.into_iter().min();
    plan
}

fn due_at(
    path: &Path,
    file: &ManifestFile,
    state: Option<&FileState>,
    complete: &BTreeSet<OsString>,
    (now, time): (Instant, SystemTime),
) -> Option<Instant> {
    if state.and_then(|state| state.fingerprint) == Some(file.fingerprint) {
        return state?.failure.as_ref()?.retry_at;
    }
    let is_complete = path.file_name().is_some_and(|name| complete.contains(name));
    let age = file.fingerprint.age(time);
    let settle = if state.is_some_and(|s| s.is_applied) { SETTLE_APPLIED } else { SETTLE };
    let is_settled = is_complete || file.is_disabled || age >= settle;
    Some(if is_settled { now } else { now + settle.saturating_sub(age) })
}

/// The file that has the Addon name of `path` and precedes it, which keeps the name.
pub(crate) fn same_name<'a>(listing: &'a Listing, path: &Path) -> Option<&'a ManifestFile> {
    let name = addon_name(path);
    let mut before = listing.files.iter().take_while(|(other, _)| other.as_path() < path);
    before.find(|(other, file)| addon_name(other) == name && !file.is_disabled).map(|(_, f)| f)
}

/// The other file that has an object, which keeps it.
pub(crate) fn owner_of<'a>(
    states: &'a States,
    path: &Path,
    object: &ObjectIdentity,
) -> Option<&'a Path> {
    let mut others = states.iter().filter(|(other, _)| other.as_path() != path);
    others.find(|(_, state)| state.objects.contains(object)).map(|(other, _)| other.as_path())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files {
        listing: Listing,
        states: States,
        written: SystemTime,
    }

    /// A listing of these files, written just now.
    fn files(names: &[&str]) -> Files {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let mut listing = Listing::default();
        for name in names {
            let manifest = ManifestFile {
                relative: name.into(),
                fingerprint: Fingerprint::of(&metadata),
                is_linked: false,
                is_disabled: false,
            };
            listing.files.insert(name.into(), manifest);
        }
        Files { listing, states: States::new(), written: metadata.modified().unwrap() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_due_once_it_is_complete_or_settled() {
        let mut all = files(&["a.yaml"]);
        let (now, just) = (Instant::now(), all.written + Duration::from_millis(400));
        let none = BTreeSet::new();
        let planned = plan(&all.listing, &all.states, &none, (now, just));
        assert_eq!(planned.due, [""; 0].map(PathBuf::from));
        assert_eq!(planned.wake, Some(now + Duration::from_millis(600)));
        let complete = BTreeSet::from([OsString::from("a.yaml")]);
        assert_eq!(plan(&all.listing, &all.states, &complete, (now, just)).due.len(), 1);
        let later = all.written + SETTLE;
        assert_eq!(plan(&all.listing, &all.states, &none, (now, later)).due.len(), 1);
        let fingerprint = all.listing.files.values().next().map(|f| f.fingerprint);
        let state = FileState { fingerprint, is_applied: true, ..FileState::default() };
        all.states.insert("a.yaml".into(), state);
        assert_eq!(plan(&all.listing, &all.states, &complete, (now, later)), Plan::default());
        all.states.get_mut(Path::new("a.yaml")).unwrap().fingerprint = None;
        let planned = plan(&all.listing, &all.states, &none, (now, later));
        assert_eq!((planned.due.len(), planned.wake), (0, Some(now + SETTLE_APPLIED - SETTLE)));
        assert_eq!(plan(&all.listing, &all.states, &complete, (now, later)).due.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_file_is_gone_if_it_does_not_return() {
        let mut all = files(&["a.yaml"]);
        let (now, none) = (Instant::now(), BTreeSet::new());
        all.states.insert("a.yaml".into(), FileState::default());
        all.listing.files.clear();
        let planned = plan(&all.listing, &all.states, &none, (now, all.written));
        assert_eq!((planned.missing.len(), planned.gone.len()), (1, 0));
        assert_eq!(planned.wake, Some(now + SETTLE));
        all.states.get_mut(Path::new("a.yaml")).unwrap().missing_since = Some(now);
        let planned = plan(&all.listing, &all.states, &none, (now + SETTLE, all.written));
        assert_eq!((planned.missing.len(), planned.gone.len()), (0, 1));
        // A folder that cannot be read may still have it.
        let source = std::io::Error::other("x");
        all.listing.errors.push(crate::error::FolderError::Io { path: "a.yaml".into(), source });
        let planned = plan(&all.listing, &all.states, &none, (now + SETTLE, all.written));
        assert_eq!(planned, Plan::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_file_is_due_again_after_growing_delays() {
        let mut all = files(&["a.yaml"]);
        let (now, time, none) = (Instant::now(), all.written, BTreeSet::new());
        let fingerprint = all.listing.files.values().next().map(|f| f.fingerprint);
        let mut state = FileState { fingerprint, ..FileState::default() };
        let first = state.fail("x".into(), true, now).retry_at.unwrap();
        let second = state.fail("x".into(), true, now).retry_at.unwrap();
        assert!(first > now && second > first && second <= now + RETRY.1);
        all.states.insert("a.yaml".into(), state);
        assert_eq!(plan(&all.listing, &all.states, &none, (now, time)).wake, Some(second));
        assert_eq!(plan(&all.listing, &all.states, &none, (second, time)).due.len(), 1);
        all.states.get_mut(Path::new("a.yaml")).unwrap().fail("x".into(), false, now);
        assert_eq!(plan(&all.listing, &all.states, &none, (second, time)), Plan::default());
    }

    #[test]
    fn the_first_file_keeps_a_name_and_an_object() {
        let mut all = files(&["a/x.yaml", "b/x.yml", "y.yaml"]);
        let same = |listing: &Listing, path: &str| {
            same_name(listing, Path::new(path)).map(|f| f.relative.display().to_string())
        };
        assert_eq!(same(&all.listing, "a/x.yaml"), None);
        assert_eq!(same(&all.listing, "b/x.yml").as_deref(), Some("a/x.yaml"));
        all.listing.files.get_mut(Path::new("a/x.yaml")).unwrap().is_disabled = true;
        assert_eq!(same(&all.listing, "b/x.yml"), None);
        let object = ObjectIdentity {
            group: String::new(),
            kind: "Pod".into(),
            namespace: "a".into(),
            name: "b".into(),
        };
        let state = FileState { objects: BTreeSet::from([object.clone()]), ..FileState::default() };
        all.states.insert("y.yaml".into(), state);
        assert_eq!(owner_of(&all.states, Path::new("y.yaml"), &object), None);
        let other = owner_of(&all.states, Path::new("a/x.yaml"), &object);
        assert_eq!(other, Some(Path::new("y.yaml")));
    }
}
