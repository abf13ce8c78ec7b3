//! The kinds of networking.k8s.io.

pub mod ingress;
pub mod ingress_class;
pub mod ip_address;
pub mod network_policy;
pub mod service_cidr;

/// An address range without bits set behind its prefix.
pub(crate) fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let Ok(bits) = bits.parse::<u32>() else {
        return false;
    };
    match address.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(ip)) => bits <= 32 && (bits == 32 || ip.to_bits() << bits == 0),
        Ok(std::net::IpAddr::V6(ip)) => bits <= 128 && (bits == 128 || ip.to_bits() << bits == 0),
        Err(_) => false,
    }
}

/// What Kubernetes says about text that is no address range.
pub(crate) const CIDR_FORM: &str =
    "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
