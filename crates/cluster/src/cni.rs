//! This binary as a CNI plugin: finds the daemon.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use crate::settings;

/// The daemon's socket.
pub(crate) fn socket(state_dir: &Path) -> PathBuf {
    state_dir.join("cni.sock")
}

/// Whether a runtime calls this binary as a plugin: with CNI's environment, and no other command.
pub fn is_called(arguments: &[impl AsRef<std::ffi::OsStr>]) -> bool {
    let alone = match arguments {
        [_] => true,
        [_, command] => command.as_ref() == "cni",
        _ => false,
    };
    alone && network::cni_plugin::is_called()
}

/// Handles the call.
pub fn answer() -> ExitCode {
    network::cni_plugin::main(|data_dir| {
        let data_dir = data_dir.unwrap_or(Path::new(settings::DATA_DIR));
        let real = data_dir.canonicalize();
        let id = settings::id(&real.unwrap_or_else(|_| data_dir.to_owned()));
        socket(&settings::state_dir(&id))
    })
}
