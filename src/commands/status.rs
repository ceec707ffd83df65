//! `kube-lite status`: asks the server or agent of this machine.

use std::time::Duration;

use super::{Command, Environment, Output, block_on};
use crate::command_line::{StatusArgs, StatusOutput};
use crate::error_catalogue::{Refusal, SERVER_STOPPED, SERVER_UNREACHABLE};
use crate::status::{self, Verdict};

impl Command for StatusArgs {
    fn run(self, environment: &Environment<'_>) -> Result<Output, Refusal> {
        let data_dir = self.data_dir.unwrap_or_else(|| environment.locations().data);
        let answer = block_on(SERVER_STOPPED, || async {
            Ok(match self.wait {
                Some(_) => status::wait_ready(&data_dir, Duration::from_secs(self.timeout)).await,
                None => status::ask(&data_dir).await,
            })
        })?;
        let Some(answer) = answer else {
            let text = format!("no server answers in {}", data_dir.display());
            return Err(Refusal { code: 2, ..SERVER_UNREACHABLE.refuse(text) });
        };
        let text = match self.output {
            StatusOutput::Text => status::render(&answer),
            StatusOutput::Json => serde_json::to_string_pretty(&answer).unwrap_or_default() + "\n",
        };
        let is_well = answer.verdict == Verdict::Ok || (self.wait.is_some() && answer.ready);
        Ok(Output { text, code: u8::from(!is_well) })
    }
}
