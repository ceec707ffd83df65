//! Computes from policies and pods the elements of a few sets for the pods of one node; pure.
//!
//! A pod that is isolated in a direction has a *profile* there: a number for everything that its
//! policies allow together. A pod that peers of these policies select has a *class*: a number for
//! the set of selectors that match it. A packet therefore costs the same number of lookups whatever
//! the number of policies and pods, and adding or removing a pod changes one element.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use api::ObjectKey;
use sorting::CompactSort as _;

use crate::nft::set::{Element, Value};
use crate::policy::drops::{Drops, LogLimit, group_chain};
use crate::policy::model::{Labels, Peer, Pod, Policy, Port, Rule, Selector, Side, Within};
use crate::policy::ports::{Ports, apart, spans};
use settings::addr::{Cidr, Family};

/// The sets of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SetName {
    /// Addresses of pods isolated for ingress, with their profile.
    Ingress,
    /// Addresses of pods isolated for egress, with their profile.
    Egress,
    /// The address of an isolated pod twice: traffic that a pod sends to itself through a Service.
    Own,
    /// Addresses of pods that peers select, with their class.
    Classes,
    /// Allowed traffic by profile, class, protocol and port.
    Pods,
    /// Allowed traffic by profile, address, protocol and port.
    Blocks,
    /// Addresses of pods isolated for ingress, with the chain of the policies that do it.
    IngressDrops,
    /// Addresses of pods isolated for egress, with the chain of the policies that do it.
    EgressDrops,
}

impl SetName {
    pub(crate) const ALL: [Self; 8] = [
        Self::Ingress,
        Self::Egress,
        Self::Own,
        Self::Classes,
        Self::Pods,
        Self::Blocks,
        Self::IngressDrops,
        Self::EgressDrops,
    ];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
            Self::Own => "own",
            Self::Classes => "classes",
            Self::Pods => "pods",
            Self::Blocks => "blocks",
            Self::IngressDrops => "ingress-drops",
            Self::EgressDrops => "egress-drops",
        }
    }
}

/// The elements of each set of one family.
pub(crate) type Sets = BTreeMap<SetName, BTreeSet<Element>>;

/// A pod of this node, as the container runtime described it in the CNI call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Local {
    /// Namespace and name; the name is empty when the runtime did not pass it.
    pub(crate) key: ObjectKey,
    pub(crate) uid: String,
    pub(crate) addresses: Vec<IpAddr>,
    /// Its link on the node.
    pub(crate) link: String,
}

/// What the kernel must enforce.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) sets: BTreeMap<Family, Sets>,
    /// Pods of this node that policies may select but that the API has not reported yet. They are
    /// closed in each direction that a policy of their namespace isolates.
    pub(crate) unknown: BTreeSet<ObjectKey>,
    /// The chains of both families to which [`SetName::IngressDrops`] and
    /// [`SetName::EgressDrops`] lead.
    pub(crate) drops: Drops,
}

impl Decision {
    /// Whether no pod of this node is isolated.
    pub(crate) fn is_idle(&self) -> bool {
        let isolates =
            |sets: &Sets| [SetName::Ingress, SetName::Egress].iter().any(|n| sets.contains_key(n));
        !self.sets.values().any(isolates)
    }

    fn add(&mut self, family: Family, set: SetName, element: Element) {
        self.sets.entry(family).or_default().entry(set).or_default().insert(element);
    }
}

/// Assigns numbers to contents; the same content keeps its number as long as it is in use.
#[derive(Debug)]
struct Numbers<K> {
    known: HashMap<K, u32>,
    used: HashSet<u32>,
    next: u32,
}

impl<K: Hash + Eq> Numbers<K> {
    fn new() -> Self {
        Self { known: HashMap::new(), used: HashSet::new(), next: 1 }
    }

    fn of(&mut self, content: K) -> u32 {
        let next = &mut self.next;
        let number = *self.known.entry(content).or_insert_with(|| {
            let number = *next;
            *next = next.wrapping_add(1).max(1);
            number
        });
        self.used.insert(number);
        number
    }

    /// Drops contents that were not used since the last call.
    fn tidy(&mut self) {
        let used = std::mem::take(&mut self.used);
        self.known.retain(|_, number| used.contains(number));
    }
}

/// The named ports of a rule; names resolve at the destination pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PortNames(BTreeSet<(u8, String)>);

