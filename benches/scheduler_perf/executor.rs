//! Plays the operations of a workload in their order.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::bindings::{Bindings, Selector};
use crate::cluster::{Cluster, pods_path};
use crate::collector::{Collector, Created, Measured, Sources};
use crate::config::{ConfigFile, TestCase};
use crate::operation::{Barrier, CreatePodSets, CreatePods, Operation, Stage};
use crate::params::Params;
use crate::pods::{Pods, wait_until_attempted, wait_until_scheduled};
use crate::{any, background, claims, nodes};

/// What the operations of a workload share. Upstream's `WorkloadExecutor`.
pub(crate) struct Executor<'a> {
    pub(crate) file: &'a ConfigFile,
    pub(crate) case: &'a TestCase,
    pub(crate) params: &'a Params,
    pub(crate) cluster: Rc<Cluster>,
    pub(crate) bindings: Rc<Bindings>,
    pub(crate) created: Created,
    /// How long to wait for pods at most.
    pub(crate) wait_timeout: Duration,
    sources: Sources,
    /// Namespaces that exist, and how many pods a barrier waits for in them.
    namespaces: RefCell<BTreeMap<String, usize>>,
    collector: RefCell<Option<Collector>>,
    measured: RefCell<Vec<Measured>>,
    notes: RefCell<Vec<String>>,
    tasks: RefCell<Vec<JoinHandle<anyhow::Result<()>>>>,
    /// The position of the operation that runs.
    position: Cell<usize>,
    /// How many nodes the operations have created.
    nodes: Cell<usize>,
}

/// What a workload has measured.
pub(crate) struct Outcome {
    pub(crate) measured: Vec<Measured>,
    pub(crate) notes: Vec<String>,
}

/// An operation; those of a set are made of it.
enum Step<'a> {
    Operation(&'a Operation),
    Pods(Box<CreatePods>),
}

impl<'a> Executor<'a> {
    pub(crate) fn new(
        file: &'a ConfigFile,
        case: &'a TestCase,
        params: &'a Params,
        cluster: Rc<Cluster>,
        sources: Sources,
        wait_timeout: Duration,
    ) -> Self {
        Self {
            file,
            case,
            params,
            cluster,
            bindings: Rc::default(),
            created: Created::default(),
            wait_timeout,
            sources,
            namespaces: RefCell::default(),
            collector: RefCell::default(),
            measured: RefCell::default(),
            notes: RefCell::default(),
            tasks: RefCell::default(),
            position: Cell::new(0),
            nodes: Cell::new(0),
        }
    }

    /// Plays all operations.
    ///
    /// # Errors
    ///
    /// An operation fails; the error names its position. A parameter is used by none.
    pub(crate) async fn run(self, operations: &[Operation]) -> anyhow::Result<Outcome> {
        let watch = Rc::clone(&self.bindings).watch(Rc::clone(&self.cluster));
        let watch = tokio::task::spawn_local(watch);
        let played = self.play(operations).await;
        watch.abort();
        for task in self.tasks.take() {
            task.abort();
        }
        played?;
        let unused = self.params.unused();
        if !unused.is_empty() {
            bail!("the parameters {unused:?} are defined, but unused");
        }
        if self.measured.borrow().is_empty() {
            bail!("the operations measure nothing");
        }
        let retries = self.cluster.retries.get();
        if retries > 0 {
            self.note(&format!("{retries} creations were sent again"));
        }
        for note in self.cluster.converted.take() {
            self.note(&note);
        }
        Ok(Outcome { measured: self.measured.take(), notes: self.notes.take() })
    }

    async fn play(&self, operations: &[Operation]) -> anyhow::Result<()> {
        for (index, step) in self.unroll(operations)?.into_iter().enumerate() {
            self.position.set(index);
            let played = match step {
                Step::Operation(operation) => self.play_one(index, operation).await,
                Step::Pods(pods) => self.create_pods(index, &pods).await,
            };
            played.with_context(|| format!("op {index}"))?;
            self.check_tasks().await?;
        }
        Ok(())
    }

