//! Calculates the seats of priority levels: their nominal number, and how many they lend and borrow
//! (upstream's `apf_controller.go`), without I/O.

use std::time::Duration;

use super::alloc::{self, SeatTarget};
use super::integrator::{Integrator, Results};

/// The interval of borrowing adjustments (upstream's `borrowingAdjustmentPeriod`).
pub(crate) const PERIOD: Duration = Duration::from_secs(10);
/// The decay of a demand per period, by half in five minutes (upstream's
/// `seatDemandSmoothingCoefficient`).
const SMOOTHING: f64 = 0.977;
/// The maximum share of a level's seats for one request (upstream's
/// `priorityLevelMaxSeatsPercent`).
const WIDTH_PART: f64 = 0.15;

/// The limits for the seats of a level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The nominal number.
    pub(crate) nominal: i64,
    /// The number if the level lends as many as possible.
    pub(crate) min: i64,
    /// The number if the level borrows as many as possible.
    pub(crate) max: i64,
}

impl Limits {
    /// The limits of a level with `shares` of `all` shares on a server with `server` seats;
    /// `lendable` and `borrowing` are percentages of the nominal number.
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

    /// The initial number of seats.
    pub(crate) fn initial(&self) -> i64 {
        self.nominal - (self.nominal - self.min) / 2
    }

    /// The maximum number of seats of one request; `hand` is the number of queues of a flow.
    pub(crate) fn width(&self, hand: u32) -> u64 {
        let part = (self.nominal as f64 * WIDTH_PART).ceil();
        let per_queue = (self.nominal / i64::from(hand.max(1))) as f64;
        part.min(per_queue).max(1.0) as u64
    }
}

/// The seat demand of a level (upstream's `seatDemandStats`).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Demand {
    pub(crate) average: f64,
    pub(crate) deviation: f64,
    pub(crate) high: i64,
    pub(crate) smoothed: f64,
}

impl Demand {
    fn update(&mut self, measured: Results) {
        self.high = measured.max.round() as i64;
        if measured.seconds <= 0.0 {
            return;
        }
        self.average = measured.average;
        self.deviation = if measured.deviation.is_nan() { 0.0 } else { measured.deviation };
        let envelope = self.average + self.deviation;
        self.smoothed = envelope.max(SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope);
    }

    /// Updates the demand once for each whole period between `since` and `until`. The demand was
    /// constant after the first period, because each change would have triggered an update.
    pub(crate) fn catch_up(&mut self, demand: &mut Integrator, since: Duration, until: Duration) {
        self.update(demand.reset(since + PERIOD));
        let periods = until.saturating_sub(since).as_secs() / PERIOD.as_secs();
        // An old demand has decayed to 1.5 % after half an hour, and to nothing after 4000 periods.
        for period in 2..=periods.min(4000) {
            let end = since + PERIOD * u32::try_from(period).unwrap_or(u32::MAX);
            self.update(demand.reset(end));
        }
        if periods > 4000 {
            self.update(demand.reset(until));
        }
    }

    /// Updates the demand at `now`, between two periods.
    pub(crate) fn update_at(&mut self, demand: &mut Integrator, now: Duration) {
        self.update(demand.reset(now));
    }
}

/// A level in the allocation of seats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Holder {
    pub(crate) exempt: bool,
    pub(crate) limits: Limits,
    pub(crate) demand: Demand,
    /// The current number of seats.
    pub(crate) current: i64,
}

impl Holder {
    /// The guaranteed number of seats: the demand up to the nominal number.
    fn guaranteed(&self) -> i64 {
        let demand = self.demand.high;
        self.limits.min.max(if self.exempt { demand } else { demand.min(self.limits.nominal) })
    }

    /// The target number of seats.
    pub(crate) fn target(&self) -> f64 {
        if self.exempt { 0.0 } else { (self.guaranteed() as f64).max(self.demand.smoothed) }
    }
}

