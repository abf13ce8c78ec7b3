//! One test over all kinds: every verb that discovery lists for a kind works, in every encoding.
//! The objects are those of `samples.json`, one valid object of each kind.

use std::{panic::AssertUnwindSafe, time::Duration};

use apiserver::User;
use bytes::Bytes;
use futures::FutureExt as _;
use http_body_util::BodyExt;
use machinery::{
    Value,
    decode::{self, Findings, Format},
    encode,
    json::json,
    normalise, protobuf,
    schema::{self, Type},
};
use tower::Service as _;

use crate::{
    every_kind::all,
    support::{Server, eventually},
};

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const MERGE: &str = "application/merge-patch+json";

/// One kind under test.
struct Subject<'a> {
    server: &'a Server,
    collection: String,
    path: String,
    resource: Value,
    schema: &'static Type,
    sample: Value,
}

struct Answer {
    code: u16,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        machinery::json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

fn revision(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

impl Subject<'_> {
    async fn ask(
        &self,
        method: &str,
        path: &str,
        forms: [&str; 2],
        body: impl Into<Bytes>,
    ) -> Answer {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("accept", forms[0])
            .header("content-type", forms[1])
            .body(http_body_util::Full::new(body.into()))
            .unwrap();
        let user = User::new("kubernetes-admin", ["system:masters"]);
        let response = self.server.server.connect(user).call(request).await;
        let (parts, body) = response.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let code = parts.status.as_u16();
        Answer { code, body }
    }

    /// Sends a request that must succeed.
    async fn done(
        &self,
        method: &str,
        path: &str,
        forms: [&str; 2],
        body: impl Into<Bytes>,
    ) -> Answer {
        let answer = self.ask(method, path, forms, body).await;
        let said = String::from_utf8_lossy(&answer.body);
        assert!(
            matches!(answer.code, 200..=202),
            "{method} {path} {forms:?}: {} {said}",
            answer.code
        );
        answer
    }

    async fn get(&self) -> Option<Value> {
        let answer = self.ask("GET", &self.path, [JSON, JSON], "").await;
        (answer.code == 200).then(|| answer.json())
    }

    fn can(&self, verb: &str) -> bool {
        let mut verbs = self.resource["verbs"].as_array().unwrap().iter();
        verbs.any(|known| known == verb)
    }

    /// The sample in an encoding.
    fn written(&self, form: &str) -> Bytes {
        match form {
            // A comment, so that it is not valid JSON.
            YAML => format!("# in YAML\n{}", self.sample).into(),
            PROTOBUF => {
                let mut findings = Findings::default();
                let object = normalise::object(self.schema, self.sample.clone(), &mut findings);
                protobuf::encode(self.schema, &object.unwrap()).into()
            }
            _ => self.sample.to_string().into(),
        }
    }

    /// A response's object, in any encoding, as stored JSON.
    fn read(&self, form: &str, body: &Bytes) -> String {
        let object = match form {
            PROTOBUF => {
                let envelope = protobuf::decode(body).unwrap();
                let object = protobuf::decode_message(self.schema, &envelope).unwrap();
                let mut object =
                    normalise::object(self.schema, Value::Object(object), &mut Findings::default())
                        .unwrap();
                object.insert("apiVersion", self.sample["apiVersion"].clone());
                object.insert("kind", self.sample["kind"].clone());
                object
            }
            _ => {
                let format = if form == YAML {
                    Format::Yaml
                } else {
                    Format::Json
                };
                decode::object(format, body, Some(self.schema))
                    .unwrap()
                    .object
            }
        };
        let object =
            normalise::object(self.schema, Value::Object(object), &mut Findings::default());
        let bytes = encode::object(Some(self.schema), &object.unwrap()).bytes;
        String::from_utf8(bytes).unwrap()
    }

    async fn is_created(&self, form: &str) {
        let dry = format!("{}?dryRun=All", self.collection);
        let made = self
            .done("POST", &dry, [JSON, form], self.written(form))
            .await;
        assert_eq!(made.code, 201, "{dry}");
        assert!(self.get().await.is_none(), "{dry} made it");
        let made = self
            .done("POST", &self.collection, [form, form], self.written(form))
            .await;
        assert_eq!(made.code, 201, "{}", self.collection);
        let made: Value = machinery::json::from_str(&self.read(form, &made.body)).unwrap();
        assert_eq!(made["metadata"]["name"], self.sample["metadata"]["name"]);
        assert!(made["metadata"]["uid"].is_string(), "{}", self.path);
        let again = self
            .ask("POST", &self.collection, [JSON, form], self.written(form))
            .await;
        assert_eq!(again.json()["reason"], "AlreadyExists", "{}", self.path);
    }

    /// The same object in every encoding. Writing it back as read keeps its revision, so defaulting
    /// twice changes nothing.
    async fn is_the_same_in_every_form(&self) {
        eventually(|| async {
            let json = self.done("GET", &self.path, [JSON, JSON], "").await;
            for form in [JSON, YAML, PROTOBUF] {
                let read = self.done("GET", &self.path, [form, JSON], "").await;
                let (ours, theirs) = (self.read(form, &read.body), self.read(JSON, &json.body));
                if self.get().await? != json.json() {
                    // The server itself has written in between, as it does for a definition.
                    return None;
                }
                assert_eq!(ours, theirs, "{} {form}", self.path);
                let put = self.ask("PUT", &self.path, [JSON, form], read.body).await;
                if put.code == 409 {
                    return None;
                }
                assert_eq!(put.code, 200, "{} {form}: {}", self.path, put.json());
                assert_eq!(
                    revision(&put.json()),
                    revision(&json.json()),
                    "{}",
                    self.path
                );
            }
            Some(())
        })
        .await;
    }

    async fn is_listed_and_shown(&self) {
        let name = self.sample["metadata"]["name"].as_str().unwrap();
        let selected = format!("{}?fieldSelector=metadata.name%3D{name}", self.collection);
        let list = self.done("GET", &selected, [JSON, JSON], "").await.json();
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "{selected}");
        for path in [&selected, &self.path] {
            let table = self.done("GET", path, [TABLE, JSON], "").await.json();
            let columns = table["columnDefinitions"].as_array().unwrap();
            let rows = table["rows"].as_array().unwrap();
            let cells = rows[0]["cells"].as_array().unwrap();
            assert_eq!((rows.len(), cells.len()), (1, columns.len()), "{path}");
            let place = columns.iter().position(|column| column["name"] == "Name");
            // The first column of Events is the time they were last seen.
            if let Some(place) = place {
                assert_eq!(cells[place], name, "{path}");
            }
        }
    }

