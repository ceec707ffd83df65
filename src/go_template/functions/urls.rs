//! URLs.

use crate::error::Failure;
use crate::function::{Args, Call, Function, fixed};
use crate::go::url::Url;
use crate::signature::Param::{Map as Dict, Str};
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] =
    &[fixed("urlParse", &[Str], parse), fixed("urlJoin", &[Dict], join)];

fn parse(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let url = Url::parse(&args.text(0))
        .map_err(|error| Failure::new(format!("unable to parse url: {error}")))?;
    let hostname = url.hostname();
    let pairs = [
        ("scheme", url.scheme),
        ("host", url.host),
        ("hostname", hostname),
        ("path", url.path),
        ("query", url.raw_query),
        ("opaque", url.opaque),
        ("fragment", url.fragment),
        ("userinfo", url.userinfo.unwrap_or_default()),
    ];
    Ok(pairs.into_iter().map(|(key, value)| (key, Value::from(value))).collect())
}

fn join(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let dict = args.value(0);
    let text = |key: &str| match dict.get(key) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.to_string()),
        Some(value) => {
            let kind = value.kind_name();
            let rest = format!("must be of type string, but {kind} found");
            Err(Failure::new(format!("unable to parse {key} key, {rest}")))
        }
    };
    let mut url = Url {
        scheme: text("scheme")?,
        host: text("host")?,
        path: text("path")?,
        raw_query: text("query")?,
        opaque: text("opaque")?,
        fragment: text("fragment")?,
        ..Url::default()
    };
    let userinfo = text("userinfo")?;
    if !userinfo.is_empty() {
        let parsed = Url::parse(&format!("proto://{userinfo}@host"))
            .map_err(|error| Failure::new(format!("unable to parse userinfo in dict: {error}")))?;
        url.userinfo = parsed.userinfo;
    }
    Ok(Value::from(url.to_string()))
}
