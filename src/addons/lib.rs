//! The addon controller: applies the manifests in `server/manifests` of the data directory, one
//! `Addon` object per file, as the deploy controller of k3s.
//!
//! [`folder`] lists the files and [`watcher`] reports their changes. [`document`] parses a file,
//! [`object_set`] marks its objects as owned by the Addon in the form of rancher's wrangler, and
//! [`applier`] applies them by server-side apply and deletes those that the file dropped.
//! [`packaged`] holds the manifests of the program.

mod addon;
mod applier;
mod config;
mod controller;
mod document;
mod error;
mod file;
mod folder;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gateway_definitions;
mod limits;
mod migration;
mod object_set;
mod packaged;
mod state;
mod watcher;

use base::Tasks;
use client::Client;

pub use config::{AGENT, Config, USER};

/// Starts the controller: writes the packaged manifests into the folder, then applies all files and
/// follows their changes until shutdown.
pub fn start(config: Config, client: Client, tasks: &Tasks) {
    controller::start(config, client, tasks);
}