/// What a pod may do in one direction: the union of all rules of all its policies.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Profile {
    /// By the number of the peers' selector.
    pods: BTreeMap<u32, (Ports, PortNames)>,
    /// By family and first and last address.
    blocks: Vec<((IpAddr, IpAddr), Ports)>,
}

/// Which selectors match a pod, and which of the port names in use it has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Class {
    selectors: Vec<u32>,
    named: Vec<(u8, String, u16)>,
}

#[derive(Debug)]
struct KnownPod {
    pod: Pod,
    /// Its class, if any, as of this generation of selectors.
    class: Option<(u64, Option<u32>)>,
}

/// The objects seen so far and the numbers assigned to them.
#[derive(Debug)]
pub(crate) struct Decider {
    policies: BTreeMap<ObjectKey, Policy>,
    namespaces: HashMap<Arc<str>, Labels>,
    pods: HashMap<ObjectKey, KnownPod>,
    local: Vec<Local>,
    /// Cluster DNS, which does not run as a pod: peers that select upstream's DNS pods match it.
    dns: (ObjectKey, Pod),
    selectors: Numbers<String>,
    classes: Numbers<Class>,
    dropping: Numbers<(ObjectKey, LogLimit)>,
    groups: Numbers<Vec<u32>>,
    profiles: BTreeMap<Profile, u32>,
    next_profile: u32,
    /// Changes when the class of pods may change for a reason other than the pod itself.
    round: u64,
    active: BTreeMap<u32, Selector>,
    names: BTreeSet<(u8, String)>,
}

/// Namespace, label and ports of upstream's DNS pods.
const DNS_NAMESPACE: &str = "kube-system";
const DNS_LABEL: (&str, &str) = ("k8s-app", "kube-dns");
const DNS_PORTS: [(&str, u8, u16); 2] = [("dns", 17, 53), ("dns-tcp", 6, 53)];

impl Decider {
    /// `dns` are the addresses at which this node answers for the cluster domain.
    pub(crate) fn new(dns: &[IpAddr]) -> Self {
        let pod = Pod {
            uid: "".into(),
            labels: [(DNS_LABEL.0.into(), DNS_LABEL.1.into())].into(),
            addresses: dns.to_vec(),
            ports: DNS_PORTS
                .map(|(name, protocol, number)| (name.to_owned(), protocol, number))
                .into(),
            is_mirror: false,
        };
        Self {
            policies: BTreeMap::new(),
            namespaces: HashMap::new(),
            pods: HashMap::new(),
            local: Vec::new(),
            dns: (ObjectKey::new(DNS_NAMESPACE, ""), pod),
            selectors: Numbers::new(),
            classes: Numbers::new(),
            dropping: Numbers::new(),
            groups: Numbers::new(),
            profiles: BTreeMap::new(),
            next_profile: 1,
            round: 0,
            active: BTreeMap::new(),
            names: BTreeSet::new(),
        }
    }

    /// Sets a policy, or removes it when `policy` is `None`; returns whether anything changed.
    /// [`Self::namespace`], [`Self::pod`] and [`Self::local`] work the same way.
    pub(crate) fn policy(&mut self, key: &ObjectKey, policy: Option<Policy>) -> bool {
        match policy {
            Some(policy) => match self.policies.insert(key.clone(), policy) {
                Some(old) => self.policies.get(key) != Some(&old),
                None => true,
            },
            None => self.policies.remove(key).is_some(),
        }
    }

    pub(crate) fn has_policies(&self) -> bool {
        !self.policies.is_empty()
    }

    pub(crate) fn namespace(&mut self, name: &Arc<str>, labels: Option<Labels>) -> bool {
        let before = match labels.clone() {
            Some(labels) => self.namespaces.insert(Arc::clone(name), labels),
            None => self.namespaces.remove(name),
        };
        let news = before != labels;
        self.round += u64::from(news);
        news
    }

    pub(crate) fn pod(&mut self, key: &ObjectKey, pod: Option<Pod>) -> bool {
        let same = self.pods.get(key).map(|k| &k.pod) == pod.as_ref();
        if !same {
            match pod {
                Some(pod) => drop(self.pods.insert(key.clone(), KnownPod { pod, class: None })),
                None => drop(self.pods.remove(key)),
            }
        }
        !same
    }

    pub(crate) fn local(&mut self, local: Vec<Local>) -> bool {
        let news = self.local != local;
        self.local = local;
        news
    }

