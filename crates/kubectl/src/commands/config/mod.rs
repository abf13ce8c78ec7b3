//! `kubectl config`: kubeconfig files.

mod property;
mod view;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::{
    args::Global,
    json::{list, str_of},
    kubeconfig::{self, KubeconfigFiles, entry, read_file, remove_entry, set_entry, write_file},
    output::tabwriter::Tabwriter,
};

/// The subcommands. Flags such as `--server` and `--token` are those of every command.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Display the current-context
    CurrentContext,
    /// Delete the specified cluster from the kubeconfig
    DeleteCluster { name: String },
    /// Delete the specified context from the kubeconfig
    DeleteContext { name: String },
    /// Delete the specified user from the kubeconfig
    DeleteUser { name: String },
    /// Display clusters defined in the kubeconfig
    GetClusters,
    /// Describe one or many contexts
    GetContexts(GetContexts),
    /// Display users defined in the kubeconfig
    GetUsers,
    /// Rename a context from the kubeconfig file
    RenameContext { name: String, new_name: String },
    /// Set an individual value in a kubeconfig file
    Set(property::Set),
    /// Set a cluster entry in kubeconfig (--server, --certificate-authority, --tls-server-name, …)
    SetCluster(SetCluster),
    /// Set a context entry in kubeconfig (--cluster, --user, --namespace)
    SetContext(SetContext),
    /// Set a user entry in kubeconfig (--client-certificate, --client-key, --token, …)
    SetCredentials(SetCredentials),
    /// Unset an individual value in a kubeconfig file
    Unset { property: String },
    /// Set the current-context in a kubeconfig file
    #[command(alias = "use")]
    UseContext { name: String },
    /// Display merged kubeconfig settings or a specified kubeconfig file
    View(view::View),
}

/// Flags of `config get-contexts`.
#[derive(Debug, Args)]
pub(crate) struct GetContexts {
    names: Vec<String>,
    /// Do not print headers
    #[arg(long)]
    no_headers: bool,
    /// Only name is supported
    #[arg(short, long, default_value = "")]
    output: String,
}

/// Flags of `config set-cluster`.
#[derive(Debug, Args)]
pub(crate) struct SetCluster {
    name: String,
    /// Embed the content of the certificate file
    #[arg(long)]
    embed_certs: bool,
    /// Proxy to reach the server through
    #[arg(long, value_name = "URL")]
    proxy_url: Option<String>,
}

/// Flags of `config set-context`.
#[derive(Debug, Args)]
pub(crate) struct SetContext {
    name: Option<String>,
    /// Modify the current context
    #[arg(long)]
    current: bool,
}

/// Flags of `config set-credentials`.
#[derive(Debug, Args)]
pub(crate) struct SetCredentials {
    name: String,
    /// Embed the content of the certificate and key files
    #[arg(long)]
    embed_certs: bool,
    /// Auth provider of the user, which only older clients support
    #[arg(long)]
    auth_provider: Option<String>,
    /// Argument of the auth provider, as KEY=VALUE; KEY- removes
    #[arg(long)]
    auth_provider_arg: Vec<String>,
    /// Command of an exec credential plugin
    #[arg(long)]
    exec_command: Option<String>,
    /// API version of the exec credential plugin
    #[arg(long)]
    exec_api_version: Option<String>,
    /// Argument of the exec credential plugin; may be repeated
    #[arg(long, value_delimiter = ',')]
    exec_arg: Vec<String>,
    /// Environment of the exec credential plugin, as KEY=VALUE; KEY- removes
    #[arg(long)]
    exec_env: Vec<String>,
    /// InteractiveMode of the exec credential plugin
    #[arg(long)]
    exec_interactive_mode: Option<String>,
    /// Give the cluster to the exec credential plugin
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    exec_provide_cluster_info: Option<bool>,
}

