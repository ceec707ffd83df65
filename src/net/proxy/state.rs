//! The union of what all services want, and the difference since it was last applied; pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::nft::set::Element;
use crate::proxy::rules::{SetName, UdpTarget, Wanted};

type Place = (SetName, Vec<u8>, Option<Vec<u8>>);

fn place(name: SetName, element: &Element) -> Place {
    (name, element.key.clone(), element.end.clone())
}

/// Elements to take out and to put in, and which sets begin or end to exist.
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

/// What is wanted by whom. Of several claims to one key the first owner's, in name order, holds.
#[derive(Debug, Default)]
pub(crate) struct State {
    by_owner: HashMap<String, Wanted>,
    claims: HashMap<Place, BTreeMap<String, Element>>,
    sizes: BTreeMap<SetName, usize>,
    before: HashMap<Place, Option<Element>>,
    sets_before: Option<BTreeSet<SetName>>,
    udp_changed: BTreeSet<(IpAddr, u16)>,
}

fn is_dynamic(name: SetName) -> bool {
    matches!(name, SetName::Choose { .. } | SetName::Sticky { .. })
}

impl State {
    fn effective(&self, place: &Place) -> Option<&Element> {
        self.claims.get(place).and_then(|c| c.values().next())
    }

    fn dynamic_sets(&self) -> BTreeSet<SetName> {
        self.sizes.keys().copied().filter(|n| is_dynamic(*n)).collect()
    }

    fn note(&mut self, place: &Place) {
        if !self.before.contains_key(place) {
            let now = self.effective(place).cloned();
            self.before.insert(place.clone(), now);
        }
    }

    /// Sets what `owner` wants; an empty value removes it.
    pub(crate) fn replace(&mut self, owner: &str, wanted: Wanted) {
        if self.by_owner.get(owner) == Some(&wanted) {
            return;
        }
        if self.sets_before.is_none() {
            self.sets_before = Some(self.dynamic_sets());
        }
        let old = self.by_owner.remove(owner).unwrap_or_default();
        for (name, element) in &old.elements {
            let place = place(*name, element);
            self.note(&place);
            if let Some(claims) = self.claims.get_mut(&place)
                && claims.remove(owner).is_some()
                && claims.is_empty()
            {
                self.claims.remove(&place);
                if let Some(size) = self.sizes.get_mut(name) {
                    *size -= 1;
                    if *size == 0 {
                        self.sizes.remove(name);
                    }
                }
            }
        }
        for (name, element) in &wanted.elements {
            let place = place(*name, element);
            self.note(&place);
            let claims = self.claims.entry(place).or_default();
            if claims.is_empty() {
                *self.sizes.entry(*name).or_default() += 1;
            }
            claims.insert(owner.to_owned(), element.clone());
        }
        if old.udp != wanted.udp {
            self.udp_changed.extend(old.udp.iter().chain(&wanted.udp).map(|(vip, _)| *vip));
        }
        if wanted != Wanted::default() {
            self.by_owner.insert(owner.to_owned(), wanted);
        }
    }

    /// Who wants something.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &String> {
        self.by_owner.keys()
    }

    /// The difference since the last call.
    pub(crate) fn take_difference(&mut self) -> Difference {
        let mut out = Difference::default();
        for (place, old) in std::mem::take(&mut self.before) {
            let new = self.effective(&place).cloned();
            if old == new {
                continue;
            }
            if let Some(old) = old {
                out.delete.entry(place.0).or_default().push(old);
            }
            if let Some(new) = new {
                out.add.entry(place.0).or_default().push(new);
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

    /// Everything, for a table made anew.
    pub(crate) fn all(&self) -> BTreeMap<SetName, Vec<&Element>> {
        let mut out: BTreeMap<SetName, Vec<&Element>> = BTreeMap::new();
        for (place, claims) in &self.claims {
            out.entry(place.0).or_default().extend(claims.values().next());
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

    fn wanted(name: SetName, key: u8, data: u8) -> Wanted {
        Wanted { elements: vec![(name, Element::pair(vec![key], vec![data]))], udp: Vec::new() }
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
        state.replace("b", Wanted::default());
        assert!(state.take_difference().is_empty());
        state.replace("a", Wanted::default());
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
