//! The cost of an RBAC decision in a cluster with many bindings: CPU time of one thread, so that
//! the figures do not depend on other load.

use std::hint::black_box;

use apiserver::{
    User,
    authz::{Attributes, Index, Objects, policy},
};
use serde_json::json;

const BINDINGS: usize = 1000;
const ROUNDS: u32 = 100_000;

/// Prints microseconds per decision.
pub(crate) fn run() {
    let index = index();
    let user = User::new("user7", ["team"]);
    let ask = |verb, group, resource, namespace| Attributes {
        user: &user,
        verb,
        is_resource: true,
        group,
        version: "v1",
        resource,
        subresource: "",
        namespace,
        name: "x",
        path: "",
        field_selector: "",
        label_selector: "",
    };
    println!(
        "{BINDINGS} bindings beside the default ones\n{:<44} {:>8}",
        "question", "µs"
    );
    for (what, attributes) in [
        (
            "allowed by a binding of its namespace",
            ask("create", "apps", "deployments", "n7"),
        ),
        (
            "refused in another namespace",
            ask("create", "apps", "deployments", "n8"),
        ),
        ("refused everywhere", ask("delete", "", "nodes", "")),
    ] {
        let start = cpu();
        for _ in 0..ROUNDS {
            black_box(index.allows(black_box(&attributes)));
        }
        let each = (cpu() - start) * 1e6 / f64::from(ROUNDS);
        println!("{what:<44} {each:>8.2}");
    }
}

/// The default policy, and a hundred users with ten bindings each in fifty namespaces.
fn index() -> Index {
    let mut objects = Objects::default();
    for role in &policy::DEFAULTS.roles {
        match role.namespace.as_str() {
            "" => objects.cluster_roles.push(role.to_object()),
            _ => objects.roles.push(role.to_object()),
        }
    }
    for binding in &policy::DEFAULTS.bindings {
        match binding.namespace.as_str() {
            "" => objects.cluster_role_bindings.push(binding.to_object()),
            _ => objects.role_bindings.push(binding.to_object()),
        }
    }
    for number in 0..BINDINGS {
        let binding = json!({
            "metadata": {"name": format!("b{number}"), "namespace": format!("n{}", number % 50)},
            "roleRef": {"kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "User", "name": format!("user{}", number % 100)}],
        });
        objects
            .role_bindings
            .extend(binding.as_object().cloned().map(Into::into));
    }
    Index::new(&objects)
}

/// Seconds of CPU time that this thread has used.
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