impl Config {
    pub(crate) fn run(self, global: &Global) -> Result<()> {
        match self {
            Self::CurrentContext => current_context(global),
            Self::DeleteCluster { name } => delete(global, "clusters", "cluster", &name),
            Self::DeleteContext { name } => delete(global, "contexts", "context", &name),
            Self::DeleteUser { name } => delete(global, "users", "user", &name),
            Self::GetClusters => print_names(global, "clusters"),
            Self::GetUsers => print_names(global, "users"),
            Self::GetContexts(command) => command.run(global),
            Self::RenameContext { name, new_name } => rename(global, &name, &new_name),
            Self::Set(command) => command.run(global),
            Self::SetCluster(command) => command.run(global),
            Self::SetContext(command) => command.run(global),
            Self::SetCredentials(command) => command.run(global),
            Self::Unset { property } => property::unset(global, &property),
            Self::UseContext { name } => use_context(global, &name),
            Self::View(command) => command.run(global),
        }
    }
}

/// The merged content of existing files.
fn merged(global: &Global) -> Result<Value> {
    let places = KubeconfigFiles::new(global);
    let exists = places.files.iter().any(|path| path.exists());
    match exists {
        true => kubeconfig::load(global),
        false => Ok(json!({})),
    }
}

/// The file of an entry, or the file for a new one.
fn file_of(global: &Global, section: &str, name: &str) -> Result<PathBuf> {
    let places = KubeconfigFiles::new(global);
    for path in places.files.iter().filter(|path| path.exists()) {
        if entry(&read_file(path)?, section, name).is_some() {
            return Ok(path.clone());
        }
    }
    default_file(global)
}

/// The file of new entries and of a new current context.
fn default_file(global: &Global) -> Result<PathBuf> {
    KubeconfigFiles::new(global)
        .default_file()
        .cloned()
        .context("no kubeconfig file to write to")
}

/// The file that sets the current context.
fn file_of_current(global: &Global) -> Result<PathBuf> {
    let places = KubeconfigFiles::new(global);
    for path in places.files.iter().filter(|path| path.exists()) {
        if !str_of(&read_file(path)?["current-context"]).is_empty() {
            return Ok(path.clone());
        }
    }
    default_file(global)
}

fn edit(path: &std::path::Path, change: impl FnOnce(&mut Value) -> Result<()>) -> Result<()> {
    let mut config = read_file(path)?;
    change(&mut config)?;
    write_file(path, &config)
}

fn current_context(global: &Global) -> Result<()> {
    let config = merged(global)?;
    match str_of(&config["current-context"]) {
        "" => bail!("current-context is not set"),
        name => println!("{name}"),
    }
    Ok(())
}

fn delete(global: &Global, section: &str, what: &str, name: &str) -> Result<()> {
    let path = file_of(global, section, name)?;
    let was_current = what == "context" && str_of(&merged(global)?["current-context"]) == name;
    edit(&path, |config| match remove_entry(config, section, name) {
        true => Ok(()),
        false => bail!("cannot delete {what} {name}, not in {}", path.display()),
    })?;
    if was_current {
        eprintln!(
            "warning: this removed your active context, use \"kubectl config use-context\" to select a different one"
        );
    }
    println!("deleted {what} {name} from {}", path.display());
    Ok(())
}

fn print_names(global: &Global, section: &str) -> Result<()> {
    let config = merged(global)?;
    let mut names: Vec<&str> = list(&config[section])
        .map(|entry| str_of(&entry["name"]))
        .collect();
    names.sort_unstable();
    println!("NAME");
    names.iter().for_each(|name| println!("{name}"));
    Ok(())
}

