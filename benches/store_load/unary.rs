//! Requests with one answer: a fixed number in flight on each connection, each answer at once
//! followed by the next request.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::future::try_join_all;

use crate::http2::{Connection, Part, Target};
use crate::messages;
use crate::{Args, Kind, Mark, Measured, REQUEST_TIMEOUT};

pub(crate) const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";

/// Rest after each isolated put: longer than etcd takes to commit what it has (100 ms).
const REST: Duration = Duration::from_millis(250);
/// A write that is not answered by then counts as failed, and is tried on a new connection.
const GAP_TIMEOUT: Duration = Duration::from_millis(500);

/// The path of a call and its message.
type Step = (&'static str, Vec<u8>);

/// One place in flight.
struct Slot {
    /// Where its keys begin, so that no two slots swap the same key.
    number: u64,
    stream: u32,
    begun: Instant,
    /// The pair of a swap has been read.
    read: bool,
    body: Vec<u8>,
    key: Vec<u8>,
}

/// What all connections share.
struct Shared<'a> {
    args: &'a Args,
    value: Vec<u8>,
    /// Operations begun.
    begun: Cell<u64>,
    counting: Cell<bool>,
    done: Cell<bool>,
    times: RefCell<Vec<u64>>,
}

impl Shared<'_> {
    fn key(&self, number: u64) -> Vec<u8> {
        format!("{}{number:07}", self.args.prefix).into_bytes()
    }

    /// What a slot asks next; nothing when its time or its keys have run out.
    fn next(&self, slot: &mut Slot) -> Option<Step> {
        let args = self.args;
        let count = self.begun.get();
        if self.done.get() || (args.kind == Kind::Fill && count >= args.keys) {
            return None;
        }
        self.begun.set(count + 1);
        slot.begun = Instant::now();
        slot.read = false;
        Some(match args.kind {
            Kind::Fill => (PUT, messages::put(&self.key(count), &self.value)),
            Kind::Put => (PUT, messages::put(&self.key(count * 7919 % args.keys), &self.value)),
            Kind::List => {
                // The end of a prefix is the next one.
                let mut end = args.prefix.clone().into_bytes();
                if let Some(last) = end.last_mut() {
                    *last += 1;
                }
                (RANGE, messages::range(args.prefix.as_bytes(), &end, false))
            }
            Kind::Swap => {
                let clients = args.clients as u64;
                let own = (args.keys / clients).max(1);
                slot.key = self.key(slot.number + count * 7919 % own * clients);
                (RANGE, messages::range(&slot.key, b"", false))
            }
            kind => {
                let key = self.key(count * 7919 % args.keys);
                (RANGE, messages::range(&key, b"", kind == Kind::GetSerializable))
            }
        })
    }

    /// Judges an answer; a swap goes on after its read.
    fn answered(&self, slot: &mut Slot) -> anyhow::Result<Option<Step>> {
        let body = slot.body.get(5..).context("a call failed")?;
        let least = match self.args.kind {
            Kind::Get | Kind::GetSerializable => self.args.value,
            Kind::List => self.args.value * usize::try_from(self.args.keys)?,
            _ => 0,
        };
        if body.len() < least {
            bail!("an answer of {} bytes, {least} were expected: fill first", body.len());
        }
        if self.args.kind == Kind::Swap && !slot.read {
            slot.read = true;
            let revision = messages::mod_revision(body).context("no such key: fill first")?;
            let txn = messages::put_if_unchanged(&slot.key, revision, &self.value);
            return Ok(Some((TXN, txn)));
        }
        if self.args.kind == Kind::Swap && !messages::succeeded(body) {
            bail!("an undisturbed compare-and-swap failed");
        }
        if self.counting.get() {
            self.times.borrow_mut().push(u64::try_from(slot.begun.elapsed().as_nanos())?);
        }
        Ok(None)
    }
}

/// Drives one connection until there is nothing more to ask.
async fn drive(shared: &Shared<'_>, target: &Target, mut slots: Vec<Slot>) -> anyhow::Result<()> {
    let mut connection = Connection::open(target).await?;
    // Slots that ask next, each with what it is in the middle of.
    let mut free: Vec<(usize, Option<Step>)> = (0..slots.len()).map(|at| (at, None)).collect();
    let mut flying = 0;
    loop {
        while let Some((at, step)) = free.pop() {
            let Some(slot) = slots.get_mut(at) else { continue };
            let Some((path, message)) = step.or_else(|| shared.next(slot)) else { continue };
            if !connection.has_room(message.len()) {
                free.push((at, Some((path, message))));
                break;
            }
            slot.stream = connection.call(path, &message, false)?;
            slot.body.clear();
            flying += 1;
        }
        if flying == 0 && free.is_empty() {
            return Ok(());
        }
        let exchange = connection.exchange(|stream, part| {
            let Some(at) = slots.iter().position(|slot| slot.stream == stream) else {
                return Ok(());
            };
            let Some(slot) = slots.get_mut(at) else { return Ok(()) };
            match part {
                Part::Data(bytes) => slot.body.extend_from_slice(bytes),
                Part::End => {
                    flying -= 1;
                    let step = shared.answered(slot)?;
                    free.push((at, step));
                }
            }
            Ok(())
        });
        tokio::time::timeout(REQUEST_TIMEOUT, exchange).await.context("no answer")??;
    }
}

