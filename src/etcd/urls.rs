//! Validation of peer URLs as in etcd (`types.NewURLs`).

use tonic::Status;

/// The part of a URL after its scheme.
pub(crate) fn address(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, address)| address)
}

fn is_url(url: &str) -> bool {
    let Some((scheme, address)) = url.trim().split_once("://") else { return false };
    match scheme {
        "unix" | "unixs" => true,
        "http" | "https" => {
            let Some((host, port)) = address.rsplit_once(':') else { return false };
            // A colon in a host belongs to an IPv6 address, which needs brackets.
            let bracketed = host.starts_with('[') && host.ends_with(']');
            !address.contains(['/', '?', '#'])
                && (bracketed || !host.contains(':'))
                && port.chars().all(|c| c.is_ascii_digit())
        }
        _ => false,
    }
}

/// Refuses strings that are not URLs of a member.
///
/// # Errors
/// The errors of etcd.
pub(crate) fn check(urls: &[String]) -> Result<(), Status> {
    if urls.is_empty() || !urls.iter().all(|url| is_url(url)) {
        return Err(Status::invalid_argument("etcdserver: given member URLs are invalid"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_a_member_has_a_scheme_and_a_port_and_no_path() {
        for good in ["http://a:1", "https://[::1]:2380", "http://127.0.0.1:2380"] {
            assert!(is_url(good), "{good}");
        }
        for bad in
            ["", "a:1", "ftp://a:1", "http://a", "http://a:1/path", "http://::1:1", "http://a:b"]
        {
            assert!(!is_url(bad), "{bad}");
        }
        assert!(check(&[]).is_err());
        assert_eq!(address("https://[::1]:2380"), "[::1]:2380");
    }
}
