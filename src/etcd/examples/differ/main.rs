//! Sends the same random requests to a real etcd and to the example `serve`, and prints differences
//! of their answers. Watches are compared event by event. Occasionally both processes are killed or
//! stopped and restarted on their directories, and leases expire.
//!
//! usage: differ ETCD SERVE DIRECTORY OPERATIONS [SEED]   (the directory must be empty)

mod answers;
mod questions;
mod side;
mod stream;
mod watches;

use std::error::Error;
use std::io::Write;

use base::{Shutdown, Tasks};
use futures::future::join_all;
use proto::etcdserverpb as pb;
use tokio::signal::unix::{SignalKind, signal};

use crate::answers::Answer;
use crate::questions::{Question, Random, ServerState, no_alarm, question};
use crate::side::{End, Program, Side};
use crate::watches::Watches;

/// Maximum number of printed differences; further ones are only counted.
const PRINTED: usize = 20;

/// Number of concurrent reads.
const READS: usize = 8;

/// Number of compactions whose hashes both sides keep.
const SUMS: usize = 10;

/// Average number of operations between two such events; a tenth of it with every tenth seed.
const SYNC: u64 = 60;
const WATCHES: u64 = 1500;
const RESTART: u64 = 5000;
const EXPIRY: u64 = 50_000;

/// Time to live of a lease that expires, in contrast to the others.
const LEASE: i64 = 9;

/// Both sides and their common state.
struct KeyValueRef {
    sides: [Side; 2],
    watches: Watches,
    random: Random,
    known: ServerState,
    seed: u64,
    asked: usize,
    restarts: usize,
    expired: usize,
    differences: usize,
    /// Compactions since the last start; before the second one etcd may not have finished that from
    /// before the start.
    compactions: usize,
    /// CPU seconds of processes that have ended.
    cpu: [f64; 2],
}

impl KeyValueRef {
    async fn start(
        etcd: Program,
        serve: Program,
        tasks: &Tasks,
        seed: u64,
    ) -> Result<Self, Box<dyn Error>> {
        let (one, other) = tokio::try_join!(Side::start(etcd, tasks), Side::start(serve, tasks))?;
        let mut differences = Vec::new();
        let watches =
            Watches::open([one.channel.clone(), other.channel.clone()], &mut differences).await?;
        let mut pair = Self {
            sides: [one, other],
            watches,
            random: Random::new(seed),
            known: ServerState { newest: 1, ..ServerState::default() },
            seed,
            asked: 0,
            restarts: 0,
            expired: 0,
            differences: 0,
            compactions: 2,
            cpu: [0.0; 2],
        };
        pair.report(differences)?;
        Ok(pair)
    }

    fn report(&mut self, differences: Vec<String>) -> Result<(), std::io::Error> {
        for text in differences {
            self.differences += 1;
            if self.differences <= PRINTED {
                let Self { asked, seed, restarts, known, .. } = self;
                writeln!(
                    std::io::stdout(),
                    "operation {asked} of seed {seed}, after {restarts} restarts, {known:?}: {text}"
                )?;
            }
        }
        Ok(())
    }

    /// Sends a request to both sides; returns the answer of the first.
    async fn ask(&mut self, question: Question) -> Result<Answer, Box<dyn Error>> {
        let mut answers = self.ask_all(vec![question]).await?;
        answers.pop().ok_or_else(|| "nothing was answered".into())
    }

    async fn ask_all(&mut self, questions: Vec<Question>) -> Result<Vec<Answer>, Box<dyn Error>> {
        let [one, other] = &self.sides;
        let (a, b) = tokio::join!(
            join_all(questions.iter().map(|question| one.ask(question))),
            join_all(questions.iter().map(|question| other.ask(question)))
        );
        for ((question, a), b) in questions.iter().zip(&a).zip(&b) {
            if a != b {
                self.report(vec![format!("{question:?}\n  one:   {a:?}\n  other: {b:?}")])?;
            }
            self.asked += 1;
            let newest = self.known.newest;
            self.known.newest = a.revision().unwrap_or(newest).max(newest);
        }
        Ok(a)
    }

    async fn sync(&mut self) -> Result<(), Box<dyn Error>> {
        let mut differences = Vec::new();
        let synced = self.watches.sync(&self.known, &mut differences).await;
        self.report(differences)?;
        synced
    }

    async fn compact(&mut self, request: pb::CompactionRequest) -> Result<(), Box<dyn Error>> {
        // The previous value of an event is available only until it is compacted.
        self.sync().await?;
        let revision = request.revision;
        if self.watches.has_anew(revision) {
            return Ok(());
        }
        if self.ask(Question::Compact(request)).await?.is_done() {
            self.known.compacted = revision;
            self.watches.forget(revision);
            self.compactions += 1;
            if self.compactions > 1 {
                self.known.sums.push(revision);
            }
            let behind = self.known.sums.len().saturating_sub(SUMS);
            self.known.sums.drain(..behind);
        }
        Ok(())
    }