impl GetContexts {
    fn run(self, global: &Global) -> Result<()> {
        if !["", "name"].contains(&self.output.as_str()) {
            bail!(
                "--output {} is not available in kubectl config get-contexts; resetting to default output format",
                self.output
            );
        }
        let config = merged(global)?;
        let current = str_of(&config["current-context"]);
        let mut names: Vec<String> = match self.names.is_empty() {
            true => list(&config["contexts"])
                .map(|entry| str_of(&entry["name"]).to_owned())
                .collect(),
            false => self.names.clone(),
        };
        names.sort();
        let mut missing = Vec::new();
        let mut lines = String::new();
        if self.output.is_empty() && !self.no_headers {
            lines.push_str("CURRENT\tNAME\tCLUSTER\tAUTHINFO\tNAMESPACE\n");
        }
        for name in names {
            let Some(context) = entry(&config, "contexts", &name) else {
                missing.push(anyhow::anyhow!("context {name} not found"));
                continue;
            };
            let field = |field: &str| str_of(&context[field]);
            let mark = if name == current { "*" } else { "" };
            match self.output.as_str() {
                "name" => lines.push_str(&format!("{name}\n")),
                _ => lines.push_str(&format!(
                    "{mark}\t{name}\t{}\t{}\t{}\n",
                    field("cluster"),
                    field("user"),
                    field("namespace")
                )),
            }
        }
        print!("{}", Tabwriter::for_tables().align(&lines));
        crate::error::aggregate(missing)
    }
}

fn rename(global: &Global, name: &str, new_name: &str) -> Result<()> {
    if new_name.is_empty() {
        bail!("You must specify a new non-empty context name");
    }
    let config = merged(global)?;
    if entry(&config, "contexts", name).is_none() {
        bail!(
            "cannot rename the context {name:?}, it's not in {}",
            file_of(global, "contexts", name)?.display()
        );
    }
    if entry(&config, "contexts", new_name).is_some() {
        bail!(
            "cannot rename the context {name:?}, the context {new_name:?} already exists in {}",
            file_of(global, "contexts", new_name)?.display()
        );
    }
    edit(&file_of(global, "contexts", name)?, |config| {
        let content = entry(config, "contexts", name).cloned().unwrap_or_default();
        remove_entry(config, "contexts", name);
        set_entry(config, "contexts", new_name, content);
        Ok(())
    })?;
    if str_of(&config["current-context"]) == name {
        edit(&file_of_current(global)?, |config| {
            config["current-context"] = json!(new_name);
            Ok(())
        })?;
    }
    println!("Context {name:?} renamed to {new_name:?}.");
    Ok(())
}

fn use_context(global: &Global, name: &str) -> Result<()> {
    if name.is_empty() {
        bail!("empty context names are not allowed");
    }
    if entry(&merged(global)?, "contexts", name).is_none() {
        bail!("no context exists with the name: {name:?}");
    }
    edit(&default_file(global)?, |config| {
        config["current-context"] = json!(name);
        Ok(())
    })?;
    println!("Switched to context {name:?}.");
    Ok(())
}

/// Changes the content of an entry; returns whether it existed before.
fn change_entry(
    global: &Global,
    section: &str,
    name: &str,
    change: impl FnOnce(&mut Map<String, Value>) -> Result<()>,
) -> Result<bool> {
    let path = file_of(global, section, name)?;
    let mut existed = false;
    edit(&path, |config| {
        let known = entry(config, section, name)
            .and_then(Value::as_object)
            .cloned();
        existed = known.is_some();
        let mut content = known.unwrap_or_default();
        change(&mut content)?;
        set_entry(config, section, name, Value::Object(content));
        Ok(())
    })?;
    Ok(existed)
}

fn absolute(path: &str) -> Result<String> {
    Ok(std::path::absolute(path)?.display().to_string())
}

/// Sets a file, or its content, in an entry.
fn put_file(content: &mut Map<String, Value>, field: &str, path: &str, embed: bool) -> Result<()> {
    let data = format!("{field}-data");
    if path.is_empty() {
        content.remove(field);
        content.remove(&data);
        return Ok(());
    }
    match embed {
        true => {
            let bytes = std::fs::read(path).map_err(|error| {
                let why = crate::error::io_reason(&error);
                anyhow::anyhow!("could not stat {field} file {path}: stat {path}: {why}")
            })?;
            content.insert(data, json!(BASE64_STANDARD.encode(bytes)));
            content.remove(field);
        }
        false => {
            content.insert(field.to_owned(), json!(absolute(path)?));
            content.remove(&data);
        }
    }
    Ok(())
}