    async fn is_updated(&self) {
        let labelled = |mut object: Value| {
            object["metadata"]["labels"]["by"] = "update".into();
            object
        };
        for dry in [true, false] {
            eventually(|| async {
                let old = self.get().await?;
                let path = match dry {
                    true => format!("{}?dryRun=All", self.path),
                    false => self.path.clone(),
                };
                let new = labelled(old.clone()).to_string();
                let put = self.ask("PUT", &path, [JSON, JSON], new).await;
                if put.code == 409 {
                    return None;
                }
                assert_eq!(put.code, 200, "{path}: {}", put.json());
                assert_eq!(put.json()["metadata"]["labels"]["by"], "update", "{path}");
                let now = self.get().await?;
                match dry {
                    true => assert_eq!(now["metadata"]["labels"]["by"], Value::Null, "{path}"),
                    false => assert_eq!(now["metadata"]["labels"]["by"], "update", "{path}"),
                }
                Some(())
            })
            .await;
        }
    }

    async fn is_patched(&self) {
        let by = |manner: &str| json!({"metadata": {"labels": {"by": manner}}});
        let mut applied = by("apply");
        applied["apiVersion"] = self.sample["apiVersion"].clone();
        applied["kind"] = self.sample["kind"].clone();
        let pointer = json!([{"op": "replace", "path": "/metadata/labels/by", "value": "json"}]);
        for (media, manner, patch) in [
            (MERGE, "merge", by("merge")),
            (
                "application/strategic-merge-patch+json",
                "strategic",
                by("strategic"),
            ),
            ("application/json-patch+json", "json", pointer),
            ("application/apply-patch+yaml", "apply", applied),
        ] {
            let query = match manner {
                "apply" => "?fieldManager=applier&force=true",
                _ => "?fieldManager=patcher",
            };
            let path = format!("{}{query}", self.path);
            let dry = format!("{path}&dryRun=All");
            let body = patch.to_string();
            self.done("PATCH", &dry, [JSON, media], body.clone()).await;
            let before = self.get().await.unwrap();
            assert_ne!(before["metadata"]["labels"]["by"], manner, "{dry}");
            let made = self
                .done("PATCH", &path, [JSON, media], body.clone())
                .await
                .json();
            assert_eq!(made["metadata"]["labels"]["by"], manner, "{path}");
            let manager = match manner {
                "apply" => "applier",
                _ => "patcher",
            };
            let managers = made["metadata"]["managedFields"].as_array();
            let mut managers = managers.into_iter().flatten();
            // An object without managed fields gets a manager only by an apply.
            assert!(
                managers.any(|entry| entry["manager"] == manager)
                    || before["metadata"]["managedFields"].is_null() && manner != "apply",
                "{path}: {made}"
            );
            // Repeating it changes nothing.
            eventually(|| async {
                let before = self.get().await?;
                let again = self.done("PATCH", &path, [JSON, media], body.clone()).await;
                (revision(&before) == revision(&again.json())).then_some(())
            })
            .await;
        }
    }

