//! Waits for the next event of the controller.

use std::collections::BTreeSet;

use api::{Gvr, WatchEvent};
use base::clock;
use client::Client;
use client::transport::{Scope, WatchStream};
use tokio::time::Instant;

use crate::addon::VersionedKind;
use crate::applier::establishes;
use crate::watcher::{Changes, FolderWatcher};

/// The end of a wait.
pub(super) enum Wake {
    /// The folder changed.
    Files(Changes),
    /// A kind that a file needs is served.
    Kinds,
    /// The time came.
    Time,
}

/// A watch of CustomResourceDefinitions, only while a file needs one: most clusters have no such
/// file.
#[derive(Default)]
pub(super) struct DefinitionWatch(Option<WatchStream>);

impl DefinitionWatch {
    /// Starts the watch if it is needed, and ends it otherwise. Without a watch the files are
    /// applied again at intervals.
    pub(super) async fn follow(&mut self, client: &Client, is_needed: bool) {
        if !is_needed {
            self.0 = None;
        } else if self.0.is_none() {
            let gvr = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
            match client.transport().watch(&Scope::all(gvr), None).await {
                Ok(stream) => self.0 = Some(stream),
                Err(error) => tracing::debug!(%error, "addons: cannot watch definitions"),
            }
        }
    }

    /// Resolves when a definition of one of the kinds is established.
    async fn established(&mut self, kinds: &BTreeSet<VersionedKind>) {
        while let Some(stream) = &mut self.0 {
            match stream.recv().await {
                Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                    if object.value().is_ok_and(|value| establishes(&value, kinds)) {
                        return;
                    }
                }
                Some(WatchEvent::Deleted(_) | WatchEvent::Bookmark { .. }) => {}
                Some(WatchEvent::Error(_)) | None => self.0 = None,
            }
        }
        std::future::pending().await
    }
}

/// Waits for a change of the folder, for one of the kinds, or until `wake`.
pub(super) async fn next(
    watcher: Option<&mut FolderWatcher>,
    definitions: &mut DefinitionWatch,
    kinds: &BTreeSet<VersionedKind>,
    wake: Option<Instant>,
) -> Wake {
    let files = async {
        match watcher {
            Some(watcher) => watcher.next().await,
            None => std::future::pending().await,
        }
    };
    let time = async {
        match wake {
            Some(at) => clock::sleep(at.saturating_duration_since(clock::now())).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        changes = files => Wake::Files(changes),
        () = definitions.established(kinds) => Wake::Kinds,
        () = time => Wake::Time,
    }
}