    async fn restart(&mut self) -> Result<(), Box<dyn Error>> {
        if self.random.one_in(2) {
            self.sync().await?;
        }
        let how = if self.random.one_in(3) { End::Asked } else { End::Killed };
        for (side, cpu) in self.sides.iter().zip(&mut self.cpu) {
            *cpu += side.cpu_seconds();
        }
        let [one, other] = &mut self.sides;
        tokio::try_join!(one.restart(how), other.restart(how))?;
        (self.compactions, self.restarts) = (0, self.restarts + 1);
        self.known.sums.clear();
        let mut differences = Vec::new();
        let channels = [one.channel.clone(), other.channel.clone()];
        self.watches.resume(channels, &mut differences).await?;
        self.report(std::mem::take(&mut differences))?;
        self.write().await?;
        let resumed = self.watches.resumed(&self.known, &mut differences).await;
        self.report(differences)?;
        resumed
    }

    /// A change that is never refused.
    async fn write(&mut self) -> Result<(), Box<dyn Error>> {
        for member in [1, 2] {
            self.ask(Question::Alarm(no_alarm(member))).await?;
        }
        let (key, value) = (self.random.key(), self.asked.to_string());
        let key = if key.is_empty() { "k0".into() } else { key };
        self.ask(Question::Put(pb::PutRequest { key, value: value.into(), ..Default::default() }))
            .await?;
        Ok(())
    }

    /// Lets a lease with keys expire, sometimes after a restart.
    async fn expire(&mut self) -> Result<(), Box<dyn Error>> {
        self.write().await?;
        self.sync().await?;
        self.ask(Question::Grant(pb::LeaseGrantRequest { ttl: 2, id: LEASE })).await?;
        let key = self.random.key();
        for key in ["k3".into(), if key.is_empty() { "k6".into() } else { key }] {
            let put = pb::PutRequest { key, lease: LEASE, ..Default::default() };
            self.ask(Question::Put(put)).await?;
        }
        self.sync().await?;
        self.expired += 1;
        self.known.newest += 1;
        self.sync().await
    }

    async fn run(&mut self, operations: usize) -> Result<(), Box<dyn Error>> {
        let mut reads = Vec::new();
        let often = if self.seed.is_multiple_of(10) { 10 } else { 1 };
        while self.asked < operations {
            let question = question(&mut self.random, &self.known);
            if question.only_reads() && reads.len() < READS {
                reads.push(question);
                continue;
            }
            self.ask_all(std::mem::take(&mut reads)).await?;
            match question {
                Question::Compact(request) => self.compact(request).await?,
                question => drop(self.ask(question).await?),
            }
            if self.random.one_in(SYNC) {
                self.sync().await?;
            }
            if self.random.one_in(WATCHES / often) {
                self.sync().await?;
                let mut differences = Vec::new();
                let changed =
                    self.watches.change(&mut self.random, &self.known, &mut differences).await;
                self.report(differences)?;
                changed?;
            }
            if self.random.one_in(RESTART / often) {
                self.restart().await?;
            }
            if self.random.one_in(EXPIRY / often) {
                self.expire().await?;
            }
        }
        self.restart().await?;
        self.ask_all(vec![
            Question::Hash(pb::HashKvRequest { revision: 0 }),
            Question::Range(pb::RangeRequest {
                key: vec![0].into(),
                range_end: vec![0].into(),
                ..Default::default()
            }),
        ])
        .await?;
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [etcd, serve, directory, operations, rest @ ..] = arguments.as_slice() else {
        return Err("usage: differ ETCD SERVE DIRECTORY OPERATIONS [SEED]".into());
    };
    let operations: usize = operations.parse()?;
    let seed: u64 = rest.first().map_or(Ok(1), |seed| seed.parse())?;
    let etcd = Program::etcd(etcd.into(), &format!("{directory}/etcd"))?;
    let serve = Program::serve(serve.into(), format!("{directory}/ours"))?;
    let tasks = Tasks::new(Shutdown::new());
    let begin = base::clock::now();
    let mut pair = KeyValueRef::start(etcd, serve, &tasks, seed).await?;
    let mut end = signal(SignalKind::terminate())?;
    let ran = tokio::select! {
        ran = pair.run(operations) => ran,
        // Dropping `pair` ends both processes.
        _ = end.recv() => return Err("a signal ended the run".into()),
    };
    if let Err(error) = &ran {
        pair.report(vec![format!("{error}")])?;
    }
    let mut cpu = pair.cpu;
    for (side, cpu) in pair.sides.iter_mut().zip(&mut cpu) {
        *cpu += side.cpu_seconds();
        side.stop(End::Killed).await?;
    }
    let (rate, [one, other]) = (pair.asked as f64 / begin.elapsed().as_secs_f64(), cpu);
    writeln!(
        std::io::stdout(),
        "{} operations, {} events, {} restarts, {} leases run out, {} differences, {rate:.0} \
         operations/s, CPU seconds {one:.1} and {other:.1}",
        pair.asked,
        pair.watches.events,
        pair.restarts,
        pair.expired,
        pair.differences
    )?;
    if pair.differences > 0 { Err("the answers differ".into()) } else { Ok(()) }
}
