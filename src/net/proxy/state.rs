//! The union of the elements that all Services need, and the difference since it was last applied;
//! pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use sorting::{CollectOrdered as _, CompactSort as _};

use crate::nft::set::Element;
use crate::proxy::rules::{DesiredElements, SetName, UdpTarget};

/// A key of a set, with the element that holds it; equal to another with the same key.
#[derive(Debug, Clone)]
struct Claim {
    name: SetName,
    element: Arc<Element>,
}

impl PartialEq for Claim {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.element.key == other.element.key
            && self.element.end == other.element.end
    }
}

impl Eq for Claim {}

impl Hash for Claim {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.name, &self.element.key, &self.element.end).hash(state);
    }
}

/// The owners of one key. Nearly every key has one, so the others take no memory then.
#[derive(Debug)]
struct Owners {
    /// The first in name order; its element is in effect.
    first: Arc<str>,
    /// The other ones, sorted by name.
    others: Vec<(Arc<str>, Arc<Element>)>,
}

/// Elements to remove and to add, and which sets begin or cease to exist.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) delete: BTreeMap<SetName, Vec<Arc<Element>>>,
    pub(crate) add: BTreeMap<SetName, Vec<Arc<Element>>>,
    pub(crate) new_sets: Vec<SetName>,
    pub(crate) gone_sets: Vec<SetName>,
    /// UDP destinations whose endpoints changed, with those that may keep their connections.
    pub(crate) udp: HashMap<(IpAddr, u16), Vec<(IpAddr, u16)>>,
}

impl Difference {
    pub(crate) fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.add.is_empty() && self.udp.is_empty()
    }
}

/// The desired elements by owner. If several owners claim a key, the first in name order wins.
#[derive(Debug, Default)]
pub(crate) struct State {
    by_owner: HashMap<Arc<str>, DesiredElements>,
    /// The element of each key is that of its first owner.
    claims: HashMap<Claim, Owners>,
    sizes: BTreeMap<SetName, usize>,
    before: HashMap<Claim, Option<Arc<Element>>>,
    sets_before: Option<BTreeSet<SetName>>,
    udp_owners: HashMap<(IpAddr, u16), Vec<Arc<str>>>,
    udp_changed: BTreeSet<(IpAddr, u16)>,
    no_local: [usize; 2],
}

fn is_dynamic(name: SetName) -> bool {
    matches!(name, SetName::Choose { .. } | SetName::Sticky { .. })
}

impl State {
    fn effective(&self, claim: &Claim) -> Option<&Arc<Element>> {
        self.claims.get_key_value(claim).map(|(holder, _)| &holder.element)
    }

    fn dynamic_sets(&self) -> BTreeSet<SetName> {
        self.sizes.keys().copied().filter(|n| is_dynamic(*n)).collect_set()
    }

    fn mark_dirty(&mut self, claim: &Claim) {
        if !self.before.contains_key(claim) {
            let now = self.effective(claim).cloned();
            self.before.insert(claim.clone(), now);
        }
    }

    /// Adds or removes (`element` is `None`) the claim of `owner` to a key that has owners.
    fn change_claim(&mut self, owner: &Arc<str>, claim: &Claim, element: Option<Arc<Element>>) {
        let Some((holder, owners)) = self.claims.remove_entry(claim) else { return };
        let mut all = owners.others;
        all.push((owners.first, holder.element));
        all.retain(|(name, _)| name != owner);
        all.extend(element.map(|element| (Arc::clone(owner), element)));
        all.compact_sort_by(|a, b| a.0.cmp(&b.0));
        if all.is_empty() {
            self.resize(claim.name, false);
            return;
        }
        let (first, element) = all.remove(0);
        all.shrink_to_fit();
        self.claims.insert(Claim { name: claim.name, element }, Owners { first, others: all });
    }

    fn claim(&mut self, owner: &Arc<str>, claim: Claim) {
        if self.claims.contains_key(&claim) {
            let element = Arc::clone(&claim.element);
            self.change_claim(owner, &claim, Some(element));
            return;
        }
        self.resize(claim.name, true);
        self.claims.insert(claim, Owners { first: Arc::clone(owner), others: Vec::new() });
    }

    /// Counts one key more or less of a set.
    fn resize(&mut self, name: SetName, more: bool) {
        let size = self.sizes.entry(name).or_default();
        *size = if more { *size + 1 } else { size.saturating_sub(1) };
        if *size == 0 {
            self.sizes.remove(&name);
        }
    }