    /// The pods of this node.
    pub(crate) fn locals(&self) -> &[Local] {
        &self.local
    }

    /// Removes all pods and namespaces, because their watches have ended.
    pub(crate) fn forget_pods(&mut self) {
        self.pods.clear();
        self.namespaces.clear();
        self.round += 1;
    }

    fn resolve(ports: &Option<Vec<Port>>, of: &Pod) -> Ports {
        let Some(list) = ports else { return Ports::everything() };
        let mut out = Ports::default();
        for port in list {
            match port {
                Port::Numbers(protocol, first, last) => out.add(*protocol, *first, *last),
                Port::Named(protocol, name) => {
                    let same = |p: &&(String, u8, u16)| p.0 == *name && p.1 == *protocol;
                    for (_, protocol, number) in of.ports.iter().filter(same) {
                        out.add(*protocol, *number, *number);
                    }
                }
            }
        }
        out
    }

    fn unresolved(ports: &Option<Vec<Port>>) -> (Ports, PortNames) {
        let Some(list) = ports else { return (Ports::everything(), PortNames::default()) };
        let (mut out, mut names) = (Ports::default(), PortNames::default());
        for port in list {
            match port {
                Port::Numbers(protocol, first, last) => out.add(*protocol, *first, *last),
                Port::Named(protocol, name) => {
                    names.0.insert((*protocol, name.clone()));
                }
            }
        }
        (out, names)
    }

    /// Adds to a profile what a rule allows a pod in one direction. Named ports apply to pods only,
    /// not to IP blocks.
    fn add_rule(&mut self, profile: &mut Profile, side: Side, rule: &Rule, subject: &Pod) {
        let (ports, names) = match side {
            Side::Ingress => (Self::resolve(&rule.ports, subject), PortNames::default()),
            Side::Egress => Self::unresolved(&rule.ports),
        };
        let mut pods = |this: &mut Self, selector: &Selector, ports: &Ports| {
            if ports.is_empty() && names.0.is_empty() {
                return;
            }
            let number = this.selectors.of(selector.text());
            this.active.entry(number).or_insert_with(|| selector.clone());
            this.names.extend(names.0.iter().cloned());
            let entry = profile.pods.entry(number).or_default();
            entry.0.merge(ports);
            entry.1.0.extend(names.0.iter().cloned());
        };
        let mut blocks = Vec::new();
        match &rule.peers {
            Some(peers) => {
                for peer in peers {
                    match peer {
                        Peer::Pods(selector) => pods(self, selector, &ports),
                        Peer::Block(block, except) => blocks.extend(spans(block, except)),
                    }
                }
            }
            None => {
                if !names.0.is_empty() {
                    pods(self, &Selector::all_pods(), &Ports::default());
                }
                for family in Family::ALL {
                    blocks
                        .extend(Cidr::new(family.unspecified(), 0).map(|b| (b.first(), b.last())));
                }
            }
        }
        if !ports.is_empty() {
            profile.blocks.extend(blocks.into_iter().map(|span| (span, ports.clone())));
        }
    }

    /// The number of a profile; a profile that had a number keeps it.
    fn profile_number(&mut self, profile: Profile, now: &mut BTreeMap<Profile, u32>) -> u32 {
        if let Some(number) = now.get(&profile) {
            return *number;
        }
        let number = self.profiles.get(&profile).copied().unwrap_or_else(|| {
            let number = self.next_profile;
            self.next_profile = number.wrapping_add(1).max(1);
            number
        });
        now.insert(profile, number);
        number
    }

    fn selects(&self, selector: &Selector, namespace: &Arc<str>, pod: &Pod) -> bool {
        let inside = match &selector.within {
            Within::Own(own) => own == namespace,
            // The labels of an unknown namespace are unknown too, so nothing matches it.
            Within::Matching(labels) => {
                self.namespaces.get(namespace).is_some_and(|have| labels.matches(&**have))
            }
        };
        inside && selector.pods.matches(&*pod.labels)
    }

    fn class(&self, namespace: &Arc<str>, pod: &Pod) -> Option<Class> {
        let all = self.active.iter().filter(|(_, s)| self.selects(s, namespace, pod));
        let selectors: Vec<u32> = all.map(|(number, _)| *number).collect();
        if selectors.is_empty() {
            return None;
        }
        let used = |p: &&(String, u8, u16)| self.names.contains(&(p.1, p.0.clone()));
        let mut named: Vec<(u8, String, u16)> =
            pod.ports.iter().filter(used).map(|(n, p, port)| (*p, n.clone(), *port)).collect();
        named.compact_sort();
        named.dedup();
        Some(Class { selectors, named })
    }

