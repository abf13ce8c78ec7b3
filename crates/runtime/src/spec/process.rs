//! The container's first process: command, environment and user.

use cri::v1::LinuxContainerSecurityContext;
use serde_json::{Value, json};

use super::{DEFAULT_PATH, Identity, Inputs, apparmor, capabilities, user};
use crate::error::{Error, Result};

pub(super) fn process(
    inputs: &Inputs<'_>,
    security: &LinuxContainerSecurityContext,
    identity: &Identity,
) -> Result<Value> {
    let (config, image) = (inputs.config, inputs.image);
    let args = command(inputs)?;
    let cwd = [&config.working_dir, &image.working_dir]
        .into_iter()
        .find(|dir| !dir.is_empty());
    let mut process = json!({
        "terminal": config.tty,
        "user": {
            "uid": identity.uid,
            "gid": identity.gid,
            "additionalGids": identity.groups,
        },
        "args": args,
        "env": environment(inputs, identity),
        "cwd": cwd.map_or("/", String::as_str),
        "capabilities": capabilities::sets(security)?,
        "noNewPrivileges": security.no_new_privs,
    });
    if let Some(profile) = apparmor::profile(security)? {
        process["apparmorProfile"] = json!(profile);
    }
    if let Some(score) = oom_score(inputs) {
        process["oomScoreAdj"] = json!(score);
    }
    Ok(process)
}

/// The pod's command replaces the image's entrypoint and cmd.
fn command(inputs: &Inputs<'_>) -> Result<Vec<String>> {
    let (config, image) = (inputs.config, inputs.image);
    let mut command = config.command.clone();
    let mut args = config.args.clone();
    if command.is_empty() {
        if args.is_empty() {
            args = image.cmd.clone();
        }
        command = image.entrypoint.clone();
    }
    command.append(&mut args);
    if command.is_empty() {
        return Err(Error::Invalid("no command specified".into()));
    }
    Ok(command)
}

fn environment(inputs: &Inputs<'_>, identity: &Identity) -> Value {
    let mut env: Vec<String> = Vec::new();
    let mut set = |key: &str, value: &str| {
        let entry = format!("{key}={value}");
        let same = |old: &&mut String| old.split('=').next() == Some(key);
        match env.iter_mut().find(same) {
            Some(old) => *old = entry,
            None => env.push(entry),
        }
    };
    if !inputs.sandbox.hostname.is_empty() {
        set("HOSTNAME", &inputs.sandbox.hostname);
    }
    for entry in &inputs.image.env {
        if let Some((key, value)) = entry.split_once('=') {
            set(key, value);
        }
    }
    for entry in &inputs.config.envs {
        set(&entry.key, &String::from_utf8_lossy(&entry.value));
    }
    // An OCI runtime looks up a missing HOME in the image's files, and waits for ever if that is a pipe.
    env.retain(|entry| entry != "HOME=");
    let mut env = json!(env);
    set_default_env(&mut env, "HOME", &user::home(identity.uid, inputs.rootfs));
    set_default_env(&mut env, "PATH", DEFAULT_PATH);
    if inputs.config.tty {
        set_default_env(&mut env, "TERM", "xterm");
    }
    env
}

/// Adds a variable unless it is set.
pub(super) fn set_default_env(env: &mut Value, key: &str, value: &str) {
    let Some(env) = env.as_array_mut() else {
        return;
    };
    let known = env
        .iter()
        .filter_map(Value::as_str)
        .any(|e| e.split('=').next() == Some(key));
    if !known {
        env.push(json!(format!("{key}={value}")));
    }
}

fn oom_score(inputs: &Inputs<'_>) -> Option<i64> {
    let resources = inputs.config.linux.as_ref()?.resources.as_ref()?;
    let lowest = i64::from(inputs.lowest_oom_score.unwrap_or(-1000));
    Some(resources.oom_score_adj.clamp(lowest, 1000))
}
