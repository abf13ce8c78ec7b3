//! A container's environment: `env`, `envFrom` and the Services.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
};

use k8s_openapi::{
    ByteString,
    api::core::v1::{Container, EnvVarSource, FileKeySelector, Pod, Service},
};
use volume::{Need, NodeFacts, Objects, downward};

use super::{
    env_file,
    expand::{LIMIT, expand},
};
use crate::pod::spec;

/// The sources of an environment.
pub struct Inputs<'a> {
    pub objects: &'a Objects,
    /// The Services of the pod's namespace and `kubernetes`.
    pub services: &'a [&'a Service],
    pub node: &'a NodeFacts,
    pub host_ips: &'a [String],
    pub pod_ips: &'a [String],
    /// Host paths of volumes, by name.
    pub volumes: &'a BTreeMap<String, PathBuf>,
}

/// A variable cannot be resolved: the container waits with CreateContainerConfigError.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Problem(pub String);

type Variables = Vec<(String, String)>;

/// The API objects that the environment needs.
pub fn needs(container: &Container) -> Vec<Need> {
    let mut needs = Vec::new();
    for from in container.env_from.iter().flatten() {
        if let Some(map) = &from.config_map_ref {
            let optional = map.optional == Some(true);
            needs.push(Need::ConfigMap {
                name: map.name.clone(),
                optional,
            });
        }
        if let Some(secret) = &from.secret_ref {
            let optional = secret.optional == Some(true);
            needs.push(Need::Secret {
                name: secret.name.clone(),
                optional,
            });
        }
    }
    for source in container
        .env
        .iter()
        .flatten()
        .filter_map(|env| env.value_from.as_ref())
    {
        if let Some(key) = &source.config_map_key_ref {
            let optional = key.optional == Some(true);
            needs.push(Need::ConfigMap {
                name: key.name.clone(),
                optional,
            });
        }
        if let Some(key) = &source.secret_key_ref {
            let optional = key.optional == Some(true);
            needs.push(Need::Secret {
                name: key.name.clone(),
                optional,
            });
        }
    }
    needs
}

/// All variables, in the order of their definition.
pub fn environment(
    pod: &Pod,
    container: &Container,
    inputs: &Inputs,
) -> Result<Variables, Problem> {
    let services = service_variables(pod, inputs.services);
    let mut known: BTreeMap<String, String> = services.iter().cloned().collect();
    let mut all = Environment::default();
    add_sources(container, inputs.objects, &mut all)?;
    known.extend({ all.variables.iter().flatten() }.cloned());
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) if !value.is_empty() => {
                let room = LIMIT.saturating_sub(all.size);
                Some(expand(value, &known, room).map_err(|_| too_long())?)
            }
            (_, Some(source)) => referenced(pod, container, source, inputs)?,
            _ => Some(String::new()),
        };
        if let Some(value) = value {
            known.insert(variable.name.clone(), value.clone());
            all.set(&variable.name, value)?;
        }
    }
    for (name, value) in services {
        if !all.places.contains_key(&name) {
            all.set(&name, value)?;
        }
    }
    Ok(all.variables.into_iter().flatten().collect())
}

/// Variables with a limited size, in the order of their definition.
#[derive(Default)]
struct Environment {
    /// Nothing for a variable that was set again later.
    variables: Vec<Option<(String, String)>>,
    /// The index of each name.
    places: HashMap<String, usize>,
    /// The bytes of all definitions.
    size: usize,
}

impl Environment {
    fn set(&mut self, name: &str, value: String) -> Result<(), Problem> {
        self.size += name.len() + value.len();
        if self.size > LIMIT {
            return Err(too_long());
        }
        if let Some(old) = self.places.insert(name.to_owned(), self.variables.len()) {
            self.variables[old] = None;
        }
        self.variables.push(Some((name.to_owned(), value)));
        Ok(())
    }
}

fn too_long() -> Problem {
    Problem(format!("the environment is larger than {LIMIT} bytes"))
}

fn add_sources(
    container: &Container,
    objects: &Objects,
    all: &mut Environment,
) -> Result<(), Problem> {
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(source) = &from.config_map_ref {
            match objects.config_maps.get(&source.name) {
                Some(map) => {
                    for (key, text) in map.data.iter().flatten() {
                        all.set(&format!("{prefix}{key}"), text.clone())?;
                    }
                }
                None if source.optional == Some(true) => {}
                None => return Err(missing("configmap", &source.name)),
            }
        }
        if let Some(source) = &from.secret_ref {
            match objects.secrets.get(&source.name) {
                Some(secret) => {
                    for (key, ByteString(bytes)) in secret.data.iter().flatten() {
                        let value = String::from_utf8_lossy(bytes).into_owned();
                        all.set(&format!("{prefix}{key}"), value)?;
                    }
                }
                None if source.optional == Some(true) => {}
                None => return Err(missing("secret", &source.name)),
            }
        }
    }
    Ok(())
}

fn missing(kind: &str, name: &str) -> Problem {
    Problem(format!("{kind} {name:?} not found"))
}

