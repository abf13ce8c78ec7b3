//! Tables: slices, claims and what is allocated, and which devices the claims get.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use serde_json::{Value, json};

use super::{
    allocated::Allocated,
    classes::Classes,
    selectors::Selectors,
    slices::{Slice, Slices},
    *,
};
use crate::samples;

/// Everything that an allocation depends on.
#[derive(Default)]
pub(super) struct World {
    pub(super) slices: Slices,
    pub(super) classes: Classes,
    pub(super) allocated: Allocated,
    pub(super) selectors: Selectors,
}

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A slice of pool `name` that is complete by itself.
pub(super) fn slice(name: &str, nodes: Value, devices: &Value) -> Value {
    let pool = json!({"name": name, "generation": 1, "resourceSliceCount": 1});
    let mut spec = json!({"driver": "d.example.com", "pool": pool, "devices": devices});
    spec.as_object_mut()
        .unwrap()
        .extend(nodes.as_object().unwrap().clone());
    json!({"metadata": {"name": name}, "spec": spec})
}

pub(super) fn claim(name: &str, devices: &Value) -> ResourceClaim {
    let meta = json!({"name": name, "namespace": "default", "uid": name});
    parsed(json!({"metadata": meta, "spec": {"devices": devices}}))
}

/// A request for a number of devices of the class `any`.
pub(super) fn exactly(name: &str, count: usize, more: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "any", "allocationMode": "ExactCount",
        "count": count});
    exactly
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({"name": name, "exactly": exactly})
}

fn selector(text: &str) -> Value {
    json!([{"cel": {"expression": text}}])
}

impl World {
    pub(super) fn new(slices: &[Value]) -> Self {
        let mut world = Self::default();
        for slice in slices {
            let name = slice["metadata"]["name"].as_str().unwrap();
            world
                .slices
                .put(name, Some(Slice::new(&parsed(slice.clone()))));
        }
        world.class("any", json!({}));
        world
    }

    fn class(&mut self, name: &str, spec: Value) {
        let class = parsed(json!({"metadata": {"name": name}, "spec": spec}));
        self.classes.put(name, Some(&Arc::new(class)));
    }

    pub(super) fn allocate(
        &self,
        node: &NodeInfo,
        claims: &[&ResourceClaim],
    ) -> Result<Option<Vec<AllocationResult>>, Error> {
        let inventory = Inventory {
            slices: &self.slices,
            classes: &self.classes,
            in_use: InUse {
                known: &self.allocated,
                pending: &Allocated::default(),
            },
            selectors: &self.selectors,
            stop: &|| false,
        };
        inventory.allocate(node, claims, || "share".into())
    }

    /// The devices of each claim on node `n1`, each with its request.
    fn devices(&self, claims: &[&ResourceClaim]) -> Result<Option<Vec<String>>, Error> {
        let found = self.allocate(&samples::labelled("n1", &[("zone", "a")]), claims)?;
        Ok(found.map(|all| all.iter().map(shown).collect()))
    }

    fn expect(&self, devices: &Value, expected: Option<&str>) {
        let found = self.devices(&[&claim("c", devices)]).unwrap();
        let expected = expected.map(|text| vec![text.to_owned()]);
        assert_eq!(found, expected, "{devices}");
    }
}

/// `request=device` of each device.
pub(super) fn shown(allocation: &AllocationResult) -> String {
    let results = allocation
        .devices
        .as_ref()
        .unwrap()
        .results
        .iter()
        .flatten();
    let results = results.map(|one| format!("{}={}", one.request, one.device));
    results.collect::<Vec<_>>().join(" ")
}

fn gpus() -> Vec<Value> {
    let gpu = |name: &str, model: &str, numa: i64| {
        json!({"name": name, "attributes": {"model": {"string": model}, "numa": {"int": numa}},
            "capacity": {"memory": {"value": "40Gi"}}})
    };
    let devices = json!([
        gpu("a", "x", 0),
        gpu("b", "y", 0),
        gpu("c", "x", 1),
        gpu("d", "y", 1)
    ]);
    vec![slice("n1", json!({"nodeName": "n1"}), &devices)]
}

