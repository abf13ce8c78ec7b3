//! The search against a slow reference over random devices and claims: the reference tries every
//! choice of devices in order and checks each as a whole.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use super::{
    Error,
    selectors::Selectors,
    tests::{World, claim, exactly, shown, slice},
};
use crate::{cycle::SeededRng, samples};

/// A device of the test.
#[derive(Debug, Clone)]
struct Thing {
    name: String,
    color: Option<i64>,
    size: i64,
    memory: i64,
    /// What it consumes of the pool's counter.
    consumes: i64,
    is_shareable: bool,
    is_tainted: bool,
    is_taken: bool,
}

/// An alternative of a request.
#[derive(Debug, Clone)]
struct Want {
    name: String,
    /// `None` for all devices.
    count: Option<usize>,
    least_size: i64,
    memory: i64,
    tolerates: bool,
}

#[derive(Debug, Clone)]
struct Ask {
    alternatives: Vec<Want>,
}

#[derive(Debug, Clone)]
struct Wish {
    asks: Vec<Ask>,
    /// All colors are equal, or all differ.
    is_uniform: Option<bool>,
}

#[derive(Debug)]
struct Case {
    counter: i64,
    things: Vec<Thing>,
    wishes: Vec<Wish>,
}

fn chance(dice: &mut SeededRng, one_of: usize) -> bool {
    dice.below(one_of) == 0
}

fn number(dice: &mut SeededRng, limit: usize) -> i64 {
    i64::try_from(dice.below(limit)).unwrap()
}

impl Case {
    fn new(dice: &mut SeededRng) -> Self {
        let thing = |at: usize, dice: &mut SeededRng| Thing {
            name: format!("t{at}"),
            color: (!chance(dice, 6)).then(|| number(dice, 3)),
            size: number(dice, 4),
            memory: number(dice, 8) + 1,
            consumes: number(dice, 4),
            is_shareable: chance(dice, 3),
            is_tainted: chance(dice, 5),
            is_taken: chance(dice, 5),
        };
        let things: Vec<Thing> = (0..dice.below(5) + 1).map(|at| thing(at, dice)).collect();
        let wishes = (0..dice.below(2) + 1).map(|_| Self::wish(dice)).collect();
        Self {
            counter: number(dice, 8) + 2,
            things,
            wishes,
        }
    }

    fn wish(dice: &mut SeededRng) -> Wish {
        let is_uniform = chance(dice, 2).then(|| chance(dice, 2));
        let want = |at: usize, dice: &mut SeededRng| Want {
            name: format!("a{at}"),
            // A constraint against all devices is an error, which other tests show.
            count: (is_uniform.is_some() || !chance(dice, 5)).then(|| dice.below(3) + 1),
            least_size: number(dice, 3),
            memory: number(dice, 6),
            tolerates: chance(dice, 2),
        };
        let ask = |dice: &mut SeededRng| Ask {
            alternatives: (0..[1, 1, 2, 3][dice.below(4)])
                .map(|at| want(at, dice))
                .collect(),
        };
        Wish {
            asks: (0..dice.below(2) + 1).map(|_| ask(dice)).collect(),
            is_uniform,
        }
    }

    fn world(&self) -> World {
        let device = |thing: &Thing| {
            let counters = json!({"units": {"value": thing.consumes.to_string()}});
            let mut attributes = json!({"size": {"int": thing.size}});
            if let Some(color) = thing.color {
                attributes["color"] = json!({"int": color});
            }
            let taint = json!([{"key": "k", "effect": "NoSchedule"}]);
            json!({"name": thing.name, "attributes": attributes,
                "capacity": {"memory": {"value": thing.memory.to_string(),
                    "requestPolicy": {"default": "1", "validRange": {"min": "1"}}}},
                "allowMultipleAllocations": thing.is_shareable,
                "taints": if thing.is_tainted { taint } else { json!([]) },
                "consumesCounters": [{"counterSet": "set", "counters": counters}]})
        };
        let devices: Vec<Value> = self.things.iter().map(device).collect();
        let mut devices = slice("p", json!({"nodeName": "n1"}), &json!(devices));
        devices["spec"]["pool"]["resourceSliceCount"] = json!(2);
        let mut counters = devices.clone();
        counters["metadata"]["name"] = json!("counters");
        counters["spec"]["devices"] = json!([]);
        let units = json!({"units": {"value": self.counter.to_string()}});
        counters["spec"]["sharedCounters"] = json!([{"name": "set", "counters": units}]);
        let mut world = World::new(&[devices, counters]);
        for thing in self.things.iter().filter(|thing| thing.is_taken) {
            let mut result = json!({"request": "x", "driver": "d.example.com", "pool": "p",
                "device": thing.name});
            if thing.is_shareable {
                result["shareID"] = json!("s");
                result["consumedCapacity"] = json!({"memory": "1"});
            }
            let allocation = json!({"devices": {"results": [result]}});
            world
                .allocated
                .add(&serde_json::from_value(allocation).unwrap());
        }
        world
    }

