//! What pods and pod templates have in common: defaults and validation of their spec.

mod container;
mod defaults;
mod placement;
mod resources;
mod spec;
mod update;
mod volume;
mod warnings;

pub use defaults::{default_pod, default_spec, default_template};
pub use resources::quality_of_service;
pub use spec::{validate_spec, validate_template};
pub use update::{check_binding_rules, validate_spec_update};
pub use warnings::{warn_pod, warn_template};

pub(crate) use placement::check_node_selector;
pub(crate) use resources::{check_quantity, check_resources};