#[test]
fn requests_get_the_first_devices_that_their_selectors_match() {
    let mut world = World::new(&gpus());
    let class = selector("device.attributes['d.example.com'].model == 'y'");
    world.class("y", json!({"selectors": class}));
    let request = |count, more| json!({"requests": [exactly("r", count, more)]});
    world.expect(&request(1, json!({})), Some("r=a"));
    world.expect(&request(4, json!({})), Some("r=a r=b r=c r=d"));
    world.expect(&request(5, json!({})), None);
    let second = selector("device.attributes['d.example.com'].numa == 1");
    world.expect(&request(2, json!({"selectors": second})), Some("r=c r=d"));
    world.expect(&request(1, json!({"deviceClassName": "y"})), Some("r=b"));
    let more = json!({"deviceClassName": "y", "selectors": second});
    world.expect(&request(1, more.clone()), Some("r=d"));
    world.expect(&request(2, more), None);
    let all = json!({"allocationMode": "All", "selectors": second});
    world.expect(&request(1, all), Some("r=c r=d"));
    let none = json!({"allocationMode": "All", "selectors": selector("false")});
    world.expect(&request(1, none), None);
}

#[test]
fn devices_of_other_claims_are_not_allocated_again_except_with_admin_access() {
    let mut world = World::new(&gpus());
    let both = json!({"requests": [exactly("r", 2, json!({}))]});
    let first = claim("one", &both);
    let found = world
        .allocate(&samples::node("n1", "1", "1Gi"), &[&first])
        .unwrap()
        .unwrap();
    world.allocated.add(&found[0]);
    world.expect(&both, Some("r=c r=d"));
    let two = [claim("two", &both), claim("three", &both)];
    assert_eq!(world.devices(&[&two[0], &two[1]]), Ok(None));
    let all = json!({"requests": [exactly("r", 1, json!({"allocationMode": "All"}))]});
    world.expect(&all, None);
    let admin = json!({"allocationMode": "All", "adminAccess": true});
    world.expect(
        &json!({"requests": [exactly("r", 1, admin)]}),
        Some("r=a r=b r=c r=d"),
    );
    world.allocated.remove(&found[0]);
    world.expect(&both, Some("r=a r=b"));
}

#[test]
fn the_first_available_alternative_is_taken() {
    let world = World::new(&gpus());
    let alternative = |name: &str, model: &str, count: usize| {
        let text = format!("device.attributes['d.example.com'].model == '{model}'");
        json!({"name": name, "deviceClassName": "any", "allocationMode": "ExactCount",
            "count": count, "selectors": selector(&text)})
    };
    let list = |all: Value| json!({"requests": [{"name": "r", "firstAvailable": all}]});
    let x = alternative("x", "x", 1);
    world.expect(&list(json!([x, alternative("y", "y", 1)])), Some("r/x=a"));
    world.expect(
        &list(json!([alternative("many", "x", 3), x])),
        Some("r/x=a"),
    );
    world.expect(&list(json!([alternative("z", "z", 1)])), None);
    // The first alternative would take what the second request needs.
    let text = "device.attributes['d.example.com'].model == 'x'";
    let others = exactly("s", 2, json!({"selectors": selector(text)}));
    let list = json!([x, alternative("y", "y", 1)]);
    let both = json!({"requests": [{"name": "r", "firstAvailable": list}, others]});
    world.expect(&both, Some("r/y=b s=a s=c"));
}

