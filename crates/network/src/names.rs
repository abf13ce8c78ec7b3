//! Names and numbers of a cluster's objects on a machine. All derive from the cluster's id, so that
//! two clusters never collide and a reset removes exactly its own.

use sha2::{Digest, Sha256};

/// The `proto` field of our routes; unassigned in iproute's list.
pub const ROUTE_PROTOCOL: u8 = 109;

const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The prefix of every link of the cluster.
pub fn link_prefix(id: &str) -> String {
    format!("m{id:.8}")
}

/// The host side of a sandbox's link: at most 15 characters. `attempt` selects another name if the
/// short hash collides.
pub fn host_link(id: &str, sandbox_id: &str, attempt: u32) -> String {
    let digest = Sha256::digest(format!("{sandbox_id}/{attempt}"));
    let hash: String = digest
        .iter()
        .take(6)
        .map(|byte| char::from(BASE32[usize::from(byte & 31)]))
        .collect();
    format!("{}{hash}", link_prefix(id))
}

/// 32 hexadecimal digits of a hash, for names in tables that derive from names and selectors of users. With fewer digits a
/// user could find an object whose hash is that of another user's, and replace its rules.
pub fn object_hash(text: &str) -> String {
    let digest = Sha256::digest(text);
    let bytes = digest.iter().take(16);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// The overlay device of the cluster.
pub fn vxlan_link(id: &str) -> String {
    format!("{}-vx", link_prefix(id))
}

/// The nftables table of the pod network. Other components add a suffix: see [`table_of`].
pub fn table(id: &str) -> String {
    format!("mainstay-{id}")
}

/// The nftables table of another component, such as `services`.
pub fn table_of(id: &str, part: &str) -> String {
    format!("mainstay-{id}-{part}")
}

/// The metric that marks routes of this cluster. It has no other effect, since the destinations are
/// the cluster's own.
pub fn route_metric(id: &str) -> u32 {
    let digest = Sha256::digest(format!("route/{id}"));
    0x0100_0000 | u32::from_be_bytes([0, digest[0], digest[1], digest[2]])
}

/// The port of the node's DNS server: below node ports and ephemeral ports.
pub fn dns_port(id: &str) -> u16 {
    let digest = Sha256::digest(format!("dns/{id}"));
    20_000 + u16::from_be_bytes([digest[0], digest[1]]) % 10_000
}

/// A VXLAN network identifier from a name that all nodes of the cluster share.
pub fn vni(cluster: &str) -> u32 {
    let digest = Sha256::digest(format!("vni/{cluster}"));
    u32::from_be_bytes([0, digest[0], digest[1], digest[2]]).max(1)
}

/// A locally administered unicast hardware address from a name.
pub fn hardware_address(word: &str) -> [u8; 6] {
    let digest = Sha256::digest(format!("mac/{word}"));
    let mut address = [0; 6];
    address.copy_from_slice(&digest[..6]);
    address[0] = (address[0] | 0x02) & 0xfe;
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names_fit_the_kernel_and_carry_the_id() {
        let name = host_link("0123abcd", "a-sandbox", 0);
        assert_eq!(name.len(), 15);
        assert!(name.starts_with("m0123abcd"));
        assert_ne!(name, host_link("0123abcd", "a-sandbox", 1));
        assert_eq!(vxlan_link("0123abcd"), "m0123abcd-vx");
    }

    #[test]
    fn a_user_cannot_search_for_an_object_with_the_hash_of_another() {
        let hash = object_hash("default/deny");
        assert!(hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(hash, object_hash("default/deny2"));
    }

    #[test]
    fn hardware_addresses_are_local_unicast() {
        for word in ["a", "b", "c", "d", "e"] {
            assert_eq!(hardware_address(word)[0] & 0x03, 0x02);
        }
    }

    #[test]
    fn different_clusters_have_different_marks() {
        assert_ne!(route_metric("0123abcd"), route_metric("0123abce"));
        assert_ne!(vni("one"), vni("two"));
    }
}
