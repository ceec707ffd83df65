//! Seats of priority levels: their nominal number, and what they lend and borrow (upstream's
//! `apf_controller.go`). Pure.

use std::time::Duration;

use super::alloc::{self, Want};
use super::integrator::{Integrator, Results};

/// How often seats are lent and given back (upstream's `borrowingAdjustmentPeriod`).
pub(crate) const PERIOD: Duration = Duration::from_secs(10);
/// How slowly a demand is forgotten: half of it in five minutes (upstream's
/// `seatDemandSmoothingCoefficient`).
const SMOOTHING: f64 = 0.977;
/// The part of a level's seats that one request may have (upstream's
/// `priorityLevelMaxSeatsPercent`).
const WIDTH_PART: f64 = 0.15;

/// Seats of a level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// What it is meant to have.
    pub(crate) nominal: i64,
    /// What it keeps when it lends all it may.
    pub(crate) min: i64,
    /// What it has when it borrows all it may.
    pub(crate) max: i64,
}

impl Limits {
    /// Of `shares` of `all` shares of a server with `server` seats; percentages of what may be lent
    /// and borrowed.
    pub(crate) fn of(
        server: i64,
        (shares, all): (i64, i64),
        lendable: Option<i64>,
        borrowing: Option<i64>,
    ) -> Self {
        let nominal = (server as f64 * shares as f64 / all as f64).ceil();
        let nominal = if nominal.is_finite() { nominal as i64 } else { 0 };
        let part = |percent: i64| (nominal as f64 * percent as f64 / 100.0).round() as i64;
        Self {
            nominal,
            min: nominal - lendable.map_or(0, part),
            max: nominal + borrowing.map_or(server, part),
        }
    }

    /// What a level begins with.
    pub(crate) fn initial(&self) -> i64 {
        self.nominal - (self.nominal - self.min) / 2
    }

    /// The most seats of one request, where flows have hands of so many queues.
    pub(crate) fn width(&self, hand: u32) -> u64 {
        let part = (self.nominal as f64 * WIDTH_PART).ceil();
        let per_queue = (self.nominal / i64::from(hand.max(1))) as f64;
        part.min(per_queue).max(1.0) as u64
    }
}

/// The demand of a level, smoothed (upstream's `seatDemandStats`).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Demand {
    pub(crate) average: f64,
    pub(crate) deviation: f64,
    pub(crate) high: i64,
    pub(crate) smoothed: f64,
}

impl Demand {
    fn update(&mut self, seen: Results) {
        self.high = seen.max.round() as i64;
        if seen.seconds <= 0.0 {
            return;
        }
        self.average = seen.average;
        self.deviation = if seen.deviation.is_nan() { 0.0 } else { seen.deviation };
        let envelope = self.average + self.deviation;
        self.smoothed = envelope.max(SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope);
    }

    /// Takes over what was seen until `until`, as it would have been taken over at the end of each
    /// whole period since `since`: nothing changed in those that nobody looked at.
    pub(crate) fn follow(&mut self, seen: &mut Integrator, since: Duration, until: Duration) {
        self.update(seen.reset(since + PERIOD));
        let more = until.saturating_sub(since).as_secs() / PERIOD.as_secs();
        // Half an hour is forgotten to 1.5 %, and after ten hours nothing is left to forget.
        for further in 2..=more.min(4000) {
            let at = since + PERIOD * u32::try_from(further).unwrap_or(u32::MAX);
            self.update(seen.reset(at));
        }
        if more > 4000 {
            self.update(seen.reset(until));
        }
    }

    /// Takes over what was seen until `now`, between two periods.
    pub(crate) fn note(&mut self, seen: &mut Integrator, now: Duration) {
        self.update(seen.reset(now));
    }
}

/// One level when seats are allotted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Holder {
    pub(crate) exempt: bool,
    pub(crate) limits: Limits,
    pub(crate) demand: Demand,
    /// What it has now.
    pub(crate) current: i64,
}

impl Holder {
    /// What it gets at least: what it wanted, as far as that is its own.
    fn least(&self) -> i64 {
        let wanted = self.demand.high;
        self.limits.min.max(if self.exempt { wanted } else { wanted.min(self.limits.nominal) })
    }

    /// What it should get.
    pub(crate) fn target(&self) -> f64 {
        if self.exempt { 0.0 } else { (self.least() as f64).max(self.demand.smoothed) }
    }
}