    async fn has_a_status(&self) {
        let path = format!("{}/status", self.path);
        for form in [JSON, YAML, PROTOBUF] {
            eventually(|| async {
                let before = self.get().await?;
                let read = self.done("GET", &path, [form, JSON], "").await.body;
                let put = self.ask("PUT", &path, [JSON, form], read).await;
                if put.code == 409 {
                    return None;
                }
                assert_eq!(put.code, 200, "{path} {form}: {}", put.json());
                // The server itself may have written between the two reads, but not repeatedly.
                (revision(&before) == revision(&put.json())).then_some(())
            })
            .await;
        }
        let spec = self.get().await.unwrap()["spec"].clone();
        let patch = json!({"spec": null, "metadata": {"labels": {"by": "status"}}});
        let patched = self
            .ask("PATCH", &path, [JSON, MERGE], patch.to_string())
            .await;
        // Fields outside of the status are kept, or the error says why the update is invalid.
        if patched.code == 200 {
            assert_eq!(patched.json()["spec"], spec, "{path}");
        } else {
            assert_eq!(patched.code, 422, "{path}: {}", patched.json());
        }
        assert_eq!(self.get().await.unwrap()["spec"], spec, "{path}");
    }

    async fn is_deleted(&self, together: bool) {
        let path = match together {
            true => {
                let name = self.sample["metadata"]["name"].as_str().unwrap();
                format!("{}?fieldSelector=metadata.name%3D{name}", self.collection)
            }
            false => format!("{}?", self.path),
        };
        let dry = format!("{path}&dryRun=All");
        self.done("DELETE", &dry, [JSON, JSON], "").await;
        let there = self.get().await.unwrap();
        assert_eq!(there["metadata"]["deletionTimestamp"], Value::Null, "{dry}");
        self.done("DELETE", &path, [JSON, JSON], "").await;
        // Removes finalizers, as their controllers would.
        eventually(|| async {
            let Some(mut held) = self.get().await else {
                return Some(());
            };
            assert!(held["metadata"]["deletionTimestamp"].is_string(), "{path}");
            if self.resource["kind"] == "Namespace" {
                held["spec"]["finalizers"] = json!([]);
                let finalize = format!("{}/finalize", self.path);
                self.ask("PUT", &finalize, [JSON, JSON], held.to_string())
                    .await;
            }
            let patch = json!({"metadata": {"finalizers": null}}).to_string();
            self.ask("PATCH", &self.path, [JSON, MERGE], patch).await;
            None
        })
        .await;
    }