    /// Replaces sets of pods by an operation per namespace. Upstream's `unrollWorkloadTemplate`.
    fn unroll<'o>(&self, operations: &'o [Operation]) -> anyhow::Result<Vec<Step<'o>>> {
        let mut steps = Vec::new();
        for operation in operations {
            let Operation::CreatePodSets(CreatePodSets {
                count,
                count_param,
                namespace_prefix,
                create_pods_op,
            }) = operation
            else {
                steps.push(Step::Operation(operation));
                continue;
            };
            for index in 0..self.params.count(*count, count_param.as_deref())? {
                let mut pods = Box::new(create_pods_op.clone());
                pods.namespace = Some(format!("{namespace_prefix}-{index}"));
                steps.push(Step::Pods(pods));
            }
        }
        Ok(steps)
    }

    async fn play_one(&self, index: usize, operation: &Operation) -> anyhow::Result<()> {
        match operation {
            Operation::CreateNodes(op) => nodes::create(self, index, op).await,
            Operation::CreateNamespaces(op) => nodes::create_namespaces(self, op).await,
            Operation::CreatePods(op) => self.create_pods(index, op).await,
            Operation::CreatePodSets(_) => bail!("a set of pods is not unrolled"),
            Operation::CreateAny(op) => any::create(self, op).await,
            Operation::UpdateAny(op) => any::update(self, op).await,
            Operation::DeletePods(op) => background::delete_pods(self, op).await,
            Operation::AllocResourceClaims(op) => claims::allocate(self, op).await,
            Operation::Churn(op) => background::churn(self, index, op).await,
            Operation::Barrier(op) => self.wait(op).await,
            Operation::Sleep(op) => {
                let text = op.duration.as_deref();
                let duration = self.params.duration(text, op.duration_param.as_deref())?;
                tokio::time::sleep(duration).await;
                Ok(())
            }
            Operation::StartCollectingMetrics(op) => {
                self.start_collecting(&op.name, &op.namespaces, &op.label_selector).await
            }
            Operation::StopCollectingMetrics(_) => self.stop_collecting().await,
        }
    }

    async fn create_pods(&self, index: usize, op: &CreatePods) -> anyhow::Result<()> {
        Pods::resolve(self, index, op)?.run(self).await
    }

    async fn wait(&self, op: &Barrier) -> anyhow::Result<()> {
        let known = self.namespaces.borrow().clone();
        let names: Vec<&String> = match op.namespaces.is_empty() {
            true => known.keys().collect(),
            false => op.namespaces.iter().collect(),
        };
        for name in names {
            let want = *known.get(name).with_context(|| format!("unknown namespace {name}"))?;
            match op.stage_requirement {
                Stage::Attempted => {
                    wait_until_attempted(self, name, &op.label_selector, want).await?;
                }
                Stage::Scheduled => {
                    wait_until_scheduled(self, name, &op.label_selector, want).await?;
                    // No pod of the namespace waits any more.
                    self.namespaces.borrow_mut().insert(name.clone(), 0);
                }
            }
        }
        Ok(())
    }

    /// Starts a measurement.
    ///
    /// # Errors
    ///
    /// One runs already.
    pub(crate) async fn start_collecting(
        &self,
        name: &str,
        namespaces: &[String],
        selector: &Selector,
    ) -> anyhow::Result<()> {
        if self.collector.borrow().is_some() {
            bail!("a measurement begins while another one runs");
        }
        let started =
            Collector::start(name, namespaces, selector, &self.bindings, &self.sources).await?;
        *self.collector.borrow_mut() = Some(started);
        Ok(())
    }

    /// Ends the measurement.
    ///
    /// # Errors
    ///
    /// None runs.
    pub(crate) async fn stop_collecting(&self) -> anyhow::Result<()> {
        let collector = self.collector.borrow_mut().take();
        let collector = collector.context("missing startCollectingMetrics operation")?;
        let measured = collector.stop(&self.bindings, &self.created, &self.sources).await?;
        self.measured.borrow_mut().push(measured);
        Ok(())
    }

    /// Adds a namespace to those that exist. Whether it is new.
    pub(crate) fn know_namespace(&self, name: &str) -> bool {
        let mut namespaces = self.namespaces.borrow_mut();
        let is_new = !namespaces.contains_key(name);
        namespaces.entry(name.to_owned()).or_insert(0);
        is_new
    }

    /// Adds to the pods that a later barrier waits for.
    pub(crate) fn expect_scheduled(&self, namespace: &str, count: usize) {
        *self.namespaces.borrow_mut().entry(namespace.to_owned()).or_insert(0) += count;
    }

    /// Counts nodes that an operation creates. Returns the number of the first.
    pub(crate) fn reserve_nodes(&self, count: usize) -> usize {
        self.nodes.replace(self.nodes.get() + count)
    }

    /// Adds a remark to the result.
    pub(crate) fn note(&self, text: &str) {
        let mut notes = self.notes.borrow_mut();
        if !notes.iter().any(|note| note == text) {
            notes.push(text.to_owned());
        }
    }

    /// Runs a task until the workload ends. Its error ends the workload at the next operation.
    pub(crate) fn spawn(&self, task: impl Future<Output = anyhow::Result<()>> + 'static) {
        let position = self.position.get();
        let task = async move { task.await.with_context(|| format!("op {position}")) };
        self.tasks.borrow_mut().push(tokio::task::spawn_local(task));
    }

    async fn check_tasks(&self) -> anyhow::Result<()> {
        let (ended, running): (Vec<_>, Vec<_>) =
            self.tasks.take().into_iter().partition(JoinHandle::is_finished);
        *self.tasks.borrow_mut() = running;
        for task in ended {
            task.await??;
        }
        Ok(())
    }

    /// What the scheduler says of a pod that has no node, for an error.
    pub(crate) async fn why_pending(&self, namespace: &str) -> String {
        let query = "&fieldSelector=spec.nodeName%3D";
        let pods = self.cluster.list(&pods_path(namespace), query).await.unwrap_or_default();
        let message = pods.iter().find_map(|pod| {
            let conditions = pod.pointer("/status/conditions")?.as_array()?;
            let mut found = conditions.iter().filter(|found| found["type"] == "PodScheduled");
            found.next()?.get("message").and_then(Value::as_str).map(str::to_owned)
        });
        message.map_or(String::new(), |message| format!(": {message}"))
    }
}
