//! Which exec credential plugins may run: `credentialPluginPolicy` and `credentialPluginAllowlist`
//! of the kuberc file.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::json::{list, str_of};

/// Fails if the preferences do not allow the program.
pub(crate) fn check(preferences: &Value, program: &str) -> Result<()> {
    validate(preferences)?;
    match str_of(&preferences["credentialPluginPolicy"]) {
        "DenyAll" => bail!("plugin {program:?} not allowed: policy set to \"DenyAll\""),
        "Allowlist" => check_listed(&preferences["credentialPluginAllowlist"], program),
        _ => Ok(()),
    }
}

/// Fails if the policy and its list do not fit.
pub(crate) fn validate(preferences: &Value) -> Result<()> {
    let entries = &preferences["credentialPluginAllowlist"];
    let policy = str_of(&preferences["credentialPluginPolicy"]);
    match policy {
        "" | "AllowAll" | "DenyAll" if !entries.is_null() => bail!(
            "misconfigured credential plugin allowlist: plugin policy is {policy:?} but allowlist is non-nil"
        ),
        "" | "AllowAll" | "DenyAll" => Ok(()),
        "Allowlist" => validate_list(entries),
        other => bail!("unknown plugin policy: {other:?}"),
    }
}

fn validate_list(entries: &Value) -> Result<()> {
    if entries.is_null() {
        bail!("credential plugin policy set to \"Allowlist\", but allowlist is unspecified");
    }
    let mut commands = list(entries).map(|entry| str_of(&entry["command"]));
    if list(entries).len() == 0 {
        bail!(
            "credential plugin policy set to \"Allowlist\", but allowlist is empty; use \"DenyAll\" policy instead"
        );
    }
    match commands.position(str::is_empty) {
        Some(at) => bail!(
            "misconfigured credential plugin allowlist: empty allowlist entry #{}",
            at + 1
        ),
        None => Ok(()),
    }
}

fn check_listed(entries: &Value, program: &str) -> Result<()> {
    let allowed: Vec<&str> = list(entries)
        .map(|entry| str_of(&entry["command"]))
        .collect();
    if allowed.contains(&program) {
        return Ok(());
    }
    let Some(path) = resolve(program) else {
        bail!(
            "plugin path {program:?} cannot be resolved for credential plugin allowlist check: exec: {program:?}: executable file not found in $PATH"
        );
    };
    let is_allowed = allowed
        .iter()
        .any(|entry| Path::new(entry) == path || resolve(entry).as_ref() == Some(&path));
    if !is_allowed {
        bail!(
            "plugin path {:?} is not permitted by the credential plugin allowlist",
            path.display().to_string()
        );
    }
    Ok(())
}

/// The file of a program: itself if it is a path, else the first on the PATH.
fn resolve(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Path::new(program).is_file().then(|| program.into());
    }
    let paths = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&paths).map(|place| place.join(program));
    places.find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plugins_run_only_as_the_policy_allows() {
        let listed = |entries: Value| json!({"credentialPluginPolicy": "Allowlist", "credentialPluginAllowlist": entries});
        let sh = json!([{"command": "sh"}]);
        for (preferences, program, is_allowed) in [
            (json!({}), "helper", true),
            (
                json!({"credentialPluginPolicy": "AllowAll"}),
                "helper",
                true,
            ),
            (
                json!({"credentialPluginPolicy": "DenyAll"}),
                "helper",
                false,
            ),
            (json!({"credentialPluginPolicy": "Typo"}), "helper", false),
            (
                json!({"credentialPluginPolicy": "AllowAll", "credentialPluginAllowlist": []}),
                "helper",
                false,
            ),
            (listed(Value::Null), "helper", false),
            (listed(json!([])), "helper", false),
            (listed(json!([{"command": "helper"}])), "helper", true),
            (listed(json!([{"command": ""}])), "", false),
            (listed(sh.clone()), "helper", false),
            (listed(sh.clone()), "ls", false),
            (listed(sh), "sh", true),
        ] {
            assert_eq!(
                check(&preferences, program).is_ok(),
                is_allowed,
                "{preferences} {program}"
            );
        }
        let found = resolve("sh").unwrap();
        let whole = found.to_str().unwrap();
        assert!(check(&listed(json!([{"command": "sh"}])), whole).is_ok());
        assert!(check(&listed(json!([{"command": whole}])), "sh").is_ok());
    }
}
