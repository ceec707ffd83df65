//! Values of the Kubernetes libraries: named formats, addresses, networks, URLs, quantities,
//! versions and authorizer queries.

mod authorizer;
mod quantity;
mod semver;
mod url;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

pub use authorizer::{Authorize, Check, Decision};
pub(crate) use authorizer::{AuthorizerQuery, Stage};
pub(crate) use quantity::Quantity;
pub(crate) use semver::Version;
pub(crate) use url::Url;

use crate::formats::Format;
use crate::value::Error;

/// A value of a Kubernetes library.
#[derive(Clone, Debug)]
pub struct Host(pub(crate) Kind);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Ip(IpAddr),
    Cidr(IpAddr, u8),
    Url(Arc<Url>),
    Quantity(Quantity),
    Semver(Arc<Version>),
    AuthorizerQuery(Arc<AuthorizerQuery>),
    Decision(Arc<Decision>),
    Format(&'static Format),
}

impl Host {
    /// Creates the variable `authorizer`, which checks the user of the request.
    pub fn authorizer(by: Arc<dyn Authorize>) -> Host {
        Host(Kind::AuthorizerQuery(Arc::new(AuthorizerQuery {
            by,
            stage: Stage::Authorizer,
            check: Check::default(),
        })))
    }

    /// Creates a quantity from its text.
    ///
    /// # Errors
    /// The text is not a quantity.
    pub fn quantity(text: &str) -> Result<Host, Error> {
        Quantity::parse(text).map(|q| Host(Kind::Quantity(q))).map_err(Error::new)
    }

    /// Creates a semantic version from its text, which must have the strict form of semver 2.0.0.
    ///
    /// # Errors
    /// The text of the library `blang/semver`.
    pub fn version(text: &str) -> Result<Host, Error> {
        let version = Version::parse(text).map_err(|error| Error::new(error.to_string()))?;
        Ok(Host(Kind::Semver(Arc::new(version))))
    }

    /// Creates the variable `authorizer.requestResource`, which is about the resource of the
    /// request.
    pub fn resource_check(by: Arc<dyn Authorize>, check: Check) -> Host {
        Host(Kind::AuthorizerQuery(Arc::new(AuthorizerQuery { by, stage: Stage::Resource, check })))
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match &self.0 {
            Kind::Ip(_) => "net.IP",
            Kind::Cidr(..) => "net.CIDR",
            Kind::Url(_) => "kubernetes.URL",
            Kind::Quantity(_) => "kubernetes.Quantity",
            Kind::Semver(_) => "kubernetes.Semver",
            Kind::AuthorizerQuery(asked) => asked.stage.type_name(),
            Kind::Decision(_) => "kubernetes.authorization.Decision",
            Kind::Format(_) => "kubernetes.NamedFormat",
        }
    }

    pub(crate) fn equal(&self, other: &Host) -> Result<bool, Error> {
        match (&self.0, &other.0) {
            (Kind::Ip(a), Kind::Ip(b)) => Ok(a == b),
            (Kind::Cidr(a, b), Kind::Cidr(c, d)) => Ok(a == c && b == d),
            (Kind::Url(a), Kind::Url(b)) => Ok(a == b),
            (Kind::Quantity(a), Kind::Quantity(b)) => Ok(a.nanos() == b.nanos()),
            (Kind::Semver(a), Kind::Semver(b)) => Ok(a.order(b).is_eq()),
            (Kind::Format(a), Kind::Format(b)) => Ok(a.name == b.name),
            _ => Err(Error::no_overload()),
        }
    }

    /// Size in bytes of an address or prefix; 1 for other values.
    pub(crate) fn size(&self) -> u64 {
        match &self.0 {
            Kind::Ip(IpAddr::V4(_)) => 4,
            Kind::Ip(IpAddr::V6(_)) => 16,
            Kind::Cidr(_, bits) => u64::from(*bits).div_ceil(8),
            _ => 1,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Ip(address) => write!(out, "{address}"),
            Kind::Cidr(address, bits) => write!(out, "{address}/{bits}"),
            Kind::Semver(version) => write!(out, "{version}"),
            _ => out.write_str(self.type_name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::check_values;

    /// Rows of `pkg/cel/library/ip_test.go` and `cidr_test.go`, and the types of
    /// `pkg/cel/{quantity,semver,url}.go` in k8s.io/apiserver.
    #[test]
    fn values_of_libraries_have_types_and_some_have_texts() {
        check_values(&[
            ("string(ip('192.168.0.1'))", "192.168.0.1"),
            ("string(cidr('192.168.0.0/24'))", "192.168.0.0/24"),
            ("type(ip('192.168.0.1'))", "net.IP"),
            ("type(cidr('192.168.0.0/24'))", "net.CIDR"),
            ("type(url('/a'))", "kubernetes.URL"),
            ("type(quantity('1'))", "kubernetes.Quantity"),
            ("type(semver('1.0.0'))", "kubernetes.Semver"),
        ]);
    }

    /// `Equal` of `pkg/cel/{ip,cidr,url,quantity,semver}.go` in k8s.io/apiserver.
    #[test]
    fn values_of_one_library_are_equal_by_value() {
        check_values(&[
            ("ip('2001:db8::1') == ip('2001:0db8::1')", "true"),
            ("cidr('10.0.0.0/8') == cidr('10.0.0.0/9')", "false"),
            ("quantity('1') == quantity('1000m')", "true"),
            ("semver('1.0.0+a') == semver('1.0.0+b')", "true"),
            ("url('/a') == url('/b')", "false"),
        ]);
        let ip = Host(Kind::Ip(IpAddr::from([127, 0, 0, 1])));
        let cidr = Host(Kind::Cidr(IpAddr::from([127, 0, 0, 0]), 8));
        assert!(ip.equal(&cidr).is_err());
    }

    /// `IP.Size` and `CIDR.Size` of `pkg/cel/ip.go` and `cidr.go` in k8s.io/apiserver.
    #[test]
    fn addresses_and_prefixes_have_a_size_in_bytes() {
        let (v4, v6) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([0u16; 8]));
        for (kind, expected) in [
            (Kind::Ip(v4), 4),
            (Kind::Ip(v6), 16),
            (Kind::Cidr(v4, 24), 3),
            (Kind::Cidr(v4, 25), 4),
            (Kind::Cidr(v6, 32), 4),
        ] {
            assert_eq!(Host(kind.clone()).size(), expected, "{kind:?}");
        }
    }
}
