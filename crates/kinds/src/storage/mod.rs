//! The kinds of storage.k8s.io.

pub mod csi_driver;
pub mod csi_node;
pub mod csi_storage_capacity;
pub mod storage_class;
pub mod volume_attachment;
pub mod volume_attributes_class;

use crate::check;
use crate::tree::{entries, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};

/// Validates the name of a driver or provisioner.
fn check_provisioner(value: &Value, path: &Path, errors: &mut Errors) {
    let lower = text(value).to_lowercase();
    if lower.is_empty() {
        errors.push(Error::required(path, ""));
    } else {
        check::form(format::qualified_name(&lower), &lower, path, errors);
    }
}

/// Validates the number and size of a class's parameters.
fn check_parameters(parameters: &Value, path: &Path, errors: &mut Errors) {
    const COUNT_MAX: usize = 512;
    const SIZE_MAX: usize = 256 * 1024;
    if entries(parameters).count() > COUNT_MAX {
        errors.push(Error::too_long(path, COUNT_MAX));
        return;
    }
    let mut size = 0;
    for (key, value) in entries(parameters) {
        if key.is_empty() {
            errors.push(Error::invalid(path, "", "field can not be empty."));
        }
        size += key.len() + text(value).len();
    }
    if size > SIZE_MAX {
        errors.push(Error::too_long(path, SIZE_MAX));
    }
}
