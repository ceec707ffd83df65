//! Schedules compared with upstream: the tables of the tests of `github.com/robfig/cron/v3`, and
//! recorded answers of its parser, of its search and of upstream's validation
//! (`tests/cronjobs/record`, all of them `tests/cronjobs/compare`).

use std::io::Read as _;
use std::path::PathBuf;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::json;

use super::Schedule;
use crate::validation::batch::cron_job;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn next(schedule: &str, after: &str) -> Option<Timestamp> {
    Schedule::parse(schedule, &TimeZone::UTC).unwrap().next(at(after))
}

/// `spec_test.go`, `TestActivation`: whether a schedule activates at a time.
#[test]
fn schedules_activate_as_in_upstreams_table() {
    for (time, schedule, expected) in [
        ("2012-07-09T15:00Z", "0/15 * * * *", true),
        ("2012-07-09T15:45Z", "0/15 * * * *", true),
        ("2012-07-09T15:40Z", "0/15 * * * *", false),
        ("2012-07-09T15:05Z", "5/15 * * * *", true),
        ("2012-07-09T15:20Z", "5/15 * * * *", true),
        ("2012-07-09T15:50Z", "5/15 * * * *", true),
        ("2012-07-15T15:00Z", "0/15 * * Jul *", true),
        ("2012-07-15T15:00Z", "0/15 * * Jun *", false),
        ("2012-07-15T08:30Z", "30 08 ? Jul Sun", true),
        ("2012-07-15T08:30Z", "30 08 15 Jul ?", true),
        ("2012-07-16T08:30Z", "30 08 ? Jul Sun", false),
        ("2012-07-16T08:30Z", "30 08 15 Jul ?", false),
        ("2012-07-09T15:00Z", "@hourly", true),
        ("2012-07-09T15:04Z", "@hourly", false),
        ("2012-07-09T15:00Z", "@daily", false),
        ("2012-07-09T00:00Z", "@daily", true),
        ("2012-07-09T00:00Z", "@weekly", false),
        ("2012-07-08T00:00Z", "@weekly", true),
        ("2012-07-08T01:00Z", "@weekly", false),
        ("2012-07-08T00:00Z", "@monthly", false),
        ("2012-07-01T00:00Z", "@monthly", true),
        ("2012-07-15T00:00Z", "* * 1,15 * Sun", true),
        ("2012-06-15T00:00Z", "* * 1,15 * Sun", true),
        ("2012-08-01T00:00Z", "* * 1,15 * Sun", true),
        ("2012-07-15T00:00Z", "* * */10 * Sun", true),
        ("2012-07-15T00:00Z", "* * * * Mon", false),
        ("2012-07-09T00:00Z", "* * 1,15 * *", false),
        ("2012-07-15T00:00Z", "* * 1,15 * *", true),
        ("2012-07-15T00:00Z", "* * */2 * Sun", true),
    ] {
        let before = at(time) - jiff::SignedDuration::from_secs(1);
        let schedule_of = Schedule::parse(schedule, &TimeZone::UTC).unwrap();
        assert_eq!(schedule_of.next(before) == Some(at(time)), expected, "{schedule} {time}");
    }
}