impl SetCluster {
    fn run(self, global: &Global) -> Result<()> {
        if self.name.is_empty() {
            bail!("you must specify a non-empty cluster name");
        }
        if global.insecure_skip_tls_verify && global.certificate_authority.is_some() {
            bail!("you cannot specify a certificate authority and insecure mode at the same time");
        }
        if self.embed_certs && global.certificate_authority.is_none() {
            bail!("you must specify a --certificate-authority to embed");
        }
        change_entry(global, "clusters", &self.name, |cluster| {
            if let Some(server) = &global.server {
                cluster.insert("server".into(), json!(server));
            }
            if let Some(name) = &global.tls_server_name {
                cluster.insert("tls-server-name".into(), json!(name));
            }
            if let Some(url) = &self.proxy_url {
                cluster.insert("proxy-url".into(), json!(url));
            }
            if global.insecure_skip_tls_verify {
                cluster.insert("insecure-skip-tls-verify".into(), json!(true));
                cluster.remove("certificate-authority");
                cluster.remove("certificate-authority-data");
            }
            if let Some(path) = &global.certificate_authority {
                put_file(cluster, "certificate-authority", path, self.embed_certs)?;
                cluster.remove("insecure-skip-tls-verify");
            }
            Ok(())
        })?;
        println!("Cluster {:?} set.", self.name);
        Ok(())
    }
}

impl SetContext {
    fn run(self, global: &Global) -> Result<()> {
        let name = match (self.current, self.name) {
            (true, Some(_)) => bail!("you cannot specify both a context name and --current"),
            (false, None) => bail!("you must specify a non-empty context name or --current"),
            (false, Some(name)) => name,
            (true, None) => match str_of(&merged(global)?["current-context"]) {
                "" => bail!("no current context is set"),
                name => name.to_owned(),
            },
        };
        let existed = change_entry(global, "contexts", &name, |context| {
            for (field, value) in [
                ("cluster", &global.cluster),
                ("user", &global.user),
                ("namespace", &global.namespace),
            ] {
                if let Some(value) = value {
                    context.insert(field.into(), json!(value));
                }
            }
            for field in ["cluster", "user"] {
                context.entry(field).or_insert_with(|| json!(""));
            }
            Ok(())
        })?;
        println!(
            "Context {name:?} {}.",
            if existed { "modified" } else { "created" }
        );
        Ok(())
    }
}

impl SetCredentials {
    fn run(self, global: &Global) -> Result<()> {
        if self.name.is_empty() {
            bail!("you must specify a non-empty user name");
        }
        if global.token.is_some() && (global.username.is_some() || global.password.is_some()) {
            bail!(
                "you cannot specify more than one authentication method at the same time: --token, --username/--password"
            );
        }
        if self.embed_certs && global.client_certificate.is_none() && global.client_key.is_none() {
            bail!("you must specify a --client-certificate or --client-key to embed");
        }
        change_entry(global, "users", &self.name, |user| {
            if let Some(path) = &global.client_certificate {
                put_file(user, "client-certificate", path, self.embed_certs)?;
            }
            if let Some(path) = &global.client_key {
                put_file(user, "client-key", path, self.embed_certs)?;
            }
            if let Some(token) = &global.token {
                user.insert("token".into(), json!(token));
                user.remove("username");
                user.remove("password");
            }
            for (field, value) in [
                ("username", &global.username),
                ("password", &global.password),
            ] {
                if let Some(value) = value {
                    user.insert(field.into(), json!(value));
                    user.remove("token");
                }
            }
            self.set_auth_provider(user)?;
            self.set_exec(user)
        })?;
        println!("User {:?} set.", self.name);
        Ok(())
    }

    fn set_auth_provider(&self, user: &mut Map<String, Value>) -> Result<()> {
        if let Some(name) = &self.auth_provider
            && user
                .get("auth-provider")
                .is_none_or(|known| known["name"] != name.as_str())
        {
            user.insert(
                "auth-provider".to_owned(),
                json!({"config": {}, "name": name}),
            );
        }
        let Some(provider) = user.get_mut("auth-provider") else {
            return Ok(());
        };
        let config = &mut provider["config"];
        if !config.is_object() {
            *config = json!({});
        }
        for pair in &self.auth_provider_arg {
            match (pair.split_once('='), pair.strip_suffix('-')) {
                (Some((key, value)), _) => config[key] = json!(value),
                (None, Some(key)) => drop(config.as_object_mut().map(|map| map.shift_remove(key))),
                (None, None) => {
                    bail!("unexpected --auth-provider-arg {pair:?}: KEY=VALUE or KEY- is needed")
                }
            }
        }
        Ok(())
    }

