//! The search: depth first over claims, requests and devices; the first solution is taken.

use super::AllocateError;
use super::checks::{Data, Location, RequestData, RequestIndex, Selection};
use super::device::{Attempt, ChosenDevice};
use crate::devices::allocator::DEVICES_MAX;
use crate::devices::pools::PoolState;
use crate::devices::request::Mode;

/// What was chosen for a claim.
#[derive(Debug)]
pub(super) struct ChosenClaim<'a> {
    /// For each request, the index of the alternative with its data.
    pub(super) requests: Vec<(usize, &'a RequestData)>,
    pub(super) devices: Vec<ChosenDevice<'a>>,
}

/// Why a branch of the search ends without deciding that it has no solution.
#[derive(Debug)]
pub(super) enum Stop {
    /// The claim would have more than [`DEVICES_MAX`] devices; the nearest prioritized list
    /// continues with its next subrequest.
    SizeExceeded,
    /// The whole search ends.
    Failed(AllocateError),
}

/// Whether a branch has a solution.
pub(super) type Outcome = Result<bool, Stop>;

/// A device that is needed: the n-th of a request.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    key: RequestIndex,
    device: i64,
}

/// Searches a solution for all claims; `None` if there is none.
///
/// # Errors
///
/// As `Allocator::allocate`.
pub(super) fn run<'a>(
    selection: Selection<'a>,
    data: &'a Data,
    is_expired: &'a dyn Fn() -> bool,
) -> Result<Option<Vec<ChosenClaim<'a>>>, AllocateError> {
    let alternatives = data.iter().map(|claim| vec![0; claim.len()]).collect();
    let mut search =
        Search { attempt: Attempt::new(selection), data, is_expired, selected: alternatives };
    match search.one(Need::default(), false, Location::default()) {
        Ok(true) => Ok(Some(search.chosen())),
        Ok(false) | Err(Stop::SizeExceeded) => Ok(None),
        Err(Stop::Failed(error)) => Err(error),
    }
}

struct Search<'a> {
    attempt: Attempt<'a>,
    data: &'a Data,
    is_expired: &'a dyn Fn() -> bool,
    /// The alternative of each request of each claim.
    selected: Vec<Vec<usize>>,
}