/// `spec_test.go`, `TestNext` and `TestNextWithTz`, without the rows that use seconds.
#[test]
fn activations_follow_as_in_upstreams_table() {
    let york = |schedule: &str| format!("TZ=America/New_York {schedule}");
    let (spring, autumn) = ("2012-03-11T", "2012-11-04T");
    for (after, schedule, expected) in [
        ("2012-07-09T14:45:00Z", "0/15 * * * *", "2012-07-09T15:00:00Z"),
        ("2012-07-09T14:59:00Z", "0/15 * * * *", "2012-07-09T15:00:00Z"),
        ("2012-07-09T14:59:59Z", "0/15 * * * *", "2012-07-09T15:00:00Z"),
        ("2012-07-09T15:45:00Z", "20-35/15 * * * *", "2012-07-09T16:20:00Z"),
        ("2012-07-09T23:46:00Z", "*/15 * * * *", "2012-07-10T00:00:00Z"),
        ("2012-07-09T23:45:00Z", "20-35/15 * * * *", "2012-07-10T00:20:00Z"),
        ("2012-07-09T23:35:00Z", "0 0 9 Apr-Oct ?", "2012-08-09T00:00:00Z"),
        ("2012-07-09T23:35:00Z", "0 0 */5 Apr,Aug,Oct Mon", "2012-08-01T00:00:00Z"),
        ("2012-07-09T23:35:00Z", "0 0 */5 Oct Mon", "2012-10-01T00:00:00Z"),
        ("2012-07-09T23:35:00Z", "0 0 * Feb Mon", "2013-02-04T00:00:00Z"),
        ("2012-07-09T23:35:00Z", "0 0 * Feb Mon/2", "2013-02-01T00:00:00Z"),
        ("2012-12-31T23:59:45Z", "* * * * *", "2013-01-01T00:00:00Z"),
        ("2012-07-09T23:35:00Z", "0 0 29 Feb ?", "2016-02-29T00:00:00Z"),
        ("2018-10-17T05:00:00-04", "TZ=America/Sao_Paulo 0 9 10 * ?", "2018-11-10T06:00:00-05"),
        ("2018-02-14T05:00:00-05", "TZ=America/Sao_Paulo 0 9 22 * ?", "2018-02-22T07:00:00-05"),
        ("2016-01-03T13:09:03+0530", "TZ=Asia/Kolkata 14 14 * * *", "2016-01-03T14:14:00+0530"),
        ("2016-01-03T14:00:00+0530", "TZ=Asia/Kolkata 14 14 * * ?", "2016-01-03T14:14:00+0530"),
        ("2012-11-04T00:00:00-04", "TZ=America/New_York 0 3 3 * ?", "2012-12-03T03:00:00-05"),
        ("2012-03-11T00:00:00-05", "TZ=America/New_York 30 2 11 Mar ?", "2013-03-11T02:30:00-04"),
        ("2012-03-11T01:00:00-05", "TZ=America/New_York 0 1 * * ?", "2012-03-12T01:00:00-04"),
        ("2012-03-11T00:00:00-05", "TZ=America/New_York 0 2 * * ?", "2012-03-12T02:00:00-04"),
        ("2012-11-04T01:00:00-05", "TZ=America/New_York 0 1 * * ?", "2012-11-05T01:00:00-05"),
        ("2012-11-04T02:00:00-05", "TZ=America/New_York 0 2 * * ?", "2012-11-05T02:00:00-05"),
        ("2012-11-04T03:00:00-05", "TZ=America/New_York 0 3 * * ?", "2012-11-05T03:00:00-05"),
    ] {
        assert_eq!(next(schedule, after), Some(at(expected)), "{schedule} {after}");
    }
    for (day, after, schedule, expected) in [
        (spring, "00:00-05", "0 * * * ?", "01:00-05"),
        (spring, "01:00-05", "0 * * * ?", "03:00-04"),
        (spring, "03:00-04", "0 * * * ?", "04:00-04"),
        (spring, "04:00-04", "0 * * * ?", "05:00-04"),
        (spring, "00:00-05", "0 1 * * ?", "01:00-05"),
        (autumn, "00:00-04", "30 2 04 Nov ?", "02:30-05"),
        (autumn, "01:45-04", "30 1 04 Nov ?", "01:30-05"),
        (autumn, "00:00-04", "0 * * * ?", "01:00-04"),
        (autumn, "01:00-04", "0 * * * ?", "01:00-05"),
        (autumn, "01:00-05", "0 * * * ?", "02:00-05"),
        (autumn, "00:00-04", "0 1 * * ?", "01:00-04"),
        (autumn, "01:00-04", "0 1 * * ?", "01:00-05"),
        (autumn, "00:00-04", "0 2 * * ?", "02:00-05"),
        (autumn, "00:00-04", "0 3 * * ?", "03:00-05"),
    ] {
        let (after, expected) = (at(&format!("{day}{after}")), at(&format!("{day}{expected}")));
        let by_text = Schedule::parse(&york(schedule), &TimeZone::UTC).unwrap();
        assert_eq!(by_text.next(after), Some(expected), "{schedule} {after}");
        let zone = super::load_location("America/New_York").unwrap();
        let local = Schedule::parse(schedule, &zone).unwrap();
        assert_eq!(local.next(after), Some(expected), "{schedule} {after}");
    }
    for never in ["0 0 30 Feb ?", "0 0 31 Apr ?", ", * * * *", "0 , * * *", ", , , , ,"] {
        assert_eq!(next(never, "2012-07-09T23:35:00Z"), None, "{never}");
    }
}

