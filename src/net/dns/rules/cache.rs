//! `cache`: for how long answers are kept.

use std::time::Duration;

use super::duration;
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::plugins::{Reader, normal};

/// CoreDNS's bounds of a block that has none: longest time of answers and of denials, shortest of
/// both.
const SUCCESS: u32 = 3600;
const DENIAL: u32 = 1800;
const SHORTEST: u32 = 5;
/// The bounds without the plugin: shorter than CoreDNS's, so that a change of a name shows soon.
const DEFAULT_SUCCESS: u32 = 300;
const DEFAULT_DENIAL: u32 = 30;
/// TTL of answers that are served after their time (RFC 8767, section 4).
const STALE_TTL: u32 = 30;
/// How long a client waits for a server before it gets an old answer (RFC 8767, section 5).
const STALE_WAIT: Duration = Duration::from_millis(1800);

/// Answers after their time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stale {
    /// How long after their time.
    pub(crate) up_to: Duration,
    /// Only when no server answers in this time; at once without it.
    pub(crate) wait: Option<Duration>,
    /// Seconds that they may be kept.
    pub(crate) ttl: u32,
}

/// For how long answers are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheSettings {
    /// The plugin is in the configuration: records have the time that remains, as with CoreDNS.
    pub(crate) is_explicit: bool,
    /// Seconds, shortest and longest; none: not kept.
    pub(crate) success: Option<(u32, u32)>,
    pub(crate) denial: Option<(u32, u32)>,
    pub(crate) stale: Option<Stale>,
    /// Records keep the TTL that they had.
    pub(crate) keeps_ttl: bool,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            is_explicit: false,
            success: Some((0, DEFAULT_SUCCESS)),
            denial: Some((0, DEFAULT_DENIAL)),
            stale: Some(Stale {
                up_to: Duration::from_secs(3600),
                wait: Some(STALE_WAIT),
                ttl: STALE_TTL,
            }),
            keeps_ttl: false,
        }
    }
}

impl CacheSettings {
    /// Reads the plugin.
    pub(crate) fn parse(
        reader: Reader<'_>,
        directive: &Directive,
        notices: &mut Vec<String>,
    ) -> Result<Self, CorefileError> {
        let line = directive.line;
        let mut out = Self {
            is_explicit: true,
            success: Some((SHORTEST, SUCCESS)),
            denial: Some((SHORTEST, DENIAL)),
            stale: None,
            keeps_ttl: false,
        };
        let mut args: Vec<&str> = directive.args.iter().map(String::as_str).collect();
        if let Some(ttl) = args.first().filter(|text| text.parse::<i64>().is_ok()) {
            let ttl = reader.number("TTL", ttl, 1..=u32::MAX, line)?;
            out.success = Some((SHORTEST.min(ttl), ttl));
            out.denial = out.success;
            args.remove(0);
        }
        if args.iter().any(|zone| !normal(zone).is_empty()) {
            return Err(reader.error(line, "only the zones of the server block are supported"));
        }
        for inner in &directive.block {
            let (name, args, at) = reader.split(inner);
            match name {
                "success" => out.success = Some(bounds(reader, (name, &args), SUCCESS, at)?),
                "denial" => out.denial = Some(bounds(reader, (name, &args), DENIAL, at)?),
                "serve_stale" => out.stale = Some(stale(reader, &args, at)?),
                "keepttl" => out.keeps_ttl = true,
                "disable" => match args.as_slice() {
                    ["success"] => out.success = None,
                    ["denial"] => out.denial = None,
                    _ => {
                        return Err(
                            reader.error(at, "disable needs success or denial, without zones")
                        );
                    }
                },
                "prefetch" => {
                    notices.push("cache: prefetch: answers are renewed when they are used".into());
                }
                "servfail" if args == ["0"] || args == ["0s"] => {}
                _ => return Err(reader.error(at, format!("{name} is not supported"))),
            }
        }
        Ok(out)
    }
}

/// `success CAPACITY [TTL] [MINTTL]`; the capacity is one for all blocks here.
fn bounds(
    reader: Reader<'_>,
    (name, args): (&str, &[&str]),
    longest: u32,
    line: u32,
) -> Result<(u32, u32), CorefileError> {
    let number = |text: &str, from: u32| reader.number(name, text, from..=u32::MAX, line);
    let (capacity, longest, shortest) = match args {
        [capacity] => (capacity, longest, SHORTEST),
        [capacity, ttl] => (capacity, number(ttl, 1)?, SHORTEST),
        [capacity, ttl, shortest] => (capacity, number(ttl, 1)?, number(shortest, 0)?),
        _ => return Err(reader.error(line, format!("{name} needs CAPACITY [TTL] [MINTTL]"))),
    };
    number(capacity, 0)?;
    Ok((shortest.min(longest), longest))
}

/// `serve_stale [DURATION] [immediate [TTL] | verify [TIMEOUT] [TTL]]`.
fn stale(reader: Reader<'_>, args: &[&str], line: u32) -> Result<Stale, CorefileError> {
    let time = |text: &str| {
        let message = || format!("serve_stale: {text} is no duration");
        duration(text).ok_or_else(|| reader.error(line, message()))
    };
    let seconds = |text: &str| Ok(u32::try_from(time(text)?.as_secs()).unwrap_or(u32::MAX));
    let up_to = args.first().map_or(Ok(Duration::from_secs(3600)), |text| time(text))?;
    let mode = args.get(1).map_or("immediate".into(), |mode| mode.to_ascii_lowercase());
    let (wait, ttl) = match (mode.as_str(), args.get(2..).unwrap_or_default()) {
        ("immediate", []) => (None, 0),
        ("immediate", [ttl]) => (None, seconds(ttl)?),
        ("verify", []) => (Some(Duration::from_secs(5)), 0),
        ("verify", [timeout]) => (Some(time(timeout)?), 0),
        ("verify", [timeout, ttl]) => (Some(time(timeout)?), seconds(ttl)?),
        ("immediate" | "verify", _) => {
            return Err(reader.error(line, "serve_stale: a recheck time is not supported"));
        }
        _ => return Err(reader.error(line, format!("serve_stale: unknown mode {mode}"))),
    };
    Ok(Stale { up_to, wait, ttl })
}