/// Calculates the seats of each level, and the fair proportion of targets and seats.
pub(crate) fn allocate(holders: &[Holder]) -> (Vec<i64>, f64) {
    let all: i64 = holders.iter().map(|h| h.limits.nominal).sum();
    let exempt: i64 = holders.iter().filter(|h| h.exempt).map(Holder::guaranteed).sum();
    let left = all - exempt;
    let limited = || holders.iter().filter(|h| !h.exempt);
    let min: i64 = limited().map(|h| h.limits.min).sum();
    let guaranteed: i64 = limited().map(Holder::guaranteed).sum();
    let each = |of: &dyn Fn(&Holder) -> i64| -> Vec<i64> {
        holders.iter().map(|h| if h.exempt { h.guaranteed() } else { of(h) }).collect()
    };
    if left <= min {
        return (each(&|h| h.limits.min), 0.0);
    }
    if left <= guaranteed {
        let part = (left - min) as f64 / (guaranteed - min) as f64;
        let share = |h: &Holder| {
            h.limits.min + ((h.guaranteed() - h.limits.min) as f64 * part).round() as i64
        };
        return (each(&share), 0.0);
    }
    let targets: Vec<SeatTarget> = limited()
        .map(|h| SeatTarget {
            target: h.target(),
            lower: h.guaranteed() as f64,
            upper: h.limits.max as f64,
        })
        .collect();
    // Upstream divides all seats here, not those that exempt levels leave.
    match alloc::allocate(usize::try_from(all).unwrap_or_default(), &targets) {
        Ok((shares, fair)) => {
            let mut shares = shares.into_iter();
            let of = |h: &Holder| {
                if h.exempt {
                    h.guaranteed()
                } else {
                    shares.next().unwrap_or_default().round() as i64
                }
            };
            (holders.iter().map(of).collect(), fair)
        }
        Err(error) => {
            tracing::debug!(%error, "flow control: the seats of priority levels are unchanged");
            (each(&|h| h.current), 0.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The metrics of kube-apiserver 1.37 with its bootstrap objects and 600 seats.
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
    fn one_request_gets_at_most_a_share_of_the_seats() {
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

    fn run_period(
        demands: [i64; 4],
        holders: &mut [Holder; 4],
        integrators: &mut [Integrator; 4],
        at: u64,
    ) {
        let at = Duration::from_secs(at);
        for ((holder, integrator), demand) in holders.iter_mut().zip(integrators).zip(demands) {
            integrator.set(at, demand as f64);
            holder.demand.update_at(integrator, at + PERIOD);
        }
        let (seats, _) = allocate(holders);
        for (holder, seats) in holders.iter_mut().zip(seats) {
            holder.current = seats;
        }
    }

    /// Upstream's `TestUpdateBorrowing`: exempt, workload-high (40 shares, half lendable),
    /// workload-low (100, nine tenths) and catch-all (5, nothing) with six seats a share.
    #[test]
    fn exempt_levels_borrow_first() {
        let server = 145 * 6;
        let of = |shares, lendable, exempt| {
            let limits = Limits::of(server, (shares, 145), Some(lendable), None);
            Holder { exempt, limits, demand: Demand::default(), current: 0 }
        };
        let mut all = [of(0, 0, true), of(40, 50, false), of(100, 90, false), of(5, 0, false)];
        let mut seats = [(); 4].map(|()| Integrator::new(Duration::ZERO));
        let current = |all: &[Holder; 4]| all.map(|h| h.current);
        // All levels demand more than all seats: the others keep only their minimum.
        let most = server + 100;
        run_period([most; 4], &mut all, &mut seats, 0);
        assert_eq!(current(&all), [970, 120, 60, 30]);
        // The exempt level borrows half of the lendable seats.
        let exempt = server - (180 + 330 + 30);
        run_period([exempt, most, most, most], &mut all, &mut seats, 10);
        run_period([exempt, most, most, most], &mut all, &mut seats, 20);
        assert_eq!(current(&all), [330, 180, 330, 30]);
        // One level lends all it can, and the exempt level borrows it.
        let exempt = server - (240 + 60 + 30);
        run_period([exempt, most, 1, most], &mut all, &mut seats, 30);
        run_period([exempt, most, 1, most], &mut all, &mut seats, 40);
        assert_eq!(current(&all), [540, 240, 60, 30]);
    }

    /// The demands of upstream's `TestBorrowing`: 24 and 6 clients at two levels of 12 seats.
    #[test]
    fn levels_borrow_within_their_limits() {
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
            let (seats, _) = allocate(&[of(0, 24.0), of(1, 6.0)]);
            assert_eq!(seats, [16, 8], "{lendable:?}");
        }
    }

    #[test]
    fn catching_up_equals_an_update_in_each_period() {
        let mut each = Demand::default();
        let mut late = Demand::default();
        let mut demand = Integrator::new(Duration::ZERO);
        demand.set(Duration::ZERO, 8.0);
        demand.set(Duration::from_secs(4), 2.0);
        let mut other = demand.clone();
        for at in [10, 20, 30, 40] {
            each.update_at(&mut demand, Duration::from_secs(at));
        }
        late.catch_up(&mut other, Duration::ZERO, Duration::from_secs(40));
        assert_eq!(each, late);
        assert_eq!((late.high, late.average), (2, 2.0));
        assert!(late.smoothed > 2.0);
    }
}
