//! The validated configuration of `kube-lite agent`.

use cluster::join::ServerAddress;
use cluster::token::{self, Token};

use crate::command_line::{AgentArgs, Locations, read_token};
use crate::error_catalogue::{BAD_TOKEN, BAD_VALUE, CommandError, SHORT_TOKEN};
use crate::machine::Machine;

/// The configuration of an agent.
#[derive(Debug, Clone)]
pub struct Config {
    /// This machine as a node.
    pub machine: Machine,
    /// The server to join; optional once the agent has joined.
    pub server: Option<ServerAddress>,
    /// The join token; optional once the agent has joined.
    pub token: Option<Token>,
}

impl Config {
    /// Checks the flags.
    ///
    /// # Errors
    /// The first invalid flag, by name.
    pub fn new(args: AgentArgs, locations: &Locations) -> Result<Self, CommandError> {
        let bad =
            |value: &str, why: &str| BAD_VALUE.usage_error(format!("--server={value}: {why}"));
        let server: Option<ServerAddress> = args
            .server
            .as_deref()
            .map(|text| text.parse().map_err(|why: &str| bad(text, why)))
            .transpose()?;
        let token = read_token("token", args.token.as_ref(), args.token_file.as_deref())?
            .map(|text| token::parse(text.reveal()))
            .transpose()
            .map_err(|e| BAD_TOKEN.usage_error(format!("the token: {e}")))?;
        if token.as_ref().is_some_and(|t| t.ca_hash.is_none()) && !args.insecure_join {
            let text = "the token has no CA hash, so the agent would trust any server";
            return Err(SHORT_TOKEN.usage_error(text));
        }
        let mut machine = Machine::new(&args.general, args.node, locations)?;
        machine.is_agent = true;
        Ok(Self { machine, server, token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::{Cli, Command, parse};

    fn config(flags: &[&str]) -> Result<Config, String> {
        let argv = ["kube-lite", "agent", "--config=/dev/null"].iter().chain(flags);
        let Ok(Cli { command: Command::Agent(args) }) =
            parse(argv.map(Into::into).collect(), |_| None)
        else {
            return Err("does not parse".into());
        };
        let locations = Locations { data: "/d".into(), config: "/c".into(), path: String::new() };
        Config::new(*args, &locations)
            .map_err(|r| r.to_string().lines().next().unwrap_or_default().to_owned())
    }

    #[test]
    fn a_token_without_a_hash_needs_insecure_join() {
        let server = "--server=https://a";
        assert!(config(&[server, "--token=a-short-one"]).unwrap_err().starts_with("error[KL0422]"));
        assert!(config(&[server, "--token=a-short-one", "--insecure-join"]).is_ok());
        assert!(
            config(&[server, "--token=K10abc::server:x"]).unwrap_err().starts_with("error[KL0421]")
        );
        assert!(config(&[]).is_ok());
        assert_eq!(
            config(&["--server=a:6443"]).unwrap_err(),
            "error[KL0104]: --server=a:6443: must be https://HOST:PORT, such as https://192.0.2.10:6443"
        );
    }
}
