//! Prints the scheduler's decisions for `tests/scheduler/run`: reads a cluster and its pending pods
//! from standard input, one object a line after a line with the configuration, and prints what is
//! decided about each pending pod, one decision a line. Extenders of the configuration are called.

use std::io::{BufRead as _, Write as _};

use base::{Shutdown, Tasks};
use scheduler::config::Configuration;
use serde_json::Value;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut lines = std::io::stdin().lock().lines();
    let head: Value = serde_json::from_str(&lines.next().ok_or("standard input is empty")??)?;
    let configuration = match &head["config"] {
        Value::Null => Configuration::default(),
        configured => scheduler::config::parse(configured.to_string().as_bytes())?,
    };
    let objects: Vec<Value> = lines
        .map(|line| Ok::<Value, std::io::Error>(serde_json::from_str(&line?)?))
        .collect::<Result<_, _>>()?;
    let is_pending =
        |object: &Value| object["kind"] == "Pod" && object["spec"]["nodeName"].is_null();
    let (pending, objects): (Vec<Value>, Vec<Value>) = objects.into_iter().partition(is_pending);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let _entered = runtime.enter();
    let tasks = Tasks::new(Shutdown::new());
    let mut cluster =
        scheduler::offline::Cluster::new(&configuration, objects.into_iter(), Some(&tasks))?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for pod in pending {
        for decision in cluster.schedule(pod)? {
            writeln!(out, "{decision}")?;
        }
    }
    Ok(out.flush()?)
}