    fn claims(&self) -> Vec<ResourceClaim> {
        let want = |want: &Want| {
            let text = format!(
                "device.attributes['d.example.com'].size >= {}",
                want.least_size
            );
            let requests = match want.memory {
                0 => json!({}),
                memory => json!({"memory": memory.to_string()}),
            };
            let toleration = json!([{"operator": "Exists"}]);
            let mode = if want.count.is_some() {
                "ExactCount"
            } else {
                "All"
            };
            json!({"allocationMode": mode, "count": want.count.unwrap_or(0),
                "selectors": [{"cel": {"expression": text}}], "capacity": {"requests": requests},
                "tolerations": if want.tolerates { toleration } else { json!([]) }})
        };
        let request = |(at, ask): (usize, &Ask)| match ask.alternatives.as_slice() {
            [one] => exactly(&format!("r{at}"), 1, want(one)),
            several => {
                let several = several.iter().map(|one| {
                    let mut alternative = want(one);
                    alternative["name"] = json!(one.name);
                    alternative["deviceClassName"] = json!("any");
                    alternative
                });
                let several: Vec<Value> = several.collect();
                json!({"name": format!("r{at}"), "firstAvailable": several})
            }
        };
        let devices = |(at, wish): (usize, &Wish)| {
            let requests: Vec<Value> = wish.asks.iter().enumerate().map(request).collect();
            let mut devices = json!({"requests": requests});
            if let Some(is_uniform) = wish.is_uniform {
                let kind = if is_uniform {
                    "matchAttribute"
                } else {
                    "distinctAttribute"
                };
                devices["constraints"] = json!([{kind: "d.example.com/color"}]);
            }
            claim(&format!("c{at}"), &devices)
        };
        self.wishes.iter().enumerate().map(devices).collect()
    }
}

/// One choice: for each claim and request the alternative and its devices.
type Choice = Vec<Vec<(usize, Vec<usize>)>>;

/// All ascending combinations of `count` numbers below `limit`.
fn combinations(limit: usize, count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for first in 0..limit {
        for rest in combinations(limit - first - 1, count - 1) {
            let rest = rest.into_iter().map(|at| at + first + 1);
            all.push([first].into_iter().chain(rest).collect());
        }
    }
    all
}

impl Case {
    /// What a share or a whole device has left before this pod.
    fn used_memory(thing: &Thing) -> i64 {
        i64::from(thing.is_taken && thing.is_shareable)
    }

    fn fits_alone(want: &Want, thing: &Thing) -> bool {
        thing.size >= want.least_size
            && Self::used_memory(thing) + want.memory.max(1) <= thing.memory
    }

    /// The choices of one request, in order.
    fn options(&self, ask: &Ask) -> Vec<(usize, Vec<usize>)> {
        let mut options = Vec::new();
        for (at, want) in ask.alternatives.iter().enumerate() {
            let devices = match want.count {
                Some(count) => combinations(self.things.len(), count),
                None => {
                    let things = self.things.iter().enumerate();
                    let all = things.filter(|(_, thing)| Self::fits_alone(want, thing));
                    let all: Vec<usize> = all.map(|(at, _)| at).collect();
                    if all.is_empty() {
                        Vec::new()
                    } else {
                        vec![all]
                    }
                }
            };
            options.extend(devices.into_iter().map(|devices| (at, devices)));
        }
        options
    }