fn slots(args: &Args, connection: usize) -> Vec<Slot> {
    let numbers = (connection..args.clients).step_by(args.connections);
    numbers
        .map(|number| Slot {
            number: number as u64,
            stream: 0,
            begun: Instant::now(),
            read: false,
            body: Vec::new(),
            key: Vec::new(),
        })
        .collect()
}

fn shared(args: &Args) -> Shared<'_> {
    Shared {
        args,
        value: vec![b'x'; args.value],
        begun: Cell::new(0),
        counting: Cell::new(false),
        done: Cell::new(false),
        times: RefCell::default(),
    }
}

/// Loads the server for the time that was asked for.
pub(crate) async fn run(args: &Args, target: &Target) -> anyhow::Result<Measured> {
    let shared = shared(args);
    let all = try_join_all((0..args.connections).map(|n| drive(&shared, target, slots(args, n))));
    let clock = async {
        tokio::time::sleep(Duration::from_secs_f64(args.warm)).await;
        let mark = Mark::now(args)?;
        shared.counting.set(true);
        tokio::time::sleep(Duration::from_secs_f64(args.seconds)).await;
        let mut measured = mark.until_now(args)?;
        shared.counting.set(false);
        shared.done.set(true);
        measured.count = shared.times.borrow().len() as u64;
        measured.times = shared.times.take();
        Ok::<_, anyhow::Error>(measured)
    };
    let (measured, _) = futures::future::try_join(clock, all).await?;
    Ok(measured)
}

/// Writes each key once.
pub(crate) async fn fill(args: &Args, target: &Target) -> anyhow::Result<Measured> {
    let shared = shared(args);
    shared.counting.set(true);
    let mark = Mark::now(args)?;
    try_join_all((0..args.connections).map(|n| drive(&shared, target, slots(args, n)))).await?;
    let mut measured = mark.until_now(args)?;
    measured.count = args.keys;
    measured.times = shared.times.take();
    Ok(measured)
}

/// One call and its answer.
async fn ask(
    connection: &mut Connection,
    path: &'static str,
    message: &[u8],
) -> anyhow::Result<Vec<u8>> {
    let (mut body, mut ended) = (Vec::new(), false);
    let asked = connection.call(path, message, false)?;
    while !ended {
        connection
            .exchange(|stream, part| {
                match part {
                    Part::Data(bytes) if stream == asked => body.extend_from_slice(bytes),
                    Part::End if stream == asked => ended = true,
                    _ => {}
                }
                Ok(())
            })
            .await?;
    }
    if body.len() < 5 {
        bail!("the call failed");
    }
    Ok(body)
}

/// Whether a linearizable read is answered.
pub(crate) async fn probe(target: &Target) -> anyhow::Result<()> {
    let asked = async {
        let mut connection = Connection::open(target).await?;
        ask(&mut connection, RANGE, &messages::range(b"k", b"", false)).await
    };
    tokio::time::timeout(Duration::from_secs(1), asked).await??;
    Ok(())
}

/// Puts with a rest after each; what was written meanwhile counts as theirs.
pub(crate) async fn isolated(args: &Args, target: &Target) -> anyhow::Result<Measured> {
    let mut connection = Connection::open(target).await?;
    let value = vec![b'x'; args.value];
    // The first one pays for what comes once.
    ask(&mut connection, PUT, &messages::put(b"isolated", &value)).await?;
    tokio::time::sleep(REST).await;
    let mark = Mark::now(args)?;
    let mut times = Vec::new();
    let until = Instant::now() + Duration::from_secs_f64(args.seconds);
    while Instant::now() < until {
        let begin = Instant::now();
        ask(&mut connection, PUT, &messages::put(b"isolated", &value)).await?;
        times.push(u64::try_from(begin.elapsed().as_nanos())?);
        tokio::time::sleep(REST).await;
    }
    let count = times.len() as u64;
    Ok(Measured { times, count, ..mark.until_now(args)? })
}

/// Puts one after another, and how long none was accepted at the longest.
pub(crate) async fn gap(args: &Args, target: &Target) -> anyhow::Result<Measured> {
    let mark = Mark::now(args)?;
    let value = vec![b'x'; args.value];
    let until = Instant::now() + Duration::from_secs_f64(args.seconds);
    let (mut connection, mut accepted) = (None, None::<Instant>);
    let (mut longest, mut failed, mut times) = (Duration::ZERO, 0, Vec::new());
    while Instant::now() < until {
        let begin = Instant::now();
        let write = async {
            let mut open = match connection.take() {
                Some(open) => open,
                None => Connection::open(target).await?,
            };
            ask(&mut open, PUT, &messages::put(b"gap", &value)).await?;
            Ok::<_, anyhow::Error>(open)
        };
        match tokio::time::timeout(GAP_TIMEOUT, write).await {
            Ok(Ok(open)) => {
                connection = Some(open);
                let now = Instant::now();
                longest = longest.max(accepted.map_or(Duration::ZERO, |last| now - last));
                accepted = Some(now);
                times.push(u64::try_from(begin.elapsed().as_nanos())?);
            }
            Ok(Err(_)) | Err(_) => {
                failed += 1;
                // A refusal comes at once; the next try need not.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
    let silent = accepted.map_or(Duration::from_secs_f64(args.seconds), |last| last.elapsed());
    let count = times.len() as u64;
    Ok(Measured { times, count, gap: Some((longest.max(silent), failed)), ..mark.until_now(args)? })
}
