//! A user's programs with `kube` (Rust): each argument is one flow, which fails with a sentence.
// usage: kube-client FLOW, with KUBECONFIG

mod flows;
mod runtime;

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, PostParams};
use kube::{Client, Error};

/// How long any awaited event may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What went otherwise than it does with upstream.
type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Fails with a sentence unless both are equal.
fn want<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Outcome {
    if got == expected {
        Ok(())
    } else {
        Err(format!("{what}: {got:?} instead of {expected:?}").into())
    }
}

/// Fails unless the server refused with this code and reason; gives the status.
fn refused<T>(
    what: &str,
    answer: Result<T, Error>,
    code: u16,
    reason: &str,
) -> Result<Box<kube::core::Status>, Box<dyn std::error::Error>> {
    match answer {
        Ok(_) => Err(format!("{what} was not refused").into()),
        Err(Error::Api(status)) if status.code == code && status.reason == reason => Ok(status),
        Err(error) => Err(format!("{what} gave {error} instead of {code} {reason}").into()),
    }
}

async fn run(flow: &str) -> Outcome {
    let client = Client::try_default().await?;
    let name = format!("rust-{flow}");
    let namespace: Namespace =
        serde_json::from_value(serde_json::json!({"metadata": {"name": name}}))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    match flow {
        "objects" => flows::objects(client, &name).await,
        "apply" => flows::apply(client, &name).await,
        "subresources" => flows::subresources(client, &name).await,
        "discovery" => flows::discovery(client, &name).await,
        "watcher" => runtime::watcher(client, &name).await,
        "reflector" => runtime::reflector(client, &name).await,
        "controller" => runtime::controller(client, &name).await,
        other => Err(format!("no flow is called {other}").into()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    let flow = std::env::args().nth(1).unwrap_or_default();
    match tokio::time::timeout(3 * PATIENCE, run(&flow)).await {
        Ok(Ok(())) => std::process::ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("FAIL {error}");
            std::process::ExitCode::FAILURE
        }
        Err(_) => {
            eprintln!("FAIL the flow {flow} did not end within three minutes");
            std::process::ExitCode::FAILURE
        }
    }
}