#[test]
fn constraints_hold_for_the_requests_that_they_name() {
    let world = World::new(&gpus());
    let request = |name: &str, count| exactly(name, count, json!({}));
    let claim = |requests: Value, kind: &str, attribute: &str, names: Value| json!({"requests": requests, "constraints": [{kind: attribute, "requests": names}]});
    let (model, numa) = ("d.example.com/model", "d.example.com/numa");
    let two = json!([request("r", 2)]);
    world.expect(
        &claim(two.clone(), "matchAttribute", model, json!([])),
        Some("r=a r=c"),
    );
    world.expect(
        &claim(two.clone(), "matchAttribute", numa, json!([])),
        Some("r=a r=b"),
    );
    world.expect(
        &claim(two.clone(), "distinctAttribute", model, json!([])),
        Some("r=a r=b"),
    );
    world.expect(
        &claim(two, "matchAttribute", "d.example.com/none", json!([])),
        None,
    );
    let three = json!([request("r", 3)]);
    world.expect(&claim(three, "distinctAttribute", model, json!([])), None);
    let pair = json!([request("r", 1), request("s", 2)]);
    world.expect(
        &claim(pair.clone(), "matchAttribute", model, json!(["s"])),
        Some("r=a s=b s=d"),
    );
    world.expect(
        &claim(pair, "matchAttribute", model, json!(["r"])),
        Some("r=a s=b s=c"),
    );
}

#[test]
fn only_devices_for_the_node_are_allocated() {
    let device = |name: &str| json!([{"name": name}]);
    let expression = |value: &str| {
        let zone = json!({"key": "zone", "operator": "In", "values": [value]});
        json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}})
    };
    let per_device = json!([{"name": "p1", "nodeName": "n2"}, {"name": "p2", "nodeName": "n1"}]);
    let slices = [
        slice("p1", json!({"nodeName": "n2"}), &device("elsewhere")),
        slice("p2", expression("b"), &device("other-zone")),
        slice("p3", expression("a"), &device("zone")),
        slice("p4", json!({"allNodes": true}), &device("all")),
        slice("p5", json!({"perDeviceNodeSelection": true}), &per_device),
    ];
    let world = World::new(&slices);
    let all = json!({"requests": [exactly("r", 1, json!({"allocationMode": "All"}))]});
    world.expect(&all, Some("r=zone r=all r=p2"));
    let node = samples::labelled("n1", &[("zone", "a")]);
    let selectors = |count| {
        let claim = claim("c", &json!({"requests": [exactly("r", count, json!({}))]}));
        let found = world.allocate(&node, &[&claim]).unwrap().unwrap();
        serde_json::to_value(&found[0].node_selector).unwrap()
    };
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let in_zone = json!({"nodeSelectorTerms": [{"matchExpressions": [zone]}]});
    assert_eq!(selectors(1), in_zone);
    assert_eq!(selectors(2), in_zone);
    let name = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
    assert_eq!(
        selectors(3),
        json!({"nodeSelectorTerms": [{"matchFields": [name]}]})
    );
}

#[test]
fn pools_that_are_being_updated_or_contradict_themselves_are_not_used() {
    let with = |name: &str, slice_name: &str, generation: i64, count: i64, device: &str| {
        let mut slice = slice(name, json!({"nodeName": "n1"}), &json!([{"name": device}]));
        slice["metadata"]["name"] = json!(slice_name);
        slice["spec"]["pool"]["generation"] = json!(generation);
        slice["spec"]["pool"]["resourceSliceCount"] = json!(count);
        slice
    };
    let one = json!({"requests": [exactly("r", 1, json!({}))]});
    let all = json!({"requests": [exactly("r", 1, json!({"allocationMode": "All"}))]});
    // The newer generation replaces the older one.
    let world = World::new(&[with("p", "s1", 1, 1, "old"), with("p", "s2", 2, 1, "new")]);
    world.expect(&all, Some("r=new"));
    let world = World::new(&[with("p", "s1", 1, 2, "a")]);
    world.expect(&one, None);
    let error = world.devices(&[&claim("c", &all)]).unwrap_err();
    let text = "claim default/c, request r: asks for all devices, but resource pool d.example.com/p is currently being updated";
    assert_eq!(error, Error::Failed(text.into()));
    let world = World::new(&[with("p", "s1", 1, 2, "a"), with("p", "s2", 1, 2, "a")]);
    let error = world.devices(&[&claim("c", &one)]).unwrap_err();
    assert_eq!(
        error,
        Error::OnNode("invalid resource pools were encountered".into())
    );
    // Another pool is used.
    let world = World::new(&[with("p", "s1", 1, 2, "a"), with("q", "s2", 1, 1, "b")]);
    world.expect(&one, Some("r=b"));
}

