//! `/debug/api_priority_and_fairness/…`: the current levels, queues and requests (upstream's
//! `apf_controller_debug.go`).

use std::collections::BTreeSet;
use std::time::Duration;

use super::control::Control;
use super::queues::Request;
use super::seats::SeatSeconds;

/// The prefix of the paths.
const PREFIX: &str = "/debug/api_priority_and_fairness/";

/// A table with one row per line. Cells are aligned like those of Go's `tabwriter` with a minimum
/// width of eight.
struct Table(Vec<Vec<String>>);

impl Table {
    fn new(heads: &[&str]) -> Self {
        Self(vec![heads.iter().map(|head| (*head).to_owned()).collect()])
    }

    fn text(self) -> String {
        let columns = self.0.first().map_or(0, Vec::len);
        let mut widths = vec![8_usize; columns];
        for row in &self.0 {
            for (width, cell) in widths.iter_mut().zip(row) {
                // The comma and a space.
                *width = (*width).max(cell.chars().count() + 2);
            }
        }
        let mut out = String::new();
        for row in &self.0 {
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                out.push_str(cell);
                if at + 1 < row.len() {
                    out.push(',');
                    let used = cell.chars().count() + 1;
                    out.extend(std::iter::repeat_n(' ', width.saturating_sub(used)));
                }
            }
            out.push('\n');
        }
        out
    }
}

impl Control {
    /// The text of a path; `None` for unknown paths.
    pub(crate) fn dump(&self, path: &str, details: bool) -> Option<String> {
        match path.strip_prefix(PREFIX)? {
            "dump_priority_levels" => Some(self.dump_levels()),
            "dump_queues" => Some(self.dump_queues()),
            "dump_requests" => Some(self.dump_requests(details)),
            _ => None,
        }
    }

    fn dump_levels(&self) -> String {
        let mut table = Table::new(&[
            "PriorityLevelName",
            "ActiveQueues",
            "IsIdle",
            "IsQuiescing",
            "WaitingRequests",
            "ExecutingRequests",
            "DispatchedRequests",
            "RejectedRequests",
            "TimedoutRequests",
            "CancelledRequests",
        ]);
        let state = self.state.lock();
        for level_state in &state.levels {
            let queues = level_state.level.queues.lock();
            let totals = queues.totals();
            let active = queues.queues().1.iter().filter(|queue| queue.waiting > 0).count();
            let is_quiescing =
                level_state.level.is_quiescing.load(std::sync::atomic::Ordering::Relaxed);
            table.0.push(vec![
                level_state.level.name.to_string(),
                active.to_string(),
                queues.is_idle().to_string(),
                is_quiescing.to_string(),
                totals.waiting.to_string(),
                totals.executing.to_string(),
                totals.dispatched.to_string(),
                totals.rejected.to_string(),
                "0".to_owned(),
                totals.cancelled.to_string(),
            ]);
        }
        table.text()
    }

    fn dump_queues(&self) -> String {
        let mut table = Table::new(&[
            "PriorityLevelName",
            "Index",
            "PendingRequests",
            "ExecutingRequests",
            "SeatsInUse",
            "NextDispatchR",
            "InitialSeatsSum",
            "MaxSeatsSum",
            "TotalWorkSum",
        ]);
        let state = self.state.lock();
        for level_state in &state.levels {
            let queues = level_state.level.queues.lock();
            let (count, busy) = queues.queues();
            // Empty queues are not stored. After a reduction of the number of queues, non-empty
            // ones can have a higher index.
            let shown =
                (0..count.min(QUEUES_SHOWN_MAX)).chain(busy.iter().map(|queue| queue.index));
            for index in shown.collect::<BTreeSet<u32>>() {
                let queue = busy.iter().find(|queue| queue.index == index);
                let (waiting, executing, seats, next, initial, most, work) =
                    queue.map_or((0, 0, 0, SeatSeconds(0), 0, 0, SeatSeconds(0)), |q| {
                        (
                            q.waiting,
                            q.executing,
                            q.seats_in_use,
                            q.next_r,
                            q.initial_seats,
                            q.seats,
                            q.work,
                        )
                    });
                table.0.push(vec![
                    level_state.level.name.to_string(),
                    index.to_string(),
                    waiting.to_string(),
                    executing.to_string(),
                    seats.to_string(),
                    next.to_string(),
                    initial.to_string(),
                    most.to_string(),
                    work.to_string(),
                ]);
            }
        }
        table.text()
    }

    fn dump_requests(&self, details: bool) -> String {
        let mut heads = vec![
            "PriorityLevelName",
            "FlowSchemaName",
            "QueueIndex",
            "RequestIndexInQueue",
            "FlowDistingsher",
            "ArriveTime",
            "InitialSeats",
            "FinalSeats",
            "AdditionalLatency",
            "StartTime",
        ];
        if details {
            heads.extend([
                "UserName",
                "Verb",
                "APIPath",
                "Namespace",
                "Name",
                "APIVersion",
                "Resource",
                "SubResource",
            ]);
        }
        let mut table = Table::new(&heads);
        let state = self.state.lock();
        for level_state in &state.levels {
            let queues = level_state.level.queues.lock();
            for queue in queues.queues().1 {
                for (at, request) in queues.waiting(queue).enumerate() {
                    table.0.push(self.row(request, at.to_string(), details));
                }
            }
            for request in queues.executing() {
                table.0.push(self.row(request, "-1".to_owned(), details));
            }
        }
        table.text()
    }

    fn row(&self, request: &Request, place: String, details: bool) -> Vec<String> {
        let described = request.description.as_deref();
        let work = &request.work;
        let nanos = i64::try_from(work.additional.as_nanos()).unwrap_or(i64::MAX);
        let mut row = vec![
            request.flow.level.to_string(),
            request.flow.name.to_string(),
            request.queue.map_or_else(|| "-1".to_owned(), |queue| queue.to_string()),
            place,
            described.map(|d| d.distinguisher.clone()).unwrap_or_default(),
            self.time(Some(request.arrived)),
            work.initial.to_string(),
            work.last.to_string(),
            api::codec::time::duration_text(nanos),
            self.time(request.started),
        ];
        if details {
            row.extend(described.map(|d| d.details.clone()).unwrap_or_default());
        }
        row
    }

    /// RFC 3339 with the necessary number of digits; Go's zero time for `None`.
    fn time(&self, at: Option<Duration>) -> String {
        let Some(at) = at else { return "0001-01-01T00:00:00Z".to_owned() };
        let nanos = i128::try_from((self.began + at).as_nanos()).unwrap_or_default();
        jiff::Timestamp::from_nanosecond(nanos).map(|time| time.to_string()).unwrap_or_default()
    }
}

/// The maximum number of empty queues per level in the output: an object can configure millions.
const QUEUES_SHOWN_MAX: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of Go's `tabwriter.NewWriter(w, 8, 0, 1, ' ', 0)`.
    #[test]
    fn cells_are_aligned() {
        let mut table = Table::new(&["PriorityLevelName", "Index", "Work"]);
        table.0.push(vec!["a".into(), "12345678".into(), "0.00000000ss".into()]);
        assert_eq!(
            table.text(),
            "PriorityLevelName, Index,    Work\na,                 12345678, 0.00000000ss\n"
        );
    }
}