    /// Whether a complete choice is allowed.
    fn is_allowed(&self, choice: &Choice) -> bool {
        let mut uses: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
        for (wish, claim) in self.wishes.iter().zip(choice) {
            let mut colors = Vec::new();
            for (ask, (alternative, devices)) in wish.asks.iter().zip(claim) {
                let want = &ask.alternatives[*alternative];
                for at in devices {
                    let thing = &self.things[*at];
                    let is_free = !thing.is_taken || thing.is_shareable;
                    let is_tolerated = !thing.is_tainted || want.tolerates;
                    if !is_free || !is_tolerated || !Self::fits_alone(want, thing) {
                        return false;
                    }
                    uses.entry(*at).or_default().push(want.memory.max(1));
                    colors.push(thing.color);
                }
            }
            let is_constrained = wish.is_uniform.is_some();
            if is_constrained && colors.iter().any(Option::is_none) {
                return false;
            }
            let mut different = colors.clone();
            different.sort_unstable();
            different.dedup();
            let holds = match wish.is_uniform {
                None => true,
                Some(true) => different.len() <= 1,
                Some(false) => different.len() == colors.len(),
            };
            if !holds {
                return false;
            }
        }
        let shared_well = uses.iter().all(|(at, memory)| {
            let thing = &self.things[*at];
            let is_full = Self::used_memory(thing) + memory.iter().sum::<i64>() > thing.memory;
            if thing.is_shareable {
                !is_full
            } else {
                memory.len() == 1
            }
        });
        let things = self.things.iter().enumerate();
        let used = things.filter(|(at, thing)| thing.is_taken || uses.contains_key(at));
        let consumed: i64 = used.map(|(_, thing)| thing.consumes).sum();
        // A new share of a device that is shared already needs no counters.
        let needs_counters = uses.keys().any(|at| {
            let thing = &self.things[*at];
            !(thing.is_taken && thing.is_shareable)
        });
        shared_well && (consumed <= self.counter || !needs_counters)
    }

    /// The first allowed choice.
    fn solve(&self) -> Option<Choice> {
        let asks: Vec<(usize, &Ask)> = self
            .wishes
            .iter()
            .enumerate()
            .flat_map(|(claim, wish)| wish.asks.iter().map(move |ask| (claim, ask)))
            .collect();
        let options: Vec<_> = asks.iter().map(|(_, ask)| self.options(ask)).collect();
        if options.iter().any(Vec::is_empty) {
            return None;
        }
        let mut at = vec![0; options.len()];
        loop {
            let mut choice: Choice = vec![Vec::new(); self.wishes.len()];
            for (i, (claim, _)) in asks.iter().enumerate() {
                choice[*claim].push(options[i][at[i]].clone());
            }
            if self.is_allowed(&choice) {
                return Some(choice);
            }
            let next = (0..at.len())
                .rev()
                .find(|i| at[*i] + 1 < options[*i].len())?;
            at[next] += 1;
            at[next + 1..].fill(0);
        }
    }

    fn show(&self, choice: &Choice) -> Vec<String> {
        let claim = |(wish, claim): (&Wish, &Vec<(usize, Vec<usize>)>)| {
            let mut all = Vec::new();
            for (i, (alternative, devices)) in claim.iter().enumerate() {
                let ask = &wish.asks[i];
                let name = &ask.alternatives[*alternative].name;
                let name = match ask.alternatives.len() {
                    1 => format!("r{i}"),
                    _ => format!("r{i}/{name}"),
                };
                let devices = devices.iter().map(|at| &self.things[*at].name);
                all.extend(devices.map(|device| format!("{name}={device}")));
            }
            all.join(" ")
        };
        self.wishes.iter().zip(choice).map(claim).collect()
    }
}

#[test]
fn the_search_finds_what_trying_everything_finds() {
    let (mut dice, mut allocated, mut refused) = (SeededRng::new(7), 0, 0);
    let (node, mut selectors) = (samples::node("n1", "1", "1Gi"), Selectors::default());
    for round in 0..4000 {
        let case = Case::new(&mut dice);
        let expected = case.solve().map(|choice| case.show(&choice));
        let claims = case.claims();
        let claims: Vec<&ResourceClaim> = claims.iter().collect();
        let mut world = case.world();
        world.selectors = selectors;
        let found: Result<_, Error> = world.allocate(&node, &claims);
        selectors = world.selectors;
        let found = found
            .unwrap()
            .map(|all| all.iter().map(shown).collect::<Vec<_>>());
        assert_eq!(found, expected, "round {round}: {case:#?}");
        match found {
            Some(_) => allocated += 1,
            None => refused += 1,
        }
    }
    assert!(allocated > 500 && refused > 500, "{allocated} {refused}");
}
