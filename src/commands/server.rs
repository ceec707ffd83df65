//! `kube-lite server`: runs a server, or resets its cluster and ends.

use super::{Command, Environment, Output, block_on};
use crate::command_line::ServerArgs;
use crate::error_catalogue::{RESET, Refusal, SERVER_STOPPED};
use crate::server::{self, config::Config};

impl Command for ServerArgs {
    fn run(mut self, environment: &Environment<'_>) -> Result<Output, Refusal> {
        environment.prepare(&mut self.general);
        let config = Config::new(self, &environment.locations())?;
        if let Some(request) = &config.reset {
            let request = block_on(RESET, || server::reset::fetched(&config, request))?;
            return server::reset::run(&config, &request).map(Output::from);
        }
        block_on(SERVER_STOPPED, || server::run(config))?;
        Ok(Output::default())
    }
}