    /// The API pod that corresponds to a pod of this node.
    fn api_pod(&self, local: &Local) -> Option<ObjectKey> {
        if local.key.name.is_empty() {
            // Leases of earlier versions have no names: find the pod by its address.
            let same = |k: &KnownPod| k.pod.addresses.iter().any(|a| local.addresses.contains(a));
            return self.pods.iter().find(|(_, k)| same(k)).map(|(key, _)| key.clone());
        }
        let known = self.pods.get(&local.key)?;
        (known.pod.is_mirror || *known.pod.uid == *local.uid).then(|| local.key.clone())
    }

    /// Computes what the kernel must enforce now.
    pub(crate) fn decide(&mut self) -> Decision {
        let mut out = Decision::default();
        let before = (std::mem::take(&mut self.active), std::mem::take(&mut self.names));
        let (mut profiles, mut local_addresses) = (BTreeMap::new(), BTreeMap::new());
        for local in std::mem::take(&mut self.local) {
            let identity = self.api_pod(&local);
            if let Some(key) = &identity {
                local_addresses.insert(key.clone(), local.addresses.clone());
            }
            self.isolate(&local, identity.as_ref(), &mut profiles, &mut out);
            self.local.push(local);
        }
        self.selectors.tidy();
        if before != (self.active.clone(), self.names.clone()) {
            self.round += 1;
        }
        let classes = self.classify(&local_addresses, &mut out);
        allowed(&profiles, &classes, &mut out);
        self.classes.tidy();
        self.dropping.tidy();
        self.groups.tidy();
        self.profiles = profiles;
        out
    }