fn referenced(
    pod: &Pod,
    container: &Container,
    source: &EnvVarSource,
    inputs: &Inputs,
) -> Result<Option<String>, Problem> {
    let namespace = spec::namespace(pod);
    if let Some(field) = &source.field_ref {
        return pod_field(pod, &field.field_path, inputs).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        let own = Some(container.name.as_str());
        let text = downward::resource(pod, selector, own, inputs.node);
        return text.map(Some).map_err(|error| Problem(error.to_string()));
    }
    if let Some(key) = &source.config_map_key_ref {
        let optional = key.optional == Some(true);
        let Some(map) = inputs.objects.config_maps.get(&key.name) else {
            return if optional {
                Ok(None)
            } else {
                Err(missing("configmap", &key.name))
            };
        };
        let found = map
            .data
            .as_ref()
            .and_then(|data| data.get(&key.key))
            .cloned();
        return match found {
            None if !optional => Err(Problem(format!(
                "couldn't find key {} in ConfigMap {namespace}/{}",
                key.key, key.name
            ))),
            found => Ok(found),
        };
    }
    if let Some(key) = &source.secret_key_ref {
        let optional = key.optional == Some(true);
        let Some(secret) = inputs.objects.secrets.get(&key.name) else {
            return if optional {
                Ok(None)
            } else {
                Err(missing("secret", &key.name))
            };
        };
        let found = secret.data.as_ref().and_then(|data| data.get(&key.key));
        return match found {
            None if !optional => Err(Problem(format!(
                "couldn't find key {} in Secret {namespace}/{}",
                key.key, key.name
            ))),
            found => Ok(found.map(|ByteString(b)| String::from_utf8_lossy(b).into_owned())),
        };
    }
    match &source.file_key_ref {
        Some(file) => from_file(file, inputs),
        None => Err(Problem("a variable without a source".to_owned())),
    }
}

fn from_file(source: &FileKeySelector, inputs: &Inputs) -> Result<Option<String>, Problem> {
    let volume = inputs.volumes.get(&source.volume_name).ok_or_else(|| {
        let name = &source.volume_name;
        Problem(format!(
            "cannot find the volume {name:?} referenced by FileKeyRef"
        ))
    })?;
    let unreadable = |why: &dyn std::fmt::Display| {
        Problem(format!("couldn't parse env file {:?}: {why}", source.path))
    };
    let text = env_file::read(volume, &source.path).map_err(|error| unreadable(&error))?;
    let value = env_file::find(&text, &source.key).map_err(|why| unreadable(&why))?;
    match value {
        None if source.optional != Some(true) => Err(Problem(format!(
            "environment variable key {:?} not found in file {:?}",
            source.key, source.path
        ))),
        value => Ok(value),
    }
}

fn pod_field(pod: &Pod, path: &str, inputs: &Inputs) -> Result<String, Problem> {
    let spec = spec::spec(pod);
    let first = |ips: &[String]| ips.first().cloned().unwrap_or_default();
    Ok(match path {
        "spec.nodeName" => spec.node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => spec.service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => first(inputs.host_ips),
        "status.hostIPs" => inputs.host_ips.join(","),
        "status.podIP" => first(inputs.pod_ips),
        "status.podIPs" => inputs.pod_ips.join(","),
        _ => return downward::field(pod, path).map_err(|error| Problem(error.to_string())),
    })
}

fn service_variables(pod: &Pod, services: &[&Service]) -> Variables {
    let links = spec::spec(pod).enable_service_links != Some(false);
    let mut all = Variables::new();
    for service in services {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let is_master = namespace == "default" && name == "kubernetes";
        if is_master || (links && namespace == spec::namespace(pod)) {
            all.extend(variables_of(service));
        }
    }
    all
}