#[test]
fn tainted_devices_need_a_toleration() {
    let device = |name: &str, effect: &str| json!({"name": name, "taints": [{"key": "k", "value": "v", "effect": effect}]});
    let devices = json!([
        device("a", "NoSchedule"),
        device("b", "NoExecute"),
        device("c", "None")
    ]);
    let world = World::new(&[slice("n1", json!({"nodeName": "n1"}), &devices)]);
    let request = |tolerations: Value| json!({"requests": [exactly("r", 1, json!({"tolerations": tolerations}))]});
    world.expect(&request(json!([])), Some("r=c"));
    let exists = |effect: &str| json!([{"key": "k", "operator": "Exists", "effect": effect}]);
    world.expect(&request(exists("NoSchedule")), Some("r=a"));
    world.expect(&request(exists("NoExecute")), Some("r=b"));
    let equal = json!([{"key": "k", "operator": "Equal", "value": "w"}]);
    world.expect(&request(equal), Some("r=c"));
    let claim = claim("c", &request(exists("NoSchedule")));
    let found = world
        .allocate(&samples::node("n1", "1", "1Gi"), &[&claim])
        .unwrap()
        .unwrap();
    let results = found[0].devices.as_ref().unwrap().results.as_ref().unwrap();
    assert_eq!(results[0].tolerations.as_ref().unwrap().len(), 1);
}

#[test]
fn partitions_of_a_device_exclude_each_other_by_counters() {
    let partition = |name: &str, memory: &str| {
        let counters = json!({"memory": {"value": memory}});
        json!({"name": name, "consumesCounters": [{"counterSet": "gpu", "counters": counters}]})
    };
    let devices = json!([
        partition("whole", "40Gi"),
        partition("half-0", "20Gi"),
        partition("half-1", "20Gi")
    ]);
    let mut partitions = slice("n1", json!({"nodeName": "n1"}), &devices);
    partitions["spec"]["pool"]["resourceSliceCount"] = json!(2);
    let mut counters = partitions.clone();
    counters["metadata"]["name"] = json!("counters");
    counters["spec"]["devices"] = json!([]);
    counters["spec"]["sharedCounters"] =
        json!([{"name": "gpu", "counters": {"memory": {"value": "40Gi"}}}]);
    let mut world = World::new(&[partitions.clone(), counters.clone()]);
    let request = |count| json!({"requests": [exactly("r", count, json!({}))]});
    world.expect(&request(1), Some("r=whole"));
    world.expect(&request(2), Some("r=half-0 r=half-1"));
    world.expect(&request(3), None);
    let half = selector("device.driver == 'd.example.com'");
    let claim = claim(
        "c",
        &json!({"requests": [exactly("r", 2, json!({"selectors": half}))]}),
    );
    let found = world
        .allocate(&samples::node("n1", "1", "1Gi"), &[&claim])
        .unwrap()
        .unwrap();
    world.allocated.add(&found[0]);
    world.expect(&request(1), None);
    // A counter that does not exist makes the pool invalid.
    counters["spec"]["sharedCounters"][0]["name"] = json!("other");
    let world = World::new(&[partitions, counters]);
    assert!(world.devices(&[&claim]).is_err());
}