    /// Sets the elements of `owner`; an empty value removes it.
    pub(crate) fn replace(&mut self, owner: &str, wanted: DesiredElements) {
        let known = self.by_owner.get(owner);
        if known == Some(&wanted) || (known.is_none() && wanted == DesiredElements::default()) {
            return;
        }
        if self.sets_before.is_none() {
            self.sets_before = Some(self.dynamic_sets());
        }
        let (owner, old) = self
            .by_owner
            .remove_entry(owner)
            .unwrap_or_else(|| (Arc::from(owner), DesiredElements::default()));
        for (name, element) in &old.elements {
            let claim = Claim { name: *name, element: Arc::clone(element) };
            self.mark_dirty(&claim);
            self.change_claim(&owner, &claim, None);
        }
        for (name, element) in &wanted.elements {
            let claim = Claim { name: *name, element: Arc::clone(element) };
            self.mark_dirty(&claim);
            self.claim(&owner, claim);
        }
        self.replace_udp(&owner, &old.udp, &wanted.udp);
        for ((all, old), new) in self.no_local.iter_mut().zip(old.no_local).zip(wanted.no_local) {
            *all = all.saturating_sub(old).saturating_add(new);
        }
        if wanted != DesiredElements::default() {
            self.by_owner.insert(owner, wanted);
        }
    }

    fn replace_udp(&mut self, owner: &Arc<str>, old: &[UdpTarget], wanted: &[UdpTarget]) {
        if old == wanted {
            return;
        }
        for (vip, _) in old {
            if let Some(owners) = self.udp_owners.get_mut(vip) {
                owners.retain(|name| name != owner);
                if owners.is_empty() {
                    self.udp_owners.remove(vip);
                }
            }
        }
        for (vip, _) in wanted {
            let owners = self.udp_owners.entry(*vip).or_default();
            if !owners.contains(owner) {
                owners.push(Arc::clone(owner));
            }
        }
        self.udp_changed.extend(old.iter().chain(wanted).map(|(vip, _)| *vip));
    }

    /// How many ports have policy Local and no endpoint on this node: of cluster addresses, and of
    /// external ones.
    pub(crate) fn no_local(&self) -> [usize; 2] {
        self.no_local
    }

    /// The owners of elements.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_owner.keys()
    }

    /// The difference since the last call.
    pub(crate) fn take_difference(&mut self) -> Difference {
        let mut out = Difference::default();
        for (claim, old) in std::mem::take(&mut self.before) {
            let new = self.effective(&claim).cloned();
            if old == new {
                continue;
            }
            if let Some(old) = old {
                out.delete.entry(claim.name).or_default().push(old);
            }
            if let Some(new) = new {
                out.add.entry(claim.name).or_default().push(new);
            }
        }
        let now = self.dynamic_sets();
        let before = self.sets_before.take().unwrap_or_else(|| now.clone());
        out.new_sets = now.difference(&before).copied().collect();
        out.gone_sets = before.difference(&now).copied().collect();
        for vip in std::mem::take(&mut self.udp_changed) {
            let owners = self.udp_owners.get(&vip).into_iter().flatten();
            let keep: Vec<(IpAddr, u16)> = owners
                .filter_map(|owner| self.by_owner.get(owner))
                .flat_map(|w| &w.udp)
                .filter(|(v, _): &&UdpTarget| *v == vip)
                .flat_map(|(_, list)| list.iter().copied())
                .collect();
            out.udp.insert(vip, keep);
        }
        out
    }

    /// All elements, for a new table.
    pub(crate) fn all(&self) -> BTreeMap<SetName, Vec<&Element>> {
        let mut out: BTreeMap<SetName, Vec<&Element>> = BTreeMap::new();
        for claim in self.claims.keys() {
            out.entry(claim.name).or_default().push(&*claim.element);
        }
        out
    }

    /// The lookup maps that exist now, in rule order.
    pub(crate) fn lookups(&self) -> BTreeSet<SetName> {
        self.dynamic_sets()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(name: SetName, key: u8, data: u8) -> DesiredElements {
        DesiredElements {
            elements: vec![(name, Element::pair(vec![key], vec![data]).into())],
            ..DesiredElements::default()
        }
    }

    #[test]
    fn only_what_differs_is_applied_and_the_first_owner_holds_a_contested_key() {
        let name = SetName::HostPorts;
        let mut state = State::default();
        state.replace("b", wanted(name, 1, 2));
        assert_eq!(state.take_difference().add[&name], [Arc::new(Element::pair(vec![1], vec![2]))]);
        state.replace("a", wanted(name, 1, 3));
        let changed = state.take_difference();
        assert_eq!(changed.delete[&name], [Arc::new(Element::pair(vec![1], vec![2]))]);
        assert_eq!(changed.add[&name], [Arc::new(Element::pair(vec![1], vec![3]))]);
        state.replace("b", DesiredElements::default());
        assert!(state.take_difference().is_empty());
        state.replace("a", DesiredElements::default());
        assert_eq!(
            state.take_difference().delete[&name],
            [Arc::new(Element::pair(vec![1], vec![3]))]
        );
        assert!(state.all().is_empty());
    }

    #[test]
    fn lookup_maps_come_and_go_with_their_elements() {
        use crate::proxy::rules::Class;
        let two = SetName::Choose { class: Class::Main, count: 2, seconds: 0 };
        let three = SetName::Choose { class: Class::Main, count: 3, seconds: 0 };
        let mut state = State::default();
        state.replace("a", wanted(two, 1, 1));
        assert_eq!(state.take_difference().new_sets, [two]);
        state.replace("a", wanted(three, 1, 1));
        let changed = state.take_difference();
        assert_eq!((changed.new_sets, changed.gone_sets), (vec![three], vec![two]));
    }
}
