//! One of the two servers: its process, its connection, its answers.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use base::{Kind, Tasks};
use proto::etcdserverpb as pb;
use proto::etcdserverpb::kv_client::KvClient;
use proto::etcdserverpb::lease_client::LeaseClient;
use proto::etcdserverpb::maintenance_client::MaintenanceClient;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::answers::{Answer, Headed, comparable};
use crate::questions::Question;

/// The log message of both servers when they are ready.
const READY: &str = "ready to serve client requests";

/// How a process is stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Killed,
    Asked,
}

/// A program and its arguments.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Requests are sequential: more threads would only wake each other.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) address: SocketAddr,
}

impl Program {
    /// An etcd on two separate ports, with fast elections and without fsync.
    pub(crate) fn etcd(program: PathBuf, directory: &str) -> Result<Self, Box<dyn Error>> {
        let (address, peers) = (free_address()?, free_address()?);
        let arguments = [
            format!("--data-dir={directory}"),
            format!("--listen-client-urls=http://{address}"),
            format!("--advertise-client-urls=http://{address}"),
            format!("--listen-peer-urls=http://{peers}"),
            format!("--initial-advertise-peer-urls=http://{peers}"),
            format!("--initial-cluster=default=http://{peers}"),
            "--heartbeat-interval=10".to_owned(),
            "--election-timeout=100".to_owned(),
            "--unsafe-no-fsync".to_owned(),
        ];
        let environment = &[("GOMAXPROCS", "1"), ("GOGC", "800")];
        Ok(Self { program, arguments: arguments.into(), environment, address })
    }

    /// The example `serve`.
    pub(crate) fn serve(program: PathBuf, directory: String) -> Result<Self, Box<dyn Error>> {
        let address = free_address()?;
        let environment = &[("TOKIO_WORKER_THREADS", "1")];
        let arguments = vec![address.to_string(), directory];
        Ok(Self { program, arguments, environment, address })
    }

    /// Starts the program and waits until it serves.
    async fn start(&self, tasks: &Tasks) -> Result<Child, Box<dyn Error>> {
        let name = self.program.display();
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let (ready, mut is_ready) = tokio::sync::watch::channel(false);
        if let Some(out) = child.stdout.take() {
            tasks.spawn(Kind::Request, "output", follow(out, ready.clone()));
        }
        if let Some(out) = child.stderr.take() {
            tasks.spawn(Kind::Request, "log", follow(out, ready));
        }
        tokio::select! {
            ready = is_ready.wait_for(|ready| *ready) => match ready {
                Ok(_) => {}
                Err(_) => return Err(format!("{name} said nothing of being ready: {:?}", child.wait().await?).into()),
            },
            status = child.wait() => return Err(format!("{name} ended at its start: {:?}", status?).into()),
        }
        Ok(child)
    }
}

fn free_address() -> Result<SocketAddr, Box<dyn Error>> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Reads the output of a process until it ends; prints lines that indicate a crash.
async fn follow(
    out: impl AsyncRead + Unpin,
    ready: tokio::sync::watch::Sender<bool>,
) -> Result<(), std::io::Error> {
    let mut lines = BufReader::new(out).lines();
    let mut dying = false;
    while let Some(line) = lines.next_line().await? {
        if line.contains(READY) {
            ready.send_replace(true);
        }
        dying |= line.starts_with("panic") || line.contains("panicked at");
        if dying {
            use std::io::Write;
            writeln!(std::io::stderr(), "{line}")?;
        }
    }
    Ok(())
}

/// One of the two servers.
pub(crate) struct Side {
    program: Program,
    tasks: Tasks,
    child: Child,
    pub(crate) channel: Channel,
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
}

impl Side {
    /// Starts a program and connects to it.
    pub(crate) async fn start(program: Program, tasks: &Tasks) -> Result<Self, Box<dyn Error>> {
        let child = program.start(tasks).await?;
        let channel = connect(program.address).await?;
        Ok(Self {
            kv: KvClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            channel,
            program,
            child,
            tasks: tasks.clone(),
        })
    }

    /// Stops the process and restarts it on the same directory.
    pub(crate) async fn restart(&mut self, how: End) -> Result<(), Box<dyn Error>> {
        self.stop(how).await?;
        self.child = self.program.start(&self.tasks).await?;
        self.channel = connect(self.program.address).await?;
        self.kv = KvClient::new(self.channel.clone());
        self.lease = LeaseClient::new(self.channel.clone());
        self.maintenance = MaintenanceClient::new(self.channel.clone());
        Ok(())
    }

