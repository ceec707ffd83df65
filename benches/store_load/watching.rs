//! Watches of one key on ten streams, as etcd's own benchmark has them, and one client that writes
//! the key.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::future::try_join_all;
use tokio::sync::Notify;

use crate::http2::{Connection, Part, Target};
use crate::unary::PUT;
use crate::{Args, Mark, Measured, REQUEST_TIMEOUT, messages};

const WATCH: &str = "/etcdserverpb.Watch/Watch";
const KEY: &[u8] = b"watched";

#[derive(Default)]
struct Shared {
    created: Cell<u64>,
    events: Cell<u64>,
    /// Events that all watches will have had; not known before the last write.
    expected: Cell<Option<u64>>,
    changed: Notify,
}

/// Delivers each write to all watches.
pub(crate) async fn run(args: &Args, target: &Target) -> anyhow::Result<Measured> {
    let shared = Shared::default();
    let streams = args.connections;
    let each = args.clients / streams;
    let watches = (each * streams) as u64;
    let all = try_join_all((0..streams).map(|_| stream(&shared, target, each)));
    let writer = async {
        until(&shared, || shared.created.get() == watches).await?;
        let mut connection = Connection::open(target).await?;
        let value = vec![b'x'; args.value];
        let mark = Mark::now(args)?;
        let end = Instant::now() + Duration::from_secs_f64(args.seconds);
        let mut writes = 0;
        while Instant::now() < end {
            let mut answered = false;
            connection.call(PUT, &messages::put(KEY, &value), false)?;
            while !answered {
                connection
                    .exchange(|_, part| {
                        answered |= matches!(part, Part::End);
                        Ok(())
                    })
                    .await?;
            }
            writes += 1;
            // Writes go at the pace of the slowest watch, a few ahead of it, so that no watch is
            // dropped and nothing piles up.
            until(&shared, || shared.events.get() + 4 * watches >= writes * watches).await?;
        }
        until(&shared, || shared.events.get() >= writes * watches).await?;
        let measured = mark.until_now(args)?;
        shared.expected.set(Some(writes * watches));
        Ok::<_, anyhow::Error>(Measured { count: writes * watches, ..measured })
    };
    tokio::select! {
        measured = writer => measured,
        failed = all => {
            failed?;
            bail!("the watches ended")
        }
    }
}

/// Waits until what the watches have seen is so.
async fn until(shared: &Shared, so: impl Fn() -> bool) -> anyhow::Result<()> {
    while !so() {
        let changed = tokio::time::timeout(REQUEST_TIMEOUT, shared.changed.notified()).await;
        changed.with_context(|| {
            format!(
                "{} watches, {} events, and no more came",
                shared.created.get(),
                shared.events.get()
            )
        })?;
    }
    Ok(())
}

/// One stream with its watches.
async fn stream(shared: &Shared, target: &Target, watches: usize) -> anyhow::Result<()> {
    let mut connection = Connection::open(target).await?;
    let request = messages::watch(KEY);
    let own = connection.call(WATCH, &request, true)?;
    for _ in 1..watches {
        connection.message(own, &request, true)?;
    }
    let mut input = Vec::new();
    loop {
        connection
            .exchange(|_, part| {
                let Part::Data(bytes) = part else { bail!("a stream of watches ended") };
                // Most messages are one frame: these are read where they are.
                let mut rest = bytes;
                if !input.is_empty() {
                    input.extend_from_slice(bytes);
                    rest = &input;
                }
                while let Some((message, more)) = message(rest) {
                    rest = more;
                    let (events, created, canceled) = messages::events(message);
                    if canceled {
                        bail!("a watch was canceled");
                    }
                    shared.events.set(shared.events.get() + events);
                    shared.created.set(shared.created.get() + u64::from(created));
                }
                input = rest.to_vec();
                Ok(())
            })
            .await?;
        shared.changed.notify_one();
    }
}

/// The first whole message, and what follows it.
fn message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let &[_, a, b, c, d] = bytes.first_chunk::<5>()?;
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    bytes.get(5..)?.split_at_checked(length)
}
