//! `kube-lite server`: runs a server, or resets its cluster and exits.

use super::{Command, Environment, Output, block_on};
use crate::command_line::ServerArgs;
use crate::error_catalogue::{CommandError, RESET, SERVER_STOPPED};
use crate::server::{self, config::Config};

impl Command for ServerArgs {
    fn run(mut self, environment: &Environment<'_>) -> Result<Output, CommandError> {
        environment.prepare(&mut self.general);
        let config = Config::new(self, &environment.locations())?;
        Environment::report(&config.machine.without_effect);
        if let Some(request) = &config.reset {
            let request = block_on(RESET, || server::reset::download_snapshot(&config, request))?;
            return server::reset::run(&config, &request).map(Output::from);
        }
        block_on(SERVER_STOPPED, || server::run(config))?;
        Ok(Output::default())
    }
}