    /// Stops the process.
    pub(crate) async fn stop(&mut self, how: End) -> Result<(), Box<dyn Error>> {
        match (how, self.child.id()) {
            (End::Asked, Some(id)) => {
                Command::new("kill").arg(id.to_string()).status().await?;
            }
            _ => self.child.start_kill()?,
        }
        self.child.wait().await?;
        Ok(())
    }

    /// CPU seconds of the process so far, with the kernel's resolution of 1/100 s.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat =
            self.child.id().and_then(|id| std::fs::read_to_string(format!("/proc/{id}/stat")).ok());
        let ticks = |stat: &str| -> Option<u64> {
            let (_, fields) = stat.rsplit_once(") ")?;
            let mut fields = fields.split(' ').skip(11).map(str::parse::<u64>);
            Some(fields.next()?.ok()? + fields.next()?.ok()?)
        };
        stat.as_deref().and_then(ticks).unwrap_or(0) as f64 / 100.0
    }

    pub(crate) async fn ask(&self, question: &Question) -> Answer {
        let (mut kv, mut lease, mut maintenance) =
            (self.kv.clone(), self.lease.clone(), self.maintenance.clone());
        match question.clone() {
            Question::Range(request) => comparable(kv.range(request).await, Answer::Range),
            Question::Stream(request) => comparable(merged(&mut kv, request).await, Answer::Range),
            Question::Put(request) => comparable(kv.put(request).await, Answer::Put),
            Question::Delete(request) => comparable(kv.delete_range(request).await, Answer::Delete),
            Question::Txn(request) => comparable(kv.txn(request).await, Answer::Txn),
            Question::Compact(request) => comparable(kv.compact(request).await, Answer::Compact),
            Question::Grant(request) => comparable(lease.lease_grant(request).await, Answer::Grant),
            Question::Revoke(request) => {
                comparable(lease.lease_revoke(request).await, Answer::Revoke)
            }
            Question::Hash(request) => comparable(maintenance.hash_kv(request).await, Answer::Hash),
            Question::Alarm(request) => comparable(maintenance.alarm(request).await, Answer::Alarm),
            Question::Defragment => comparable(
                maintenance.defragment(pb::DefragmentRequest {}).await,
                Answer::Defragment,
            ),
            Question::KeepAlive(id) => comparable(renewed(&mut lease, id).await, Answer::KeepAlive),
            Question::Live(request) => {
                // The remaining seconds depend on the time of the request; etcd's keys have the
                // order of a Go map.
                let mut answer = lease.lease_time_to_live(request).await;
                if let Ok(answer) = answer.as_mut().map(Response::get_mut) {
                    answer.ttl = answer.ttl.min(0);
                    answer.keys.sort();
                }
                comparable(answer, Answer::Live)
            }
            Question::Leases => {
                let mut answer = lease.lease_leases(pb::LeaseLeasesRequest {}).await;
                if let Ok(answer) = answer.as_mut().map(Response::get_mut) {
                    answer.leases.sort_by_key(|lease| lease.id);
                }
                comparable(answer, Answer::Leases)
            }
        }
    }
}

async fn connect(address: SocketAddr) -> Result<Channel, Box<dyn Error>> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?.connect().await?)
}

/// Merges a streamed read into one answer.
async fn merged(
    kv: &mut KvClient<Channel>,
    request: pb::RangeRequest,
) -> Result<Response<pb::RangeResponse>, Status> {
    let mut pieces = kv.range_stream(request).await?.into_inner();
    let mut whole = pb::RangeResponse::default();
    while let Some(piece) = pieces.message().await? {
        let piece = piece.range_response.unwrap_or_default();
        whole.kvs.extend(piece.kvs);
        whole.header = piece.header.or(whole.header);
        whole.more |= piece.more;
        whole.count = whole.count.max(piece.count);
    }
    Ok(Response::new(whole))
}

async fn renewed(
    lease: &mut LeaseClient<Channel>,
    id: i64,
) -> Result<Response<pb::LeaseKeepAliveResponse>, Status> {
    let once = futures::stream::iter([pb::LeaseKeepAliveRequest { id }]);
    let mut answers = lease.lease_keep_alive(once).await?.into_inner();
    let mut answer = answers.message().await?.unwrap_or_default();
    // The value is that of before the renewal.
    answer.forget_header();
    Ok(Response::new(answer))
}