#[test]
fn a_device_is_shared_as_long_as_its_capacity_lasts() {
    let policy =
        json!({"default": "10Gi", "validRange": {"min": "5Gi", "max": "30Gi", "step": "5Gi"}});
    let device = json!({"name": "a", "allowMultipleAllocations": true,
        "capacity": {"memory": {"value": "40Gi", "requestPolicy": policy}}});
    let mut world = World::new(&[slice("n1", json!({"nodeName": "n1"}), &json!([device]))]);
    let request = |memory: Option<&str>| {
        let requests = memory.map_or(json!({}), |memory| json!({"memory": memory}));
        json!({"requests": [exactly("r", 1, json!({"capacity": {"requests": requests}}))]})
    };
    let node = samples::node("n1", "1", "1Gi");
    let consumed = |world: &World, memory: Option<&str>| {
        let claim = claim("c", &request(memory));
        let found = world.allocate(&node, &[&claim]).unwrap()?.remove(0);
        let result = found.devices.as_ref().unwrap().results.as_ref().unwrap()[0].clone();
        assert_eq!(result.share_id.as_deref(), Some("share"));
        Some((found, result.consumed_capacity.unwrap()["memory"].0.clone()))
    };
    for (memory, expected) in [
        (None, Some("10Gi")),
        (Some("1Gi"), Some("5Gi")),
        (Some("11Gi"), Some("15Gi")),
        (Some("30Gi"), Some("30Gi")),
        (Some("31Gi"), None),
    ] {
        let found = consumed(&world, memory).map(|(_, amount)| amount);
        assert_eq!(found.as_deref(), expected, "{memory:?}");
    }
    let (first, _) = consumed(&world, Some("30Gi")).unwrap();
    world.allocated.add(&first);
    assert!(consumed(&world, Some("15Gi")).is_none());
    assert!(consumed(&world, Some("10Gi")).is_some());
    let two = [
        claim("one", &request(Some("5Gi"))),
        claim("two", &request(Some("5Gi"))),
    ];
    assert!(
        world
            .allocate(&node, &[&two[0], &two[1]])
            .unwrap()
            .is_some()
    );
    let more = claim("three", &request(Some("5Gi")));
    assert!(
        world
            .allocate(&node, &[&two[0], &two[1], &more])
            .unwrap()
            .is_none()
    );
    let unknown =
        json!({"requests": [exactly("r", 1, json!({"capacity": {"requests": {"x": "1"}}}))]});
    world.expect(&unknown, None);
    world.allocated.remove(&first);
    assert!(consumed(&world, Some("30Gi")).is_some());
}