/// The seats of each level from now on, and the proportion of their targets that levels get.
pub(crate) fn allot(holders: &[Holder]) -> (Vec<i64>, f64) {
    let all: i64 = holders.iter().map(|h| h.limits.nominal).sum();
    let exempt: i64 = holders.iter().filter(|h| h.exempt).map(Holder::least).sum();
    let left = all - exempt;
    let limited = || holders.iter().filter(|h| !h.exempt);
    let min: i64 = limited().map(|h| h.limits.min).sum();
    let least: i64 = limited().map(Holder::least).sum();
    let each = |of: &dyn Fn(&Holder) -> i64| -> Vec<i64> {
        holders.iter().map(|h| if h.exempt { h.least() } else { of(h) }).collect()
    };
    if left <= min {
        return (each(&|h| h.limits.min), 0.0);
    }
    if left <= least {
        let part = (left - min) as f64 / (least - min) as f64;
        let share =
            |h: &Holder| h.limits.min + ((h.least() - h.limits.min) as f64 * part).round() as i64;
        return (each(&share), 0.0);
    }
    let wants: Vec<Want> = limited()
        .map(|h| Want { target: h.target(), lower: h.least() as f64, upper: h.limits.max as f64 })
        .collect();
    // Upstream divides all seats here, not those that exempt requests leave.
    match alloc::allocate(usize::try_from(all).unwrap_or_default(), &wants) {
        Ok((shares, fair)) => {
            let mut shares = shares.into_iter();
            let of = |h: &Holder| {
                if h.exempt { h.least() } else { shares.next().unwrap_or_default().round() as i64 }
            };
            (holders.iter().map(of).collect(), fair)
        }
        Err(error) => {
            tracing::debug!(error, "seats of priority levels stay as they are");
            (each(&|h| h.current), 0.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures that kube-apiserver 1.37 shows with its bootstrap objects and 600 seats.
    #[test]
    fn nominal_seats_are_rounded_up() {
        for (shares, lendable, nominal, min) in [
            (5, 0, 13, 13),
            (0, 0, 0, 0),
            (20, 50, 49, 24),
            (10, 0, 25, 25),
            (40, 25, 98, 73),
            (30, 33, 74, 50),
            (40, 50, 98, 49),
            (100, 90, 245, 24),
        ] {
            let limits = Limits::of(600, (shares, 245), Some(lendable), None);
            assert_eq!(limits, Limits { nominal, min, max: nominal + 600 }, "{shares}");
        }
        let limits = Limits::of(600, (100, 245), None, Some(10));
        assert_eq!(limits, Limits { nominal: 245, min: 245, max: 270 });
        assert_eq!(Limits::of(600, (0, 0), None, None).nominal, 0);
    }

    /// Upstream's `TestMaxSeats`.
    #[test]
    fn one_request_has_a_part_of_the_seats() {
        let width = |nominal, hand| Limits { nominal, min: 0, max: 0 }.width(hand);
        for (nominal, hand, seats) in [
            (5, 6, 1),
            (10, 6, 1),
            (15, 6, 2),
            (20, 6, 3),
            (35, 6, 5),
            (100, 6, 15),
            (200, 6, 30),
            (10, 1, 2),
            (100, 20, 5),
        ] {
            assert_eq!(width(nominal, hand), seats, "{nominal} {hand}");
        }
    }

    fn seen(
        wanted: [i64; 4],
        holders: &mut [Holder; 4],
        integrators: &mut [Integrator; 4],
        at: u64,
    ) {
        let at = Duration::from_secs(at);
        for ((holder, integrator), wanted) in holders.iter_mut().zip(integrators).zip(wanted) {
            integrator.set(at, wanted as f64);
            holder.demand.note(integrator, at + PERIOD);
        }
        let (seats, _) = allot(holders);
        for (holder, seats) in holders.iter_mut().zip(seats) {
            holder.current = seats;
        }
    }

    /// Upstream's `TestUpdateBorrowing`: exempt, workload-high (40 shares, half lendable),
    /// workload-low (100, nine tenths) and catch-all (5, nothing) with six seats a share.
    #[test]
    fn exempt_requests_borrow_first() {
        let server = 145 * 6;
        let of = |shares, lendable, exempt| {
            let limits = Limits::of(server, (shares, 145), Some(lendable), None);
            Holder { exempt, limits, demand: Demand::default(), current: 0 }
        };
        let mut all = [of(0, 0, true), of(40, 50, false), of(100, 90, false), of(5, 0, false)];
        let mut seats = [(); 4].map(|()| Integrator::new(Duration::ZERO));
        let current = |all: &[Holder; 4]| all.map(|h| h.current);
        // Everybody wants more than there is, exempt requests too: nothing is left but what is not
        // lent.
        let most = server + 100;
        seen([most; 4], &mut all, &mut seats, 0);
        assert_eq!(current(&all), [970, 120, 60, 30]);
        // Half of what is lent is borrowed: levels get half of the way between.
        let exempt = server - (180 + 330 + 30);
        seen([exempt, most, most, most], &mut all, &mut seats, 10);
        seen([exempt, most, most, most], &mut all, &mut seats, 20);
        assert_eq!(current(&all), [330, 180, 330, 30]);
        // One lends all it may, and exempt requests take it.
        let exempt = server - (240 + 60 + 30);
        seen([exempt, most, 1, most], &mut all, &mut seats, 30);
        seen([exempt, most, 1, most], &mut all, &mut seats, 40);
        assert_eq!(current(&all), [540, 240, 60, 30]);
    }

    /// The demands of upstream's `TestBorrowing`: 24 and 6 clients at two levels of 12 seats.
    #[test]
    fn levels_borrow_within_what_is_lendable_and_what_they_may() {
        for (lendable, borrowing) in [([50, 33], [67, 50]), ([50, 67], [33, 50])] {
            let of = |at: usize, wanted: f64| {
                let limits = Limits::of(24, (100, 200), Some(lendable[at]), Some(borrowing[at]));
                let demand = Demand {
                    average: wanted,
                    deviation: 0.0,
                    high: wanted as i64,
                    smoothed: wanted,
                };
                Holder { exempt: false, limits, demand, current: limits.initial() }
            };
            let (seats, _) = allot(&[of(0, 24.0), of(1, 6.0)]);
            assert_eq!(seats, [16, 8], "{lendable:?}");
        }
    }

    #[test]
    fn periods_that_nobody_looked_at_are_caught_up_with() {
        let mut each = Demand::default();
        let mut late = Demand::default();
        let mut seen = Integrator::new(Duration::ZERO);
        seen.set(Duration::ZERO, 8.0);
        seen.set(Duration::from_secs(4), 2.0);
        let mut other = seen.clone();
        for at in [10, 20, 30, 40] {
            each.note(&mut seen, Duration::from_secs(at));
        }
        late.follow(&mut other, Duration::ZERO, Duration::from_secs(40));
        assert_eq!(each, late);
        assert_eq!((late.high, late.average), (2, 2.0));
        assert!(late.smoothed > 2.0);
    }
}