    fn set_exec(&self, user: &mut Map<String, Value>) -> Result<()> {
        let is_known = user.get("exec").is_some_and(Value::is_object);
        match &self.exec_command {
            Some(command) if is_known => {
                user["exec"]["command"] = json!(command);
                user["exec"]["args"] = Value::Null;
            }
            Some(command) => {
                let exec = json!({"command": command, "args": null, "env": null, "provideClusterInfo": false});
                user.insert("exec".to_owned(), exec);
            }
            // As upstream: without a command there is nothing to configure.
            None if !is_known => return Ok(()),
            None => {}
        }
        let exec = &mut user["exec"];
        if let Some(version) = &self.exec_api_version {
            exec["apiVersion"] = json!(version);
        }
        if let Some(mode) = &self.exec_interactive_mode {
            if !["IfAvailable", "Never", "Always"].contains(&mode.as_str()) {
                bail!("invalid interactive mode type, can be only IfAvailable, Never, Always");
            }
            exec["interactiveMode"] = json!(mode);
        }
        if let Some(provide) = self.exec_provide_cluster_info {
            exec["provideClusterInfo"] = json!(provide);
        }
        if !self.exec_arg.is_empty() {
            exec["args"] = json!(self.exec_arg);
        }
        for pair in &self.exec_env {
            let mut env: Vec<Value> = list(&exec["env"]).cloned().collect();
            match (pair.split_once('='), pair.strip_suffix('-')) {
                (Some((name, value)), _) => {
                    match env.iter_mut().find(|known| known["name"] == name) {
                        Some(known) => known["value"] = json!(value),
                        None => env.push(json!({"name": name, "value": value})),
                    }
                }
                (None, Some(name)) => env.retain(|known| known["name"] != name),
                (None, None) => bail!("invalid --exec-env {pair:?}"),
            }
            exec["env"] = json!(env);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        property::{Set, unset},
        *,
    };

    fn at(path: &std::path::Path) -> Global {
        Global {
            kubeconfig: Some(path.to_owned()),
            ..Global::default()
        }
    }

    #[test]
    fn a_kubeconfig_is_written_and_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, "").unwrap();
        let global = Global {
            server: Some("https://s:6443".into()),
            ..at(&path)
        };
        SetCluster {
            name: "c".into(),
            embed_certs: false,
            proxy_url: None,
        }
        .run(&global)
        .unwrap();
        let global = Global {
            cluster: Some("c".into()),
            user: Some("u".into()),
            namespace: Some("web".into()),
            ..at(&path)
        };
        SetContext {
            name: Some("x".into()),
            current: false,
        }
        .run(&global)
        .unwrap();
        use_context(&at(&path), "x").unwrap();
        assert!(use_context(&at(&path), "y").is_err());
        rename(&at(&path), "x", "z").unwrap();
        Set {
            property: "contexts.z.namespace".into(),
            value: "shop".into(),
            set_raw_bytes: false,
        }
        .run(&at(&path))
        .unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "apiVersion: v1\nclusters:\n- cluster:\n    server: https://s:6443\n  name: c\ncontexts:\n- context:\n    cluster: c\n    namespace: shop\n    user: u\n  name: z\ncurrent-context: z\nkind: Config\nusers: null\n"
        );
        unset(&at(&path), "contexts.z.namespace").unwrap();
        delete(&at(&path), "clusters", "cluster", "c").unwrap();
        assert!(delete(&at(&path), "clusters", "cluster", "c").is_err());
        assert!(!std::fs::read_to_string(&path).unwrap().contains("shop"));
    }
}
