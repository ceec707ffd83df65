//! Injects faults into the cluster and repairs them.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::net::Cluster;
use super::world::World;
use crate::contract::{Role, StoreError};
use crate::log::sim::Rng;

/// Maximum number of machines.
const MACHINES_MAX: usize = 5;

/// The machines of a run and their faults.
pub(super) struct Storm {
    pub(super) cluster: Cluster,
    pub(super) world: World,
    pub(super) rng: Rng,
    /// Machines that are stopped and will be restarted.
    down: BTreeSet<usize>,
    /// Machines with failing disks.
    excused: BTreeSet<usize>,
    lives: u64,
    next_machine: usize,
    /// Injected faults, for the statistics.
    pub(super) faults: Vec<&'static str>,
}

/// Timeout of a membership change.
async fn within<T>(seconds: u64, change: impl Future<Output = Result<T, StoreError>>) -> Option<T> {
    tokio::time::timeout(Duration::from_secs(seconds), change).await.ok()?.ok()
}

impl Storm {
    pub(super) fn new(cluster: Cluster, world: World, rng: Rng) -> Self {
        let next_machine = cluster.nodes.keys().max().map_or(0, |machine| machine + 1);
        let (down, excused) = (BTreeSet::new(), BTreeSet::new());
        let this =
            Self { cluster, world, rng, down, excused, lives: 0, next_machine, faults: Vec::new() };
        for (machine, node) in &this.cluster.nodes {
            this.world.open(*machine, 0, &node.store);
        }
        this
    }

    fn record(&mut self, fault: &'static str, on: usize) {
        self.world.trace().record(format_args!("fault: {fault} ({on})"));
        self.faults.push(fault);
    }

    pub(super) async fn wait(&mut self, least: u64, most: u64) {
        let wait = least + self.rng.below(most - least + 1);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }

    /// A running machine, with a preference for the leader.
    fn victim(&mut self) -> Option<usize> {
        let nodes = &self.cluster.nodes;
        let leads = |machine: &&usize| nodes[*machine].members.leadership().borrow().leads;
        let leader = nodes.keys().find(leads).copied();
        let any = self.rng.below(nodes.len().max(1) as u64) as usize;
        let any = nodes.keys().nth(any).copied();
        if self.rng.chance(40) { leader.or(any) } else { any }
    }

    /// Kills a machine.
    fn lose(&mut self, machine: usize, power: bool) {
        self.world.close(machine);
        self.cluster.lose(machine, power);
        self.excused.remove(&machine);
        self.down.insert(machine);
    }

    async fn start(&mut self, machine: usize) -> Result<(), String> {
        self.lives += 1;
        match self.cluster.start(machine).await {
            Ok(()) => {
                self.down.remove(&machine);
                self.world.open(machine, self.lives, &self.cluster.nodes[&machine].store);
                Ok(())
            }
            Err(error) => Err(format!("machine {machine} does not start: {error}")),
        }
    }

    /// Checks that machines that stopped by themselves had a reason.
    pub(super) fn check_nodes(&mut self) -> Result<(), String> {
        for machine in self.cluster.nodes.keys().copied().collect::<Vec<_>>() {
            let node = &self.cluster.nodes[&machine];
            let power = node.disk.has_power();
            if let Some(fault) = node.fault()
                && power
                && !self.excused.contains(&machine)
            {
                return Err(format!("machine {machine} stopped: {fault}"));
            }
            if !power || node.fault().is_some() {
                let lost = !power || self.rng.chance(50);
                self.lose(machine, lost);
            }
        }
        Ok(())
    }

    /// Repairs network and disks.
    pub(super) fn calm(&mut self) {
        self.world.trace().record(format_args!("calm"));
        self.cluster.heal();
        self.cluster.set_loss(0, 5);
        self.cluster.set_duplicates(0);
        for node in self.cluster.nodes.values() {
            if node.disk.has_power() {
                node.disk.repair();
            }
        }
    }