    /// The watch events of the object since a revision, until its deletion.
    async fn event_types_since(&self, since: &str) -> Vec<String> {
        let name = self.sample["metadata"]["name"].as_str().unwrap();
        let path = format!(
            "{}?watch=1&resourceVersion={since}&fieldSelector=metadata.name%3D{name}",
            self.collection
        );
        let user = User::new("kubernetes-admin", ["system:masters"]);
        let empty = http_body_util::Empty::<Bytes>::new();
        let request = http::Request::get(&path).body(empty).unwrap();
        let response = self.server.server.connect(user).call(request).await;
        let mut body = response.unwrap().into_body();
        let (mut text, mut event_types) = (Vec::new(), Vec::<String>::new());
        while event_types.last().is_none_or(|kind| kind != "DELETED") {
            let frame = tokio::time::timeout(Duration::from_secs(20), body.frame()).await;
            let frame = frame.expect(&path).expect(&path).unwrap();
            text.extend_from_slice(&frame.into_data().unwrap());
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let event: Value = machinery::json::from_slice(&line).unwrap();
                event_types.push(event["type"].as_str().unwrap().to_owned());
            }
        }
        event_types
    }

    async fn lives_its_life(&self, has_status: bool) {
        let list = self
            .done("GET", &self.collection, [JSON, JSON], "")
            .await
            .json();
        let since = revision(&list).to_owned();
        self.is_created(JSON).await;
        self.is_the_same_in_every_form().await;
        self.is_listed_and_shown().await;
        self.is_updated().await;
        self.is_patched().await;
        if has_status {
            self.has_a_status().await;
        }
        self.is_deleted(false).await;
        let event_types = self.event_types_since(&since).await;
        let path = &self.path;
        assert_eq!(
            event_types.first().map(String::as_str),
            Some("ADDED"),
            "{path}"
        );
        // An update and four patches.
        assert!(
            event_types
                .iter()
                .filter(|kind| *kind == "MODIFIED")
                .count()
                >= 5,
            "{path}: {event_types:?}"
        );
        for form in [YAML, PROTOBUF] {
            self.is_created(form).await;
            self.is_deleted(self.can("deletecollection")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_of_every_kind_works_in_every_form() {
    let server = Server::start().await;
    let samples: Value = machinery::json::from_str(include_str!("samples.json")).unwrap();
    let (mut seen, mut failed) = (0, Vec::new());
    for (collection, resource) in all(&server).await {
        let verbs = resource["verbs"].as_array().unwrap();
        if !verbs.iter().any(|verb| verb == "create") {
            continue;
        }
        let mut parts = collection.split('/').skip(1);
        let group = match parts.next() {
            Some("apis") => parts.next().unwrap(),
            _ => "",
        };
        let version = parts.next().unwrap();
        let kind = resource["kind"].as_str().unwrap();
        let mut sample = samples[format!("{group}/{kind}").as_str()].clone();
        assert!(sample.is_object(), "samples.json has no {group}/{kind}");
        sample["kind"] = kind.into();
        sample["apiVersion"] = match group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
        .into();
        if sample["metadata"]["name"].is_null() {
            sample["metadata"]["name"] = "sample".into();
        }
        let plural = resource["name"].as_str().unwrap();
        let schema = kinds::find(group, version, plural)
            .unwrap()
            .schema()
            .unwrap();
        let has_status = server
            .discovered(group, version)
            .await
            .iter()
            .any(|name| *name == format!("{plural}/status"));
        let subject = Subject {
            server: &server,
            path: format!(
                "{collection}/{}",
                sample["metadata"]["name"].as_str().unwrap()
            ),
            collection,
            resource,
            schema: schema::lookup(schema).unwrap(),
            sample,
        };
        // Continues, so that one run names every kind that fails.
        let life = AssertUnwindSafe(subject.lives_its_life(has_status));
        if life.catch_unwind().await.is_err() {
            failed.push(subject.path);
        }
        seen += 1;
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(seen > 50, "{seen} kinds");
}

impl Server {
    /// The names of a version's resources and subresources.
    async fn discovered(&self, group: &str, version: &str) -> Vec<String> {
        let path = match group {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        let document = crate::support::admin(self, "GET", &path, Value::Null)
            .await
            .json();
        let resources = document["resources"].as_array().unwrap().iter();
        resources
            .map(|resource| resource["name"].as_str().unwrap().to_owned())
            .collect()
    }
}
