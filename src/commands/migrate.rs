//! `kube-lite migrate`: takes the data of k3s, an external datastore or etcd over.

use super::{Command, Environment, Output, block_on};
use crate::command_line::MigrateArgs;
use crate::error_catalogue::{MIGRATE, Refusal};
use crate::server::reset::migrate;

impl Command for MigrateArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, Refusal> {
        let data_dir = environment.data_dir(self.data_dir.as_deref());
        block_on(MIGRATE, || migrate::run(&self, &data_dir)).map(Output::from)
    }
}
