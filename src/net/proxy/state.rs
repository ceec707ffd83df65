//! The union of the elements that all Services need, and the difference since it was last applied;
//! pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::nft::set::Element;
use crate::proxy::rules::{DesiredElements, SetName, UdpTarget};

type ElementKey = (SetName, Vec<u8>, Option<Vec<u8>>);

fn element_key(name: SetName, element: &Element) -> ElementKey {
    (name, element.key.clone(), element.end.clone())
}

/// Elements to remove and to add, and which sets begin or cease to exist.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) delete: BTreeMap<SetName, Vec<Element>>,
    pub(crate) add: BTreeMap<SetName, Vec<Element>>,
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
    by_owner: HashMap<String, DesiredElements>,
    claims: HashMap<ElementKey, BTreeMap<String, Element>>,
    sizes: BTreeMap<SetName, usize>,
    before: HashMap<ElementKey, Option<Element>>,
    sets_before: Option<BTreeSet<SetName>>,
    udp_changed: BTreeSet<(IpAddr, u16)>,
}

fn is_dynamic(name: SetName) -> bool {
    matches!(name, SetName::Choose { .. } | SetName::Sticky { .. })
}

impl State {
    fn effective(&self, element_key: &ElementKey) -> Option<&Element> {
        self.claims.get(element_key).and_then(|c| c.values().next())
    }

    fn dynamic_sets(&self) -> BTreeSet<SetName> {
        self.sizes.keys().copied().filter(|n| is_dynamic(*n)).collect()
    }

    fn mark_dirty(&mut self, element_key: &ElementKey) {
        if !self.before.contains_key(element_key) {
            let now = self.effective(element_key).cloned();
            self.before.insert(element_key.clone(), now);
        }
    }

    /// Sets the elements of `owner`; an empty value removes it.
    pub(crate) fn replace(&mut self, owner: &str, wanted: DesiredElements) {
        if self.by_owner.get(owner) == Some(&wanted) {
            return;
        }
        if self.sets_before.is_none() {
            self.sets_before = Some(self.dynamic_sets());
        }
        let old = self.by_owner.remove(owner).unwrap_or_default();
        for (name, element) in &old.elements {
            let element_key = element_key(*name, element);
            self.mark_dirty(&element_key);
            if let Some(claims) = self.claims.get_mut(&element_key)
                && claims.remove(owner).is_some()
                && claims.is_empty()
            {
                self.claims.remove(&element_key);
                if let Some(size) = self.sizes.get_mut(name) {
                    *size -= 1;
                    if *size == 0 {
                        self.sizes.remove(name);
                    }
                }
            }
        }
        for (name, element) in &wanted.elements {
            let element_key = element_key(*name, element);
            self.mark_dirty(&element_key);
            let claims = self.claims.entry(element_key).or_default();
            if claims.is_empty() {
                *self.sizes.entry(*name).or_default() += 1;
            }
            claims.insert(owner.to_owned(), element.clone());
        }
        if old.udp != wanted.udp {
            self.udp_changed.extend(old.udp.iter().chain(&wanted.udp).map(|(vip, _)| *vip));
        }
        if wanted != DesiredElements::default() {
            self.by_owner.insert(owner.to_owned(), wanted);
        }
    }

    /// The owners of elements.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &String> {
        self.by_owner.keys()
    }

    /// The difference since the last call.
    pub(crate) fn take_difference(&mut self) -> Difference {
        let mut out = Difference::default();
        for (element_key, old) in std::mem::take(&mut self.before) {
            let new = self.effective(&element_key).cloned();
            if old == new {
                continue;
            }
            if let Some(old) = old {
                out.delete.entry(element_key.0).or_default().push(old);
            }
            if let Some(new) = new {
                out.add.entry(element_key.0).or_default().push(new);
            }
        }
        let now = self.dynamic_sets();
        let before = self.sets_before.take().unwrap_or_else(|| now.clone());
        out.new_sets = now.difference(&before).copied().collect();
        out.gone_sets = before.difference(&now).copied().collect();
        for vip in std::mem::take(&mut self.udp_changed) {
            let keep: Vec<(IpAddr, u16)> = self
                .by_owner
                .values()
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
        for (element_key, claims) in &self.claims {
            out.entry(element_key.0).or_default().extend(claims.values().next());
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
            elements: vec![(name, Element::pair(vec![key], vec![data]))],
            udp: Vec::new(),
        }
    }

    #[test]
    fn only_what_differs_is_applied_and_the_first_owner_holds_a_contested_key() {
        let name = SetName::HostPorts;
        let mut state = State::default();
        state.replace("b", wanted(name, 1, 2));
        assert_eq!(state.take_difference().add[&name], [Element::pair(vec![1], vec![2])]);
        state.replace("a", wanted(name, 1, 3));
        let changed = state.take_difference();
        assert_eq!(changed.delete[&name], [Element::pair(vec![1], vec![2])]);
        assert_eq!(changed.add[&name], [Element::pair(vec![1], vec![3])]);
        state.replace("b", DesiredElements::default());
        assert!(state.take_difference().is_empty());
        state.replace("a", DesiredElements::default());
        assert_eq!(state.take_difference().delete[&name], [Element::pair(vec![1], vec![3])]);
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
