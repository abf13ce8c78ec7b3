//! What pods and pod templates share: defaults and validation of their spec.

mod app_armor;
mod container;
mod container_status;
mod defaults;
mod env;
pub(crate) mod label_keys;
mod path_warnings;
mod placement;
mod printed;
mod probe;
mod resize;
mod resources;
mod security;
mod spec;
mod status;
mod update;
mod volume;
mod warnings;

pub use defaults::{default_pod, default_spec, default_template};
pub use resources::quality_of_service;
pub use spec::{validate_pod, validate_template};
pub use update::{check_binding_rules, validate_spec_update};
pub use warnings::{same_generation, warn_changed_template, warn_pod, warn_pods, warn_template};

pub(crate) use app_armor::copy_annotations;
pub(crate) use defaults::default_source;
pub(crate) use placement::{check_node_selector, check_tolerations};
pub(crate) use printed::{printed_spec, printed_template};
pub(crate) use resize::{keep_all_but_resources, validate_resize};
pub(crate) use resources::{
    check_container_name, check_name, check_quantity, check_resources, is_extended, is_native,
    is_standard_quota, may_be_overcommitted,
};
pub(crate) use security::{check_annotations_update, check_profiles_agree};
pub(crate) use status::{keep_observed, validate_status, warn_status};
pub(crate) use volume::{check_downward, check_projected, no_backsteps};
pub(crate) use warnings::{renamed, warn_term};
