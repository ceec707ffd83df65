//! The URL of static pods in `--kubelet-arg` and in files of KubeletConfiguration.

use std::time::Duration;

use node::StaticPodUrl;
use serde_json::Value;

use crate::command_line::components::Arguments;
use crate::command_line::components::kubelet::{URL, URL_HEADER};
use crate::error_catalogue::{BAD_VALUE, CommandError};

const INTERVAL: &str = "http-check-frequency";
/// The default of upstream, and the shortest interval.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(20);
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Parses the settings. Errors contain neither the URL nor the value of a header: both may be
/// secret.
///
/// # Errors
/// The first argument that is invalid, by name.
pub(super) fn parse(arguments: &mut Arguments) -> Result<Option<StaticPodUrl>, CommandError> {
    let interval = arguments.duration(INTERVAL, INTERVAL_MIN)?.unwrap_or(INTERVAL_DEFAULT);
    let headers = arguments.values(URL_HEADER).iter().map(|text| headers(text));
    let headers = headers.collect::<Result<Vec<_>, _>>().map_err(|error| {
        BAD_VALUE.usage_error(format!("{}: {error}", arguments.place(URL_HEADER)))
    })?;
    let Some(url) = arguments.value(URL) else {
        for name in [INTERVAL, URL_HEADER] {
            if arguments.value(name).is_some() {
                let note = format!("{}: there is no {URL}", arguments.place(name));
                arguments.without_effect.push(note);
            }
        }
        return Ok(None);
    };
    let url = StaticPodUrl::new(url, &headers.concat(), interval);
    url.map(Some)
        .map_err(|error| BAD_VALUE.usage_error(format!("{}: {error}", arguments.place(URL))))
}

/// The text is no list of headers (`ColonSeparatedMultimapStringString`).
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed pair, expect string:string")]
struct MalformedPair;

/// `NAME:VALUE,…`, or the object of a file.
fn headers(text: &str) -> Result<Vec<(String, String)>, MalformedPair> {
    if text.starts_with('{') {
        return of_object(text).ok_or(MalformedPair);
    }
    let pair = |part: &str| {
        let (name, value) = part.split_once(':').ok_or(MalformedPair)?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    text.split(',').filter(|part| !part.is_empty()).map(pair).collect()
}

fn of_object(text: &str) -> Option<Vec<(String, String)>> {
    let object: Value = serde_json::from_str(text).ok()?;
    let mut headers = Vec::new();
    for (name, values) in object.as_object()? {
        for value in values.as_array()? {
            headers.push((name.clone(), value.as_str()?.to_owned()));
        }
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::components::kubelet::KUBELET;

    fn run(given: &[&str]) -> Result<(Option<String>, Vec<String>), String> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        let mut arguments = KUBELET.parse(&given).map_err(|error| error.to_string())?;
        let url = parse(&mut arguments).map_err(|error| error.to_string())?;
        Ok((url.map(|url| format!("{url:?}")), arguments.without_effect))
    }

    #[test]
    fn headers_are_pairs_or_the_object_of_a_file() {
        let pairs = |list: &[(&str, &str)]| -> Result<Vec<(String, String)>, MalformedPair> {
            Ok(list.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
        };
        assert_eq!(
            headers("a:hello,b: again,c:x:y"),
            pairs(&[("a", "hello"), ("b", "again"), ("c", "x:y")])
        );
        assert_eq!(headers(r#"{"a": ["1, 2", "3"]}"#), pairs(&[("a", "1, 2"), ("a", "3")]));
        assert_eq!(headers("a"), Err(MalformedPair));
        assert_eq!(headers(r#"{"a": "1"}"#), Err(MalformedPair));
    }

    #[test]
    fn a_url_may_have_headers_and_an_interval() {
        let (url, notes) = run(&[
            "manifest-url=https://u:hush@m.example/pods",
            "manifest-url-header=a:1,b:2",
            "manifest-url-header=b:3",
            "http-check-frequency=5s",
        ])
        .unwrap();
        assert_eq!(url.as_deref(), Some("StaticPodUrl(https://m.example/pods)"));
        assert_eq!(notes, [""; 0]);
    }

    #[test]
    fn headers_and_an_interval_without_a_url_have_no_effect() {
        let (url, notes) = run(&["manifest-url-header=a:1", "http-check-frequency=5s"]).unwrap();
        assert_eq!(url, None);
        assert_eq!(
            notes,
            [
                "--kubelet-arg=http-check-frequency: there is no manifest-url",
                "--kubelet-arg=manifest-url-header: there is no manifest-url"
            ]
        );
    }

    #[test]
    fn errors_contain_no_secret() {
        for (given, want) in [
            (&["manifest-url=ftp://hush@m"][..], "manifest-url: must be a URL with http:// or"),
            (&["manifest-url=hush"], "manifest-url: must be a URL: relative URL without a base"),
            (
                &["manifest-url=http://m", "manifest-url-header=hush"],
                "manifest-url-header: malformed pair, expect string:string",
            ),
            (
                &["manifest-url=http://m", "manifest-url-header=a:b,hush hush:x"],
                "manifest-url: header 2 has an invalid name",
            ),
            (&["http-check-frequency=0s"], "http-check-frequency=0s: must be at least 1s"),
        ] {
            let error = run(given).unwrap_err();
            assert!(error.contains(&format!("--kubelet-arg={want}")), "{error}");
            assert!(!error.contains("hush"), "{error}");
        }
    }
}
