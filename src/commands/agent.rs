//! `kube-lite agent`: runs a node that joins a server.

use super::{Command, Environment, Output, block_on};
use crate::agent::{self, config::Config};
use crate::command_line::AgentArgs;
use crate::error_catalogue::{AGENT_STOPPED, CommandError};

impl Command for AgentArgs {
    fn run(mut self, environment: &Environment<'_>) -> Result<Output, CommandError> {
        environment.prepare(&mut self.general);
        let config = Config::new(self, &environment.locations())?;
        Environment::report(&config.machine.without_effect);
        block_on(AGENT_STOPPED, || agent::run(config))?;
        Ok(Output::default())
    }
}
