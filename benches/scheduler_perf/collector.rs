//! A measurement: what is collected between two operations, or while pods are created.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::any::every;
use crate::bindings::{Bindings, Counter, Selector};
use crate::connection::Target;
use crate::metrics::{ATTEMPTS, Histogram, processor_seconds};
use crate::throughput::{SAMPLE_INTERVAL, Samples, Summary, percentile};

/// When the request for each pod was sent, by `namespace/name`.
pub(crate) type Created = RefCell<HashMap<String, Instant>>;

/// What is measured beside the bindings.
pub(crate) struct Sources {
    /// The processes whose processor time counts.
    pub(crate) pids: Vec<u32>,
    /// Where the scheduler's metrics are, and their path.
    pub(crate) metrics: Option<(Target, String)>,
}

/// A measurement that runs.
pub(crate) struct Collector {
    name: String,
    counter: Rc<Counter>,
    sampler: JoinHandle<()>,
    samples: Rc<RefCell<Samples>>,
    processor: f64,
    own_processor: f64,
    attempts: Histogram,
    begin: Instant,
}

/// The result of a measurement; durations in milliseconds.
pub(crate) struct Measured {
    name: String,
    pods: usize,
    /// From the first creation of a measured pod to the last binding.
    span: Option<Duration>,
    throughput: Option<Summary>,
    waits: Option<(f64, f64)>,
    attempts: Option<(f64, f64)>,
    cpu_per_pod: Option<f64>,
    client_per_pod: Option<f64>,
    elapsed: Duration,
}

impl Sources {
    async fn attempts(&self) -> anyhow::Result<Histogram> {
        let Some((target, path)) = &self.metrics else { return Ok(Histogram::default()) };
        let mut sender = target.connect().await?;
        let (status, body) = target.send(&mut sender, Method::GET, path, Bytes::new()).await?;
        if status != 200 {
            anyhow::bail!("{path}: status {status}");
        }
        Ok(Histogram::parse(&String::from_utf8_lossy(&body), ATTEMPTS))
    }
}

impl Collector {
    /// Starts to measure the pods of some namespaces.
    ///
    /// # Errors
    ///
    /// A process has ended; the metrics cannot be read.
    pub(crate) async fn start(
        name: &str,
        namespaces: &[String],
        selector: &Selector,
        bindings: &Bindings,
        sources: &Sources,
    ) -> anyhow::Result<Self> {
        let attempts = sources.attempts().await.context("reading the scheduler's metrics")?;
        let counter = Counter::new(namespaces, selector);
        bindings.count(&counter);
        let samples: Rc<RefCell<Samples>> = Rc::default();
        let sampler = tokio::task::spawn_local(sample(Rc::clone(&counter), Rc::clone(&samples)));
        let processor = processor_seconds(&sources.pids)?;
        let own_processor = processor_seconds(&[std::process::id()])?;
        let (name, begin) = (name.to_owned(), Instant::now());
        Ok(Self { name, counter, sampler, samples, processor, own_processor, attempts, begin })
    }

    /// Ends the measurement.
    ///
    /// # Errors
    ///
    /// A process has ended; the metrics cannot be read.
    pub(crate) async fn stop(
        self,
        bindings: &Bindings,
        created: &Created,
        sources: &Sources,
    ) -> anyhow::Result<Measured> {
        let elapsed = self.begin.elapsed();
        let cpu = processor_seconds(&sources.pids)? - self.processor;
        let own_cpu = processor_seconds(&[std::process::id()])? - self.own_processor;
        self.sampler.abort();
        bindings.stop_counting(&self.counter);
        let attempts = sources.attempts().await.context("reading the scheduler's metrics")?;
        let attempts = attempts.since(&self.attempts);
        let bound = self.counter.bound.take();
        let (waits, span) = waits(&bound, &created.borrow());
        let quantile = |share| attempts.quantile(share).map(|seconds| seconds * 1e3);
        let pods = (!bound.is_empty()).then_some(bound.len() as f64);
        let cpu = (!sources.pids.is_empty()).then_some(cpu);
        Ok(Measured {
            name: self.name,
            pods: bound.len(),
            span,
            throughput: self.samples.borrow().summary(),
            waits,
            attempts: quantile(0.5).zip(quantile(0.99)),
            cpu_per_pod: cpu.zip(pods).map(|(cpu, pods)| cpu * 1e3 / pods),
            client_per_pod: pods.map(|pods| own_cpu * 1e3 / pods),
            elapsed,
        })
    }
}