fn variables_of(service: &Service) -> Variables {
    let Some(spec) = &service.spec else {
        return Variables::new();
    };
    let ip = spec.cluster_ip.as_deref().unwrap_or_default();
    let ports = spec.ports.as_deref().unwrap_or_default();
    let Some(first) = ports.first().filter(|_| !ip.is_empty() && ip != "None") else {
        return Variables::new();
    };
    let upper = |text: &str| text.to_uppercase().replace('-', "_");
    let prefix = upper(service.metadata.name.as_deref().unwrap_or_default());
    let host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    };
    let mut all = vec![
        (format!("{prefix}_SERVICE_HOST"), ip.to_owned()),
        (format!("{prefix}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            all.push((
                format!("{prefix}_SERVICE_PORT_{}", upper(name)),
                port.port.to_string(),
            ));
        }
    }
    for (index, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let lower = protocol.to_lowercase();
        let url = format!("{lower}://{host}:{}", port.port);
        if index == 0 {
            all.push((format!("{prefix}_PORT"), url.clone()));
        }
        let key = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        all.push((key.clone(), url));
        all.push((format!("{key}_PROTO"), lower));
        all.push((format!("{key}_PORT"), port.port.to_string()));
        all.push((format!("{key}_ADDR"), ip.to_owned()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(env: serde_json::Value, from: serde_json::Value) -> Result<Variables, Problem> {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "env": env, "envFrom": from}]}}))
        .unwrap();
        let objects = Objects {
            config_maps: [(
                "m".to_owned(),
                serde_json::from_value(serde_json::json!({"data": {"K": "v", "L": "w"}})).unwrap(),
            )]
            .into(),
            secrets: [(
                "s".to_owned(),
                serde_json::from_value(serde_json::json!({"data": {"P": "cHc="}})).unwrap(),
            )]
            .into(),
            ..Default::default()
        };
        let service: Service = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "my-db", "namespace": "ns"},
            "spec": {"clusterIP": "10.43.0.5", "ports": [{"name": "sql", "port": 5432}]}}))
        .unwrap();
        let node = NodeFacts::default();
        let inputs = Inputs {
            objects: &objects,
            services: &[&service],
            node: &node,
            host_ips: &["192.168.0.1".to_owned()],
            pod_ips: &["10.42.0.2".to_owned()],
            volumes: &BTreeMap::new(),
        };
        environment(&pod, &pod.spec.as_ref().unwrap().containers[0], &inputs)
    }

    fn value(all: &Variables, name: &str) -> Option<String> {
        all.iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
    }

    #[test]
    fn variables_come_from_values_fields_maps_and_secrets_and_may_use_earlier_ones() {
        let all = make(
            serde_json::json!([
                {"name": "A", "value": "1"},
                {"name": "B", "value": "$(A)-$(PRE_K)-$(MY_DB_SERVICE_HOST)"},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "MK", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "K"}}},
                {"name": "SP", "valueFrom": {"secretKeyRef": {"name": "s", "key": "P"}}},
                {"name": "OPT", "valueFrom": {"secretKeyRef": {"name": "x", "key": "P", "optional": true}}}
            ]),
            serde_json::json!([{"prefix": "PRE_", "configMapRef": {"name": "m"}}]),
        )
        .unwrap();
        let cases = [
            ("A", "1"),
            ("B", "1-v-10.43.0.5"),
            ("IP", "10.42.0.2"),
            ("NODE", "n1"),
            ("MK", "v"),
            ("SP", "pw"),
            ("PRE_L", "w"),
        ];
        for (name, expected) in cases {
            assert_eq!(value(&all, name).as_deref(), Some(expected), "{name}");
        }
        assert_eq!(value(&all, "OPT"), None);
    }

    #[test]
    fn later_definitions_win_and_their_place_counts() {
        let env = serde_json::json!([{"name": "K", "value": "1"}, {"name": "A", "value": "$(K)"},
            {"name": "K", "value": "2"}, {"name": "B", "value": "$(K)"}]);
        let all = make(env, serde_json::json!([{"configMapRef": {"name": "m"}}])).unwrap();
        let own: Vec<_> = { all.iter() }.filter(|(name, _)| name.len() == 1).collect();
        let expected = [("L", "w"), ("A", "1"), ("K", "2"), ("B", "2")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(own, expected.iter().collect::<Vec<_>>());
    }

    #[test]
    fn an_environment_that_grows_with_each_reference_is_refused() {
        let doubles = |index: usize| match index {
            0 => serde_json::json!({"name": "X0", "value": "ha"}),
            _ => {
                let before = format!("$(X{0})$(X{0})", index - 1);
                serde_json::json!({"name": format!("X{index}"), "value": before})
            }
        };
        let env = |count: usize| (0..count).map(doubles).collect::<Vec<_>>().into();
        assert!(make(env(20), serde_json::json!([])).is_ok());
        let refused = "the environment is larger than 8388608 bytes";
        let error = make(env(60), serde_json::json!([])).err().unwrap();
        assert_eq!(error.0, refused);
        // So is one with the same large object under many prefixes.
        let from = |index| serde_json::json!({"prefix": format!("{index:0>200}"), "configMapRef": {"name": "m"}});
        let from: Vec<_> = (0..30_000).map(from).collect();
        let error = make(serde_json::json!([]), from.into()).err().unwrap();
        assert_eq!(error.0, refused);
    }

    #[test]
    fn services_are_announced_by_variables() {
        let all = make(serde_json::json!([]), serde_json::json!([])).unwrap();
        let cases = [
            ("MY_DB_SERVICE_HOST", "10.43.0.5"),
            ("MY_DB_SERVICE_PORT", "5432"),
            ("MY_DB_SERVICE_PORT_SQL", "5432"),
            ("MY_DB_PORT", "tcp://10.43.0.5:5432"),
            ("MY_DB_PORT_5432_TCP_ADDR", "10.43.0.5"),
        ];
        for (name, expected) in cases {
            assert_eq!(value(&all, name).as_deref(), Some(expected), "{name}");
        }
    }

    #[test]
    fn missing_sources_of_variables_are_reported() {
        let missing_key = serde_json::json!([
            {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "Z"}}}]);
        let error = make(missing_key, serde_json::json!([])).err().unwrap();
        assert_eq!(error.0, "couldn't find key Z in ConfigMap ns/m");
        let from = serde_json::json!([{"secretRef": {"name": "gone"}}]);
        let error = make(serde_json::json!([]), from).err().unwrap();
        assert_eq!(error.0, "secret \"gone\" not found");
    }
}