/// `constantdelay_test.go`, `TestConstantDelayNext`, and a negative delay.
#[test]
fn delays_are_whole_seconds() {
    for (after, schedule, expected) in [
        ("2012-07-09T14:45:00Z", "@every 15m50ns", "2012-07-09T15:00:00Z"),
        ("2012-07-09T14:59:00Z", "@every 15m", "2012-07-09T15:14:00Z"),
        ("2012-07-09T14:59:59Z", "@every 15m", "2012-07-09T15:14:59Z"),
        ("2012-07-09T15:45:00Z", "@every 35m", "2012-07-09T16:20:00Z"),
        ("2012-07-09T23:46:00Z", "@every 14m", "2012-07-10T00:00:00Z"),
        ("2012-07-09T23:45:00Z", "@every 35m", "2012-07-10T00:20:00Z"),
        ("2012-07-09T23:35:51Z", "@every 44m24s", "2012-07-10T00:20:15Z"),
        ("2012-07-09T23:35:51Z", "@every 25h44m24s", "2012-07-11T01:20:15Z"),
        ("2012-07-09T23:35:00Z", "@every 2184h25m", "2012-10-09T00:00:00Z"),
        ("2012-12-31T23:59:45Z", "@every 15s", "2013-01-01T00:00:00Z"),
        ("2012-07-09T14:45:00Z", "@every 15ms", "2012-07-09T14:45:01Z"),
        ("2012-07-09T14:45:00.005Z", "@every 15m", "2012-07-09T15:00:00Z"),
        ("2012-07-09T14:45:00.005Z", "@every 15m50ns", "2012-07-09T15:00:00Z"),
        ("2012-07-09T14:45:00Z", "@every -5m", "2012-07-09T14:45:01Z"),
    ] {
        assert_eq!(next(schedule, after), Some(at(expected)), "{schedule} {after}");
    }
}

/// Upstream's search does not end here.
#[test]
fn a_day_that_clocks_skip_ends_no_search() {
    let schedule = "TZ=Pacific/Apia 0 12 31 12 *";
    assert_eq!(next(schedule, "2011-12-28T00:00:00Z"), Some(at("2011-12-31T12:00:00+14")));
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Walk(Walk),
    Text(Text),
}

#[derive(Debug, Deserialize)]
struct Walk {
    schedule: String,
    zone: String,
    from: i64,
    to: i64,
    count: usize,
    hash: String,
}

#[derive(Debug, Deserialize)]
struct Text {
    schedule: String,
    zone: Option<String>,
    old: Option<String>,
    #[serde(rename = "oldZone")]
    old_zone: Option<String>,
    errors: Vec<String>,
}

impl Walk {
    /// The number of activations and their hash (FNV-1a over seconds).
    fn take(&self) -> (usize, String) {
        let text = format!("TZ={} {}", self.zone, self.schedule);
        let schedule = Schedule::parse(&text, &TimeZone::UTC).unwrap();
        let (mut count, mut hash) = (0, 14_695_981_039_346_656_037_u64);
        let mut at = Timestamp::from_second(self.from).unwrap();
        while let Some(next) = schedule.next(at).filter(|next| next.as_second() <= self.to) {
            count += 1;
            hash = (hash ^ next.as_second().cast_unsigned()).wrapping_mul(1_099_511_628_211);
            at = next;
        }
        (count, format!("{hash:016x}"))
    }
}

impl Text {
    fn errors(&self) -> Vec<String> {
        let object = |schedule: &str, zone: &Option<String>| {
            json!({"metadata": {"name": "c"}, "spec": {"schedule": schedule, "timeZone": zone,
                "concurrencyPolicy": "Allow"}})
        };
        let old = self.old.as_ref().map(|old| object(old, &self.old_zone));
        let errors = cron_job::validate(&object(&self.schedule, &self.zone), old.as_ref());
        let texts = errors.iter().map(ToString::to_string);
        let ours = |text: &String| {
            ["spec.schedule:", "spec.timeZone:"].iter().any(|p| text.starts_with(p))
        };
        texts.filter(ours).collect()
    }
}

#[test]
fn recorded_schedules_activate_and_are_refused_as_upstreams() {
    let kept = || PathBuf::from("testdata/schedules.jsonl.gz");
    #[allow(clippy::disallowed_methods, reason = "a file for more than the tree keeps")]
    let file = std::env::var("KUBE_LITE_CRONJOBS").map_or_else(|_| kept(), PathBuf::from);
    let mut text = String::new();
    let file = std::fs::File::open(file).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let (mut walks, mut activations, mut texts, mut differences) = (0, 0, 0, Vec::new());
    for line in text.lines().filter(|line| !line.starts_with("{\"step\"")) {
        match serde_json::from_str(line).unwrap() {
            Line::Walk(walk) => {
                let ours = walk.take();
                (walks, activations) = (walks + 1, activations + ours.0);
                if ours != (walk.count, walk.hash.clone()) {
                    differences.push(format!("{walk:?}: {ours:?}"));
                }
            }
            Line::Text(text) => {
                texts += 1;
                let ours = text.errors();
                if ours != text.errors {
                    differences.push(format!("{text:?}: {ours:?}"));
                }
            }
        }
    }
    assert!(walks > 1000 && texts > 100, "{walks} {texts}");
    let result = format!(
        "{activations} activations in {walks} stretches and {texts} texts compared, {} differences",
        differences.len()
    );
    assert!(differences.is_empty(), "{result}\n{}", differences.join("\n"));
    // For `cargo test -- --nocapture`.
    #[allow(clippy::print_stdout, reason = "the number is the result of tests/cronjobs/compare")]
    {
        println!("{result}");
    }
}