async fn sample(counter: Rc<Counter>, samples: Rc<RefCell<Samples>>) {
    let begin = Instant::now();
    let mut ticks = every(SAMPLE_INTERVAL);
    loop {
        ticks.tick().await;
        samples.borrow_mut().tick(begin.elapsed(), counter.scheduled.get());
    }
}

/// The median and the 99th percentile of the time from a pod's creation to its binding, in
/// milliseconds, and the time from the first creation to the last binding.
fn waits(
    bound: &[(String, Instant)],
    created: &HashMap<String, Instant>,
) -> (Option<(f64, f64)>, Option<Duration>) {
    let pairs = bound.iter().filter_map(|(name, at)| Some((*created.get(name)?, *at)));
    let (mut first, mut waits) = (None::<Instant>, Vec::new());
    for (creation, binding) in pairs {
        first = Some(first.map_or(creation, |first| first.min(creation)));
        waits.push(binding.saturating_duration_since(creation).as_secs_f64() * 1e3);
    }
    waits.sort_by(f64::total_cmp);
    let last = bound.iter().map(|(_, at)| *at).max();
    let span = first.zip(last).map(|(first, last)| last.saturating_duration_since(first));
    (percentile(&waits, 50).zip(percentile(&waits, 99)), span)
}

impl Measured {
    /// Pods per second from the first creation to the last binding.
    fn overall(&self) -> Option<f64> {
        let seconds = self.span?.as_secs_f64();
        (seconds > 0.0).then(|| self.pods as f64 / seconds)
    }

    /// The result for programs.
    pub(crate) fn json(&self) -> Value {
        let throughput = self.throughput.map(|summary| {
            json!({
                "Average": summary.average, "Perc50": summary.perc50, "Perc90": summary.perc90,
                "Perc95": summary.perc95, "Perc99": summary.perc99, "samples": summary.samples,
            })
        });
        let pair =
            |pair: Option<(f64, f64)>| pair.map(|(p50, p99)| json!({"p50": p50, "p99": p99}));
        json!({
            "name": self.name, "pods": self.pods, "overall": self.overall(),
            "throughput": throughput, "wait_ms": pair(self.waits),
            "attempt_ms": pair(self.attempts), "cpu_ms_per_pod": self.cpu_per_pod, "client_ms_per_pod": self.client_per_pod,
            "elapsed_s": self.elapsed.as_secs_f64(),
        })
    }

    /// The result for people.
    pub(crate) fn text(&self, threshold: Option<f64>) -> String {
        let number =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let pair = |pair: Option<(f64, f64)>| {
            format!("p50 {} ms, p99 {} ms", number(pair.map(|p| p.0)), number(pair.map(|p| p.1)))
        };
        let rates = self.throughput.map_or_else(
            || "no sample: scheduling took less than two seconds".to_owned(),
            |sums| {
                format!(
                    "Average {:.0}, Perc50 {:.0}, Perc90 {:.0}, Perc95 {:.0}, Perc99 {:.0} \
                     ({} samples)",
                    sums.average, sums.perc50, sums.perc90, sums.perc95, sums.perc99, sums.samples
                )
            },
        );
        format!(
            "{}: {} pods in {:.1} s\n  pods/s          {rates}\n  pods/s overall  {}\n  \
             threshold       {}\n  until binding   {}\n  attempt         {}\n  \
             CPU per pod     {} ms, client {} ms",
            self.name,
            self.pods,
            self.elapsed.as_secs_f64(),
            number(self.overall()),
            number(threshold),
            pair(self.waits),
            pair(self.attempts),
            number(self.cpu_per_pod),
            number(self.client_per_pod),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_from_the_creation_of_the_same_pod() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let created: HashMap<_, _> =
            [("a/1", 0), ("a/2", 10), ("a/3", 20)].map(|(n, ms)| (n.to_owned(), at(ms))).into();
        let bound = [("a/2", 12), ("a/1", 5), ("a/3", 50), ("a/foreign", 60)];
        let bound = bound.map(|(name, ms)| (name.to_owned(), at(ms)));
        let (pair, span) = waits(&bound, &created);
        assert_eq!(pair, Some((5.0, 30.0)));
        assert_eq!(span, Some(Duration::from_millis(60)));
        assert_eq!(waits(&[], &created), (None, None));
    }
}
