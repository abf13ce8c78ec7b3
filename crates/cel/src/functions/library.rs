//! Values of library types.

use std::{fmt, net::IpAddr, sync::Arc};

use ipnet::IpNet;

use super::{
    amount::Amount,
    authz::{Check, Decision},
    format::NamedFormat,
    regex::Constant,
    semver::Semver,
    url::Url,
};
use crate::types::Type;

#[derive(Debug, Clone)]
pub enum Library {
    /// Behind a pointer: values are moved around all the time, and an amount is several times as large as the others.
    Quantity(Arc<Amount>),
    Url(Arc<Url>),
    Ip(IpAddr),
    /// An address with its prefix length; bits after the prefix are kept.
    Cidr(IpNet),
    Semver(Arc<Semver>),
    Format(&'static NamedFormat),
    /// An authorizer, or a check being built.
    Check(Arc<Check>),
    Decision(Arc<Decision>),
    /// A constant pattern as passed to a function; not visible to expressions.
    Pattern(Arc<Constant>),
    /// An error inside of an optional: a value that upstream cannot convert back from Go's types.
    Lost(Arc<str>),
}

impl Library {
    pub fn type_of(&self) -> Type {
        match self {
            Self::Quantity(_) => Type::Struct("kubernetes.Quantity".into()),
            Self::Url(_) => Type::Struct("kubernetes.URL".into()),
            Self::Ip(_) => Type::Opaque("net.IP"),
            Self::Cidr(_) => Type::Opaque("net.CIDR"),
            Self::Semver(_) => Type::Struct("kubernetes.Semver".into()),
            Self::Format(_) => Type::Struct("kubernetes.NamedFormat".into()),
            Self::Check(check) => Type::Struct(check.type_name().into()),
            Self::Decision(_) => Type::Struct("kubernetes.authorization.Decision".into()),
            Self::Pattern(_) => Type::String,
            Self::Lost(_) => Type::Error,
        }
    }

    /// The name of the type in Go.
    pub(crate) fn go_type(&self) -> &'static str {
        match self {
            Self::Quantity(_) => "cel.Quantity",
            Self::Url(_) => "cel.URL",
            Self::Ip(_) => "cel.IP",
            Self::Cidr(_) => "cel.CIDR",
            Self::Semver(_) => "cel.Semver",
            Self::Format(_) => "cel.Format",
            Self::Check(check) => check.go_type(),
            Self::Decision(_) => "library.decisionVal",
            Self::Pattern(_) => "types.String",
            Self::Lost(_) => "*types.Err",
        }
    }

    /// Why the value is lost where upstream converts it to Go's types and back.
    pub(crate) fn lost(&self) -> Option<String> {
        let go = match self {
            Self::Quantity(_) => "*resource.Quantity",
            Self::Url(_) => "*url.URL",
            Self::Ip(_) => "netip.Addr",
            Self::Cidr(_) => "netip.Prefix",
            Self::Semver(_) => "semver.Version",
            _ => return None,
        };
        Some(format!("unsupported conversion to ref.Val: ({go}){self}"))
    }

    /// Addresses have the size of their bytes; all others count as one.
    pub fn size(&self) -> u64 {
        let bytes = |is_v4: bool| if is_v4 { 4 } else { 16 };
        match self {
            Self::Ip(ip) => bytes(ip.is_ipv4()),
            Self::Cidr(cidr) => u64::from(cidr.prefix_len()).div_ceil(8),
            Self::Pattern(constant) => constant.size,
            _ => 1,
        }
    }
}

impl PartialEq for Library {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Quantity(a), Self::Quantity(b)) => a == b,
            (Self::Url(a), Self::Url(b)) => a.text == b.text,
            (Self::Ip(a), Self::Ip(b)) => a == b,
            (Self::Cidr(a), Self::Cidr(b)) => a == b,
            (Self::Semver(a), Self::Semver(b)) => a.precedence(b).is_eq(),
            (Self::Format(a), Self::Format(b)) => a.name == b.name,
            (Self::Check(a), Self::Check(b)) => Arc::ptr_eq(a, b),
            (Self::Decision(a), Self::Decision(b)) => Arc::ptr_eq(a, b),
            (Self::Pattern(a), Self::Pattern(b)) => a.text == b.text,
            _ => false,
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantity(value) => write!(f, "{}", value.quantity),
            Self::Url(value) => f.write_str(&value.text),
            Self::Ip(value) => write!(f, "{value}"),
            Self::Cidr(value) => write!(f, "{value}"),
            Self::Semver(value) => write!(f, "{value}"),
            Self::Format(value) => f.write_str(value.name),
            Self::Pattern(constant) => f.write_str(&constant.text),
            Self::Lost(why) => f.write_str(why),
            Self::Check(_) | Self::Decision(_) => write!(f, "{}", self.type_of()),
        }
    }
}
