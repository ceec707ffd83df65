//! `kube-lite migrate`: copies the data of k3s, an external datastore or etcd into the embedded
//! store.

use super::{Command, Environment, Output, block_on};
use crate::command_line::MigrateArgs;
use crate::error_catalogue::{CommandError, MIGRATE};
use crate::server::reset::migrate;

impl Command for MigrateArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, CommandError> {
        let data_dir = environment.data_dir(self.data_dir.as_deref());
        block_on(MIGRATE, || migrate::run(&self, &data_dir)).map(Output::from)
    }
}
