//! The order in which servers are dialled.

use sorting::CompactSort as _;

use super::Health;

/// Returns indices of `entries`: the `current` server unless it is unreachable, then connected,
/// reached, untried and unreachable ones. The random `draw` rotates equal ones, so that many agents
/// spread over the servers.
pub(super) fn order(entries: &[(&str, Health)], current: Option<&str>, draw: u64) -> Vec<usize> {
    let rank = |health: Health| match health {
        Health::Connected => 1,
        Health::Reached => 2,
        Health::Untried => 3,
        Health::Unreachable => 4,
    };
    let count = entries.len().max(1);
    let shift = usize::try_from(draw % count as u64).unwrap_or_default();
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.compact_sort_by_key(|at| {
        let Some((address, health)) = entries.get(*at) else { return (u8::MAX, 0) };
        let is_current = Some(*address) == current && *health != Health::Unreachable;
        (if is_current { 0 } else { rank(*health) }, (at + shift) % count)
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_server_is_first_and_unreachable_ones_are_last() {
        let entries = [
            ("dead:1", Health::Unreachable),
            ("new:1", Health::Untried),
            ("current:1", Health::Untried),
            ("up:1", Health::Connected),
        ];
        assert_eq!(order(&entries, Some("current:1"), 0), [2, 3, 1, 0]);
        assert_eq!(order(&entries, Some("dead:1"), 0)[0], 3);
        assert_eq!(order(&[], None, 5), [0_usize; 0]);
    }

    #[test]
    fn servers_of_equal_health_are_rotated_by_the_draw() {
        let entries =
            [("a:1", Health::Untried), ("b:1", Health::Untried), ("c:1", Health::Untried)];
        let firsts: Vec<usize> = (0..3).map(|draw| order(&entries, None, draw)[0]).collect();
        assert_eq!(firsts, [0, 2, 1]);
    }
}