    /// Starts all stopped machines.
    pub(super) async fn start_all(&mut self) -> Result<(), String> {
        for machine in self.down.clone() {
            self.start(machine).await?;
        }
        Ok(())
    }

    /// Injects one or two faults.
    pub(super) async fn fault(&mut self) -> Result<(), String> {
        self.check_nodes()?;
        let Some(victim) = self.victim() else { return self.start_all().await };
        match self.rng.below(17) {
            0 => {
                self.record("power cut", victim);
                self.lose(victim, true);
            }
            1 => {
                self.record("kill", victim);
                self.lose(victim, false);
            }
            2 | 3 => {
                self.record("power cut in an operation", victim);
                let disk = &self.cluster.nodes[&victim].disk;
                disk.cut_power_at(disk.operations() + 1 + self.rng.below(30));
            }
            4 => {
                self.record("power cut everywhere", victim);
                for machine in self.cluster.nodes.keys().copied().collect::<Vec<_>>() {
                    self.lose(machine, true);
                }
            }
            5 => {
                self.record("stop", victim);
                self.halt(victim).await?;
                self.down.insert(victim);
            }
            6 => {
                self.record("partition", victim);
                self.cluster.partition(&[victim]);
            }
            7 => {
                self.record("one-way partition", victim);
                let others: Vec<usize> = self.cluster.nodes.keys().copied().collect();
                let away = self.rng.chance(50);
                for other in others.into_iter().filter(|other| *other != victim) {
                    if self.rng.chance(70) {
                        let (from, to) = if away { (victim, other) } else { (other, victim) };
                        self.cluster.cut_one_way(from, to);
                    }
                }
            }
            8 => {
                self.record("bad network", victim);
                let (loss, delay) = (self.rng.below(30), self.rng.below(200));
                self.cluster.set_loss(loss, delay);
                self.cluster.set_duplicates(self.rng.clone().below(20));
            }
            9..12 => self.spoil_disk(victim),
            12 => {
                self.record("checkpoint", victim);
                let engine = std::sync::Arc::clone(&self.cluster.nodes[&victim].engine);
                let wait = Duration::from_secs(5);
                // A start that fails because of the disk is retried later.
                let _ = tokio::time::timeout(wait, engine.write_checkpoint()).await;
            }
            13 => self.transfer(victim).await,
            14 => self.add().await?,
            15 => self.remove(victim).await?,
            _ => self.move_away(victim).await?,
        }
        Ok(())
    }

    /// Makes a disk slow, failing or full.
    fn spoil_disk(&mut self, victim: usize) {
        match self.rng.below(3) {
            0 => {
                self.record("slow disk", victim);
                let most = 10 + self.rng.below(400);
                self.cluster.nodes[&victim].disk.set_latency(most);
            }
            1 => {
                self.record("failed sync", victim);
                let disk = &self.cluster.nodes[&victim].disk;
                disk.fail_sync_at(disk.syncs() + 1 + self.rng.below(5));
                self.excused.insert(victim);
            }
            _ => {
                self.record("full disk", victim);
                let disk = &self.cluster.nodes[&victim].disk;
                disk.set_capacity(disk.used() + self.rng.below(64 * 1024));
            }
        }
    }

    async fn transfer(&mut self, victim: usize) {
        self.record("transfer of the lead", victim);
        let to = self.cluster.nodes[&victim].members.id();
        if let Some(leader) = self.leader() {
            let members = std::sync::Arc::clone(&self.cluster.nodes[&leader].members);
            within(9, members.transfer(to)).await;
        }
    }

