//! Sets of NUMA nodes as bits (`pkg/kubelet/cm/topologymanager/bitmask`).

/// Nodes that a mask can hold; the kernel's numbers are below this on every supported machine.
pub(crate) const NODES_MAX: usize = 64;

/// A set of NUMA nodes. The order of the type is that of the number whose bits it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NumaMask(u64);

impl NumaMask {
    /// The mask of these nodes; numbers from [`NODES_MAX`] on are left out.
    pub(crate) fn new(nodes: impl IntoIterator<Item = usize>) -> Self {
        let valid = nodes.into_iter().filter(|node| *node < NODES_MAX);
        Self(valid.fold(0, |bits, node| bits | 1_u64 << node))
    }

    pub(crate) fn count(self) -> usize {
        // At most 64.
        usize::try_from(self.0.count_ones()).unwrap_or(NODES_MAX)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn contains(self, node: usize) -> bool {
        node < NODES_MAX && self.0 & (1_u64 << node) != 0
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn is_superset(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The nodes in ascending order.
    pub(crate) fn nodes(self) -> impl Iterator<Item = usize> {
        (0..NODES_MAX).filter(move |node| self.contains(*node))
    }

    /// Whether the mask has fewer nodes than another one, or as many and is the smaller number.
    pub(crate) fn is_narrower(self, other: Self) -> bool {
        (self.count(), self.0) < (other.count(), other.0)
    }

    /// All masks of these nodes: smaller ones first, those of one size in lexicographic order.
    pub(crate) fn of_all_sizes(nodes: &[usize]) -> Vec<Self> {
        let mut out = Vec::new();
        for size in 1..=nodes.len() {
            out.extend(combinations(nodes, size).into_iter().map(Self::new));
        }
        out
    }
}

/// All choices of `size` items, which keep their order, in lexicographic order of the positions.
pub(crate) fn combinations(items: &[usize], size: usize) -> Vec<Vec<usize>> {
    fn extend(items: &[usize], size: usize, chosen: &mut Vec<usize>, out: &mut Vec<Vec<usize>>) {
        if size == 0 {
            return out.push(chosen.clone());
        }
        for (at, item) in items.iter().enumerate() {
            let rest = items.get(at + 1..).unwrap_or_default();
            if rest.len() + 1 < size {
                break;
            }
            chosen.push(*item);
            extend(rest, size - 1, chosen, out);
            chosen.pop();
        }
    }
    let mut out = Vec::new();
    if size > 0 {
        extend(items, size, &mut Vec::new(), &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_listed_by_size_and_position() {
        let masks = NumaMask::of_all_sizes(&[0, 2, 3]);
        let nodes: Vec<Vec<usize>> = masks.iter().map(|mask| mask.nodes().collect()).collect();
        let want: [&[usize]; 7] = [&[0], &[2], &[3], &[0, 2], &[0, 3], &[2, 3], &[0, 2, 3]];
        assert_eq!(nodes, want);
        assert_eq!(combinations(&[3, 1, 2], 2), [[3, 1], [3, 2], [1, 2]]);
        assert!(combinations(&[1], 0).is_empty() && combinations(&[1], 2).is_empty());
    }

    #[test]
    fn fewer_nodes_or_a_smaller_number_are_narrower() {
        let mask = |nodes: &[usize]| NumaMask::new(nodes.iter().copied());
        assert!(mask(&[3]).is_narrower(mask(&[0, 1])));
        assert!(mask(&[0, 1]).is_narrower(mask(&[0, 2])));
        assert!(!mask(&[1]).is_narrower(mask(&[1])) && !mask(&[1]).is_narrower(mask(&[0])));
        assert!(mask(&[0, 1]).is_superset(mask(&[1])) && mask(&[64]).is_empty());
        assert_eq!(mask(&[0, 1]).and(mask(&[1, 2])), mask(&[1]));
    }
}
