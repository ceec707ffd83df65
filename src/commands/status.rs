//! `kube-lite status`: queries the server or agent of this machine.

use std::time::Duration;

use super::{Command, Environment, Output, block_on};
use crate::command_line::{StatusArgs, StatusOutput};
use crate::error_catalogue::{CommandError, SERVER_STOPPED, SERVER_UNREACHABLE};
use crate::status::{self, Verdict};

impl Command for StatusArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, CommandError> {
        let data_dir = self.data_dir.unwrap_or_else(|| environment.locations().data);
        let status = block_on(SERVER_STOPPED, || async {
            Ok(match self.wait {
                Some(_) => status::wait_ready(&data_dir, Duration::from_secs(self.timeout)).await,
                None => status::query(&data_dir).await,
            })
        })?;
        let Some(status) = status else {
            let text = format!("no server answers in {}", data_dir.display());
            return Err(CommandError { code: 2, ..SERVER_UNREACHABLE.error(text) });
        };
        let text = match self.output {
            StatusOutput::Text => status::render(&status),
            StatusOutput::Json => serde_json::to_string_pretty(&status).unwrap_or_default() + "\n",
        };
        let is_ok = status.verdict == Verdict::Ok || (self.wait.is_some() && status.ready);
        Ok(Output { text, code: u8::from(!is_ok) })
    }
}