    /// Assigns the profiles of a pod of this node that policies select.
    fn isolate(
        &mut self,
        local: &Local,
        identity: Option<&ObjectKey>,
        profiles: &mut BTreeMap<Profile, u32>,
        out: &mut Decision,
    ) {
        let namespace = Arc::clone(&identity.unwrap_or(&local.key).namespace);
        let start = ObjectKey { namespace: Arc::clone(&namespace), name: "".into() };
        let here: Vec<(ObjectKey, Policy)> = self
            .policies
            .range(start..)
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(key, policy)| (key.clone(), policy.clone()))
            .collect();
        if here.is_empty() {
            return;
        }
        let pod = identity.and_then(|key| self.pods.get(key)).map(|known| known.pod.clone());
        if pod.is_none() {
            out.unknown.insert(local.key.clone());
        }
        let mut isolated = false;
        for (side, set, drops) in [
            (Side::Ingress, SetName::Ingress, SetName::IngressDrops),
            (Side::Egress, SetName::Egress, SetName::EgressDrops),
        ] {
            let selects = |p: &Policy| pod.as_ref().is_none_or(|pod| p.pods.matches(&*pod.labels));
            let isolating: Vec<&(ObjectKey, Policy)> =
                here.iter().filter(|(_, p)| selects(p) && p.side(side).is_some()).collect();
            if isolating.is_empty() {
                continue;
            }
            let mut profile = Profile::default();
            if let Some(pod) = &pod {
                let rules = isolating.iter().filter_map(|(_, p)| p.side(side)).flatten();
                rules.for_each(|rule| self.add_rule(&mut profile, side, rule, pod));
            }
            let group = self.drop_group(&isolating, out);
            profile.blocks.compact_sort();
            profile.blocks.dedup();
            let number = self.profile_number(profile, profiles);
            isolated = true;
            for address in &local.addresses {
                let (key, data) =
                    (Value::default().address(*address), Value::default().number(number));
                let leads = Element::to_chain(key.0.clone(), group_chain(group));
                out.add(Family::of(*address), set, Element::pair(key.0, data.0));
                out.add(Family::of(*address), drops, leads);
            }
        }
        for address in local.addresses.iter().filter(|_| isolated) {
            let twice = Value::default().address(*address).address(*address);
            out.add(Family::of(*address), SetName::Own, Element::key(twice.0));
        }
    }

    /// The number of the set of policies that isolate a pod in one direction.
    fn drop_group(&mut self, policies: &[&(ObjectKey, Policy)], out: &mut Decision) -> u32 {
        let mut numbers = Vec::with_capacity(policies.len());
        for (key, policy) in policies {
            let content = (key.clone(), policy.log);
            let number = self.dropping.of(content.clone());
            out.drops.policies.insert(number, content);
            numbers.push(number);
        }
        let group = self.groups.of(numbers.clone());
        out.drops.groups.insert(group, numbers);
        group
    }

    /// Assigns a class to each pod that a selector matches; returns the classes in use.
    fn classify(
        &mut self,
        local: &BTreeMap<ObjectKey, Vec<IpAddr>>,
        out: &mut Decision,
    ) -> BTreeMap<u32, Class> {
        let mut used: BTreeMap<u32, Class> = BTreeMap::new();
        if self.active.is_empty() {
            return used;
        }
        let mut taken: HashSet<IpAddr> = HashSet::new();
        let mut pods = std::mem::take(&mut self.pods);
        let mut order: Vec<&ObjectKey> = pods.keys().collect();
        // If two pods claim an address, the pod on this node has it.
        order.compact_sort_by_key(|key| (!local.contains_key(key), (*key).clone()));
        let order: Vec<ObjectKey> = order.into_iter().cloned().collect();
        let mut give =
            |this: &mut Self, class: Option<Class>, addresses: &[IpAddr]| -> Option<u32> {
                let class = class?;
                let number = this.classes.of(class.clone());
                used.entry(number).or_insert(class);
                for address in addresses.iter().filter(|a| taken.insert(**a)) {
                    let (key, data) =
                        (Value::default().address(*address), Value::default().number(number));
                    out.add(Family::of(*address), SetName::Classes, Element::pair(key.0, data.0));
                }
                Some(number)
            };
        let names: HashMap<u32, Class> =
            self.classes.known.iter().map(|(class, number)| (*number, class.clone())).collect();
        for key in order {
            let Some(known) = pods.get_mut(&key) else { continue };
            let class = match known.class {
                Some((round, class)) if round == self.round => {
                    class.and_then(|number| names.get(&number).cloned())
                }
                _ => self.class(&key.namespace, &known.pod),
            };
            let addresses = local.get(&key).unwrap_or(&known.pod.addresses);
            known.class = Some((self.round, give(self, class, addresses)));
        }
        let dns = self.class(&self.dns.0.namespace, &self.dns.1);
        let addresses = self.dns.1.addresses.clone();
        give(self, dns, &addresses);
        self.pods = pods;
        used
    }
}

/// Adds the elements for everything that profiles allow.
fn allowed(profiles: &BTreeMap<Profile, u32>, classes: &BTreeMap<u32, Class>, out: &mut Decision) {
    let mut with: HashMap<u32, Vec<u32>> = HashMap::new();
    for (number, class) in classes {
        for selector in &class.selectors {
            with.entry(*selector).or_default().push(*number);
        }
    }
    let span = |from: Value, to: Value| Element { end: Some(to.0), ..Element::key(from.0) };
    for (profile, number) in profiles {
        let mut pods: BTreeMap<u32, Ports> = BTreeMap::new();
        for (selector, (ports, names)) in &profile.pods {
            for class in with.get(selector).into_iter().flatten() {
                let all = pods.entry(*class).or_default();
                all.merge(ports);
                let named = classes.get(class).into_iter().flat_map(|c| &c.named);
                for (protocol, name, port) in named {
                    if names.0.contains(&(*protocol, name.clone())) {
                        all.add(*protocol, *port, *port);
                    }
                }
            }
        }
        for (class, ports) in &pods {
            for ((p, q), (first, last)) in ports.pieces() {
                let at = |protocol, port| {
                    Value::default().number(*number).number(*class).protocol(protocol).port(port)
                };
                for family in Family::ALL {
                    out.add(family, SetName::Pods, span(at(p, first), at(q, last)));
                }
            }
        }
        for family in Family::ALL {
            for ((low, high), ports) in apart(family, &profile.blocks) {
                for ((p, q), (first, last)) in ports.pieces() {
                    let at = |address, protocol, port| {
                        Value::default()
                            .number(*number)
                            .address(address)
                            .protocol(protocol)
                            .port(port)
                    };
                    out.add(family, SetName::Blocks, span(at(low, p, first), at(high, q, last)));
                }
            }
        }
    }
}