#[test]
fn pools_with_binding_conditions_come_last_and_results_name_them() {
    let slow = json!([{"name": "slow", "bindsToNode": true, "bindingConditions": ["ready"],
        "bindingFailureConditions": ["failed"]}]);
    let world = World::new(&[
        slice("a", json!({"allNodes": true}), &slow),
        slice("b", json!({"allNodes": true}), &json!([{"name": "fast"}])),
    ]);
    let request = |count| json!({"requests": [exactly("r", count, json!({}))]});
    world.expect(&request(1), Some("r=fast"));
    let claim = claim("c", &request(2));
    let found = world
        .allocate(&samples::node("n1", "1", "1Gi"), &[&claim])
        .unwrap()
        .unwrap();
    let found = serde_json::to_value(&found[0]).unwrap();
    let results = &found["devices"]["results"];
    assert_eq!(results[1]["bindingConditions"], json!(["ready"]));
    assert_eq!(results[1]["bindingFailureConditions"], json!(["failed"]));
    let field = &found["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!(field["values"], json!(["n1"]));
}

#[test]
fn configuration_comes_from_the_class_and_from_the_claim() {
    let mut world = World::new(&gpus());
    let opaque =
        |text: &str| json!({"opaque": {"driver": "d.example.com", "parameters": {"k": text}}});
    world.class("configured", json!({"config": [opaque("class")]}));
    let class = json!({"deviceClassName": "configured"});
    let config = |text: &str, requests: Value| {
        let mut config = opaque(text);
        config["requests"] = requests;
        config
    };
    let devices = json!({
        "requests": [exactly("r", 1, class.clone()), exactly("s", 1, class), exactly("t", 1, json!({}))],
        "config": [config("all", json!([])), config("t", json!(["t"])), config("none", json!(["u"]))],
    });
    let claim = claim("c", &devices);
    let found = world
        .allocate(&samples::node("n1", "1", "1Gi"), &[&claim])
        .unwrap()
        .unwrap();
    let found = serde_json::to_value(&found[0].devices.as_ref().unwrap().config).unwrap();
    let line = |one: &Value| {
        let (source, requests) = (&one["source"], &one["requests"]);
        format!("{source} {requests} {}", one["opaque"]["parameters"]["k"])
    };
    let found: Vec<String> = found.as_array().unwrap().iter().map(line).collect();
    assert_eq!(
        found,
        [
            "\"FromClass\" [\"r\",\"s\"] \"class\"",
            "\"FromClaim\" [] \"all\"",
            "\"FromClaim\" [\"t\"] \"t\"",
        ]
    );
}

#[test]
fn errors_name_the_claim_or_class_and_the_search_can_be_stopped() {
    let mut world = World::new(&gpus());
    let request = |more| claim("c", &json!({"requests": [exactly("r", 1, more)]}));
    let failed = |world: &World, claim: &ResourceClaim| match world.devices(&[claim]) {
        Err(Error::Failed(why)) => why,
        other => panic!("{other:?}"),
    };
    let text = selector("device.attributes['d.example.com'].none == 1");
    let why = failed(&world, &request(json!({"selectors": text})));
    let (start, end) = (
        "claim default/c: selector #0: CEL runtime",
        "no such key: none",
    );
    assert!(why.starts_with(start) && why.ends_with(end), "{why}");
    world.class("broken", json!({"selectors": selector("1 +")}));
    let why = failed(&world, &request(json!({"deviceClassName": "broken"})));
    assert!(
        why.starts_with("class broken: selector #0: CEL compile error: "),
        "{why}"
    );
    let why = failed(&world, &request(json!({"count": 33})));
    assert_eq!(
        why,
        "claim default/c: number of requested devices 33 exceeds the claim limit of 32"
    );
    let why = failed(&world, &request(json!({"deviceClassName": "missing"})));
    let text = "claim default/c, request r: could not retrieve device class missing: deviceclass.resource.k8s.io \"missing\" not found";
    assert_eq!(why, text);
    let inventory = Inventory {
        slices: &world.slices,
        classes: &world.classes,
        in_use: InUse {
            known: &world.allocated,
            pending: &Allocated::default(),
        },
        selectors: &world.selectors,
        stop: &|| true,
    };
    let node = samples::node("n1", "1", "1Gi");
    let found = inventory.allocate(&node, &[&request(json!({}))], String::new);
    assert_eq!(found, Err(Error::Stopped));
}

#[test]
fn the_largest_search_fits_a_small_stack_and_larger_ones_are_rejected() {
    let device = |i: usize| json!({"name": format!("gpu-{i}")});
    let slices: Vec<Value> = (0..5)
        .map(|at| {
            let devices: Vec<Value> = (0..128).map(|i| device(at * 128 + i)).collect();
            slice(
                &format!("p{at}"),
                json!({"nodeName": "n1"}),
                &json!(devices),
            )
        })
        .collect();
    let devices = |claims: usize| {
        let world = World::new(&slices);
        let names: Vec<String> = (0..claims).map(|i| format!("c{i}")).collect();
        let request = json!({"requests": [exactly("r", 32, json!({}))]});
        let claims: Vec<ResourceClaim> = names.iter().map(|name| claim(name, &request)).collect();
        world.devices(&claims.iter().collect::<Vec<_>>())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let found = thread.spawn_scoped(scope, || devices(15)).unwrap();
        assert_eq!(found.join().unwrap().unwrap().unwrap().len(), 15);
    });
    let why = "the pod has too many resource claims: 544 claims, requests and devices exceed the \
               limit of 512";
    assert_eq!(devices(16), Err(Error::OnNode(why.into())));
}

#[test]
fn the_search_stops_between_devices_and_selectors() {
    let world = World::new(&gpus());
    let node = samples::node("n1", "1", "1Gi");
    let asks = std::cell::Cell::new(0);
    let all = json!({"allocationMode": "All", "selectors": selector("true")});
    for more in [all, json!({"selectors": selector("false")})] {
        asks.set(0);
        let inventory = Inventory {
            slices: &world.slices,
            classes: &world.classes,
            in_use: InUse {
                known: &world.allocated,
                pending: &Allocated::default(),
            },
            selectors: &world.selectors,
            stop: &|| asks.replace(asks.get() + 1) >= 2,
        };
        let claim = claim("c", &json!({"requests": [exactly("r", 1, more)]}));
        let found = inventory.allocate(&node, &[&claim], String::new);
        assert_eq!(found, Err(Error::Stopped));
        assert_eq!(asks.get(), 3);
    }
}