    /// Adds a new machine and promotes it.
    async fn add(&mut self) -> Result<(), String> {
        let known = self.cluster.nodes.len() + self.down.len();
        let Some(helper) = self.victim().filter(|_| known < MACHINES_MAX) else { return Ok(()) };
        let machine = self.next_machine;
        self.next_machine += 1;
        self.record("new member", machine);
        self.start(machine).await?;
        let id = self.cluster.nodes[&machine].members.id();
        let address = self.cluster.at(machine);
        let members = std::sync::Arc::clone(&self.cluster.nodes[&helper].members);
        if within(9, members.add(id, &address)).await.is_none() {
            return Ok(());
        }
        for _ in 0..5 {
            self.wait(100, 400).await;
            if within(9, members.promote(vec![id])).await.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn remove(&mut self, victim: usize) -> Result<(), String> {
        let voters = self.cluster.voters(victim);
        if voters < 3 || self.cluster.nodes.len() < 3 {
            return Ok(());
        }
        self.record("removed member", victim);
        let id = self.cluster.nodes[&victim].members.id();
        let Some(helper) = self.cluster.nodes.keys().find(|machine| **machine != victim) else {
            return Ok(());
        };
        let members = std::sync::Arc::clone(&self.cluster.nodes[helper].members);
        if within(9, members.remove(id)).await.is_some() {
            self.halt(victim).await?;
            self.cluster.disks.remove(&victim);
        }
        Ok(())
    }

    /// Stops a machine as its service manager does.
    async fn halt(&mut self, machine: usize) -> Result<(), String> {
        let excused = self.excused.remove(&machine);
        let node = &self.cluster.nodes[&machine];
        if let (Some(fault), false) = (node.fault(), excused || !node.disk.has_power()) {
            return Err(format!("machine {machine} stopped: {fault}"));
        }
        let halted = self.cluster.halt(machine).await;
        self.world.close(machine);
        halted.map(drop)
    }

    /// A machine restarts at another address, despite other faults; one at a time, since members
    /// that all moved could not find each other.
    async fn move_away(&mut self, victim: usize) -> Result<(), String> {
        let Some(leader) = self.leader() else { return Ok(()) };
        let known = self.cluster.nodes[&leader].members.list();
        let everywhere: BTreeSet<String> =
            self.cluster.disks.keys().map(|machine| self.cluster.at(*machine)).collect();
        if self.cluster.voters(victim) < 3
            || known.iter().any(|member| !everywhere.contains(&member.address))
        {
            return Ok(());
        }
        self.record("new address", victim);
        self.halt(victim).await?;
        self.cluster.renumber(victim);
        self.start(victim).await?;
        self.announce().await;
        Ok(())
    }

    /// Announces the addresses of moved machines.
    pub(super) async fn announce(&mut self) {
        let nodes: Vec<usize> = self.cluster.nodes.keys().copied().collect();
        for machine in nodes {
            let members = std::sync::Arc::clone(&self.cluster.nodes[&machine].members);
            let (id, address) = (members.id(), self.cluster.at(machine));
            let Some(leader) = self.leader() else { return };
            let known = self.cluster.nodes[&leader].members.list();
            if known.iter().any(|member| member.id == id && member.address != address) {
                let members = std::sync::Arc::clone(&self.cluster.nodes[&leader].members);
                within(9, members.add(id, &address)).await;
            }
        }
    }

    /// The leader of the newest term.
    pub(super) fn leader(&self) -> Option<usize> {
        let nodes = self.cluster.nodes.iter();
        let leading = nodes.filter(|(_, node)| node.members.leadership().borrow().leads);
        let newest = leading.max_by_key(|(_, node)| node.members.leadership().borrow().term);
        newest.map(|(machine, _)| *machine)
    }

    /// The members as their leader knows them; other machines are stopped.
    pub(super) async fn only_members(&mut self) -> Result<Vec<usize>, String> {
        let Some(leader) = self.leader() else { return Ok(Vec::new()) };
        let list = self.cluster.nodes[&leader].members.list();
        let member = |machine: &usize| {
            let id = self.cluster.nodes[machine].members.id();
            list.iter().find(|member| member.id == id).map(|member| member.role)
        };
        let machines: Vec<(usize, Option<Role>)> =
            self.cluster.nodes.keys().map(|machine| (*machine, member(machine))).collect();
        let (members, others): (Vec<_>, Vec<_>) =
            machines.into_iter().partition(|(_, role)| role.is_some());
        for (machine, _) in others {
            self.halt(machine).await?;
        }
        Ok(members.into_iter().map(|(machine, _)| machine).collect())
    }
}