impl<'a> Search<'a> {
    fn chosen(self) -> Vec<ChosenClaim<'a>> {
        let claims = self.data.iter().zip(self.selected).zip(self.attempt.into_devices());
        let claims = claims.map(|((data, selected), devices)| {
            let requests = data.iter().zip(selected);
            let requests = requests.filter_map(|(all, index)| Some((index, all.get(index)?)));
            ChosenClaim { requests: requests.collect(), devices }
        });
        claims.collect()
    }

    /// Finds a device for a need and solutions for everything after it. `in_list` is set when the
    /// subrequest of `need` is already decided; devices before `from` were tried.
    fn one(&mut self, need: Need, in_list: bool, from: Location) -> Outcome {
        self.attempt.selection.allocator.count_step();
        if (self.is_expired)() {
            return Err(Stop::Failed(AllocateError::Timeout));
        }
        let key = need.key;
        let claims = self.attempt.selection.claims;
        let Some(claim) = claims.get(key.claim) else { return Ok(true) };
        let Some(request) = claim.requests.get(key.request) else {
            let key = RequestIndex { claim: key.claim + 1, ..RequestIndex::default() };
            let next = Need { key, device: 0 };
            return match self.one(next, false, Location::default()) {
                // Another subrequest of an earlier claim may leave other devices.
                Err(Stop::SizeExceeded) => Ok(false),
                other => other,
            };
        };
        if request.is_prioritized_list && !in_list {
            return self.list(need, request.alternatives.len());
        }
        let alternative = request.alternatives.get(key.alternative);
        let Some((wanted, data)) = alternative.zip(self.data_of(key)) else { return Ok(false) };
        let all = wanted.mode == Mode::All;
        if all && data.all.is_empty() {
            return Ok(false);
        }
        if need.device >= data.count {
            let key = RequestIndex { request: key.request + 1, alternative: 0, ..key };
            return self.one(Need { key, device: 0 }, false, Location::default());
        }
        let remaining = data.count - need.device;
        let free = DEVICES_MAX.saturating_sub(self.attempt.count(key.claim));
        if usize::try_from(remaining).map_or(true, |remaining| remaining > free) {
            return Err(Stop::SizeExceeded);
        }
        if all {
            self.next_of_all(need, in_list, data)
        } else {
            self.any(need, in_list, from, data)
        }
    }

    fn data_of(&self, key: RequestIndex) -> Option<&'a RequestData> {
        self.data.get(key.claim)?.get(key.request)?.get(key.alternative)
    }

    /// Tries the subrequests in order: the first one with which everything after it can be solved
    /// is selected.
    fn list(&mut self, need: Need, subrequests: usize) -> Outcome {
        let mut all_exceeded = true;
        for alternative in 0..subrequests {
            let key = RequestIndex { alternative, ..need.key };
            match self.one(Need { key, ..need }, true, Location::default()) {
                Err(Stop::SizeExceeded) => continue,
                Err(error) => return Err(error),
                Ok(false) => all_exceeded = false,
                Ok(true) => {
                    let claim = self.selected.get_mut(key.claim);
                    if let Some(selected) = claim.and_then(|claim| claim.get_mut(key.request)) {
                        *selected = alternative;
                    }
                    return Ok(true);
                }
            }
        }
        if all_exceeded { Err(Stop::SizeExceeded) } else { Ok(false) }
    }

    /// Takes the next of all devices; if it cannot be used, there is no solution.
    fn next_of_all(&mut self, need: Need, in_list: bool, data: &'a RequestData) -> Outcome {
        let index = usize::try_from(need.device).ok();
        let Some(at) = index.and_then(|index| data.all.get(index)).copied() else {
            return Ok(false);
        };
        let Some(undo) = self.attempt.allocate(need.key, at, true).map_err(Stop::Failed)? else {
            return Ok(false);
        };
        let next = Need { device: need.device + 1, ..need };
        let done = self.one(next, in_list, Location::default());
        if !matches!(done, Ok(true)) {
            self.attempt.undo(undo);
        }
        done
    }

    /// Tries every device from a position on.
    fn any(&mut self, need: Need, in_list: bool, from: Location, data: &RequestData) -> Outcome {
        let pools = self.attempt.selection.pools;
        for (pool, found) in pools.iter().enumerate().skip(from.pool) {
            if found.state != PoolState::Usable {
                continue;
            }
            let first_slice = if pool == from.pool { from.slice } else { 0 };
            for (slice, found) in found.slices.iter().enumerate().skip(first_slice) {
                let is_first = pool == from.pool && slice == from.slice;
                let first_device = if is_first { from.device } else { 0 };
                for device in first_device..found.devices.len() {
                    let at = Location { pool, slice, device };
                    if self.try_device(need, in_list, at, data)? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    fn try_device(
        &mut self,
        need: Need,
        in_list: bool,
        at: Location,
        data: &RequestData,
    ) -> Outcome {
        if !self.attempt.is_candidate(need.key, at, &data.class).map_err(Stop::Failed)? {
            return Ok(false);
        }
        let Some(undo) = self.attempt.allocate(need.key, at, false).map_err(Stop::Failed)? else {
            return Ok(false);
        };
        let next = Need { device: need.device + 1, ..need };
        // Devices of one request are taken in increasing order only: combinations, not
        // permutations. The next request starts from the beginning.
        let done = self.one(next, in_list, Location { device: at.device + 1, ..at });
        if !matches!(done, Ok(true)) {
            self.attempt.undo(undo);
        }
        done
    }
}
