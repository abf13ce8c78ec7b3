//! All schemas and levels: the classification of every request.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use http::HeaderValue;
use machinery::Object;

use super::{
    defaults,
    demand::DemandStats,
    figures::{Figures, SchemaFigures},
    level::Level,
    limits::{self, Bounds, Share},
    queues::Queuing,
    rules::Rules,
    spec::{Distinguisher, LevelSpec, Response, SchemaSpec},
};
use request::{RequestInfo, User};

/// Maximum seats of any request.
const WIDEST: usize = 100;
/// Maximum percentage of a level's seats for one request.
const WIDEST_PERCENT: usize = 15;

/// A flow schema and its level.
pub(super) struct Schema {
    pub(super) name: String,
    /// `None` if the object does not exist yet.
    pub(super) uid: Option<HeaderValue>,
    pub(super) level_uid: Option<HeaderValue>,
    pub(super) level: Arc<Level>,
    pub(super) figures: SchemaFigures,
    rules: Rules,
    distinguisher: Option<Distinguisher>,
}

impl Schema {
    /// The flow of a request.
    pub(super) fn flow(&self, user: &User, info: &RequestInfo) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.name.hash(&mut hasher);
        match self.distinguisher {
            Some(Distinguisher::User) => user.name.hash(&mut hasher),
            Some(Distinguisher::Namespace) => {
                let namespace = info.resource.as_ref().map(|what| &what.namespace);
                namespace.hash(&mut hasher);
            }
            None => {}
        }
        hasher.finish()
    }
}

/// The schemas in the order of precedence.
pub(super) struct Table {
    schemas: Box<[Arc<Schema>]>,
}

impl Table {
    /// The number of requests dispatched at a level.
    pub(super) fn dispatched(&self, level: &Arc<Level>) -> u64 {
        let to_it = |schema: &&Arc<Schema>| Arc::ptr_eq(&schema.level, level);
        let counts = self.schemas.iter().filter(to_it);
        counts.map(|schema| schema.figures.dispatched.get()).sum()
    }

    /// The schema of a request. The last one matches everything.
    pub(super) fn classify(&self, user: &User, info: &RequestInfo) -> Option<&Arc<Schema>> {
        let mut schemas = self.schemas.iter();
        let found = schemas.find(|schema| schema.rules.match_request(user, info));
        found.or_else(|| {
            let catches = |schema: &&Arc<Schema>| schema.name == defaults::CATCH_ALL;
            self.schemas.iter().rfind(catches)
        })
    }
}

/// The existing levels and their limits.
pub(super) struct Levels {
    /// All seats.
    total: usize,
    figures: Figures,
    kept: BTreeMap<String, LevelState>,
}

/// A level and its share.
struct LevelState {
    level: Arc<Level>,
    share: Share,
    queuing: Option<Queuing>,
    bounds: Bounds,
    seen: DemandStats,
    current: usize,
    /// Whether it was deleted: its requests are still served.
    is_leaving: bool,
}

impl Levels {
    pub(super) fn new(total: usize, figures: Figures) -> Self {
        Self {
            total,
            figures,
            kept: BTreeMap::new(),
        }
    }

    /// Builds the table from the objects.
    pub(super) fn digest(&mut self, levels: &[Object], schemas: &[Object]) -> Table {
        let mut levels: Vec<LevelSpec> = levels.iter().filter_map(LevelSpec::new).collect();
        let is_there = |spec: &SchemaSpec| levels.iter().any(|level| level.name == spec.level);
        let mut schemas: Vec<SchemaSpec> = schemas.iter().map(SchemaSpec::new).collect();
        schemas.retain(is_there);
        // Mandatory objects count even while they do not exist.
        for default in defaults::levels().iter().filter(|one| one.is_mandatory) {
            let imagined = LevelSpec::new(&default.object);
            let missing = |spec: &LevelSpec| levels.iter().all(|level| level.name != spec.name);
            levels.extend(imagined.filter(missing));
        }
        for default in defaults::schemas().iter().filter(|one| one.is_mandatory) {
            let imagined = SchemaSpec::new(&default.object);
            if schemas.iter().all(|schema| schema.name != imagined.name) {
                schemas.push(imagined);
            }
        }
        schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        self.keep(&levels);
        let compile = |spec| self.compile(&levels, spec);
        Table {
            schemas: schemas.into_iter().filter_map(compile).collect(),
        }
    }

    fn compile(&self, levels: &[LevelSpec], spec: SchemaSpec) -> Option<Arc<Schema>> {
        let level = self.kept.get(&spec.level)?.level.clone();
        let level_spec = levels.iter().find(|level| level.name == spec.level)?;
        Some(Arc::new(Schema {
            figures: self.figures.schema(&spec.name, &spec.level),
            name: spec.name,
            uid: spec.uid,
            level_uid: level_spec.uid.clone(),
            level,
            rules: spec.rules,
            distinguisher: spec.distinguisher,
        }))
    }

    /// Updates the set of levels. Requests of a deleted level are served to completion.
    fn keep(&mut self, wanted: &[LevelSpec]) {
        for kept in self.kept.values_mut() {
            kept.is_leaving = true;
        }
        for spec in wanted {
            let is_exempt = spec.response == Response::Exempt;
            let kept = self
                .kept
                .entry(spec.name.clone())
                .or_insert_with(|| LevelState {
                    level: Arc::new(Level::new(&spec.name, is_exempt)),
                    share: spec.share,
                    queuing: None,
                    bounds: Bounds::default(),
                    seen: DemandStats::default(),
                    current: 0,
                    is_leaving: false,
                });
            kept.is_leaving = false;
            kept.share = spec.share;
            kept.queuing = match spec.response {
                Response::Queue(queuing) => Some(queuing),
                Response::Exempt | Response::Reject => None,
            };
        }
        self.adjust();
    }

    /// Adjusts the limits by demand. Deleted levels without requests are dropped.
    pub(super) fn adjust(&mut self) {
        self.kept
            .retain(|_, kept| !kept.is_leaving || !kept.level.is_idle());
        let shares = self.kept.values().map(|kept| u64::from(kept.share.shares));
        let sum = shares.sum();
        for (name, kept) in &mut self.kept {
            kept.bounds = kept.share.bounds(self.total, sum);
            kept.seen = kept.level.take_demand(&kept.seen);
            self.figures.level(name, kept.bounds);
        }
        let levels: Vec<limits::Level> =
            self.kept.values().map(LevelState::for_adjustment).collect();
        let adjusted = limits::adjust(&levels);
        self.figures.fair(adjusted.fair);
        let results = adjusted.limits.iter().zip(&adjusted.targets);
        for ((name, kept), (limit, target)) in self.kept.iter_mut().zip(results) {
            kept.current = *limit;
            kept.level.configure(kept.queuing, *limit, kept.widest());
            self.figures.adjusted(name, *limit, &kept.seen, *target);
        }
    }

    /// The levels sorted by name, and whether they are deleted.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Arc<Level>, bool)> {
        self.kept
            .values()
            .map(|kept| (&kept.level, kept.is_leaving))
    }
}

impl LevelState {
    fn for_adjustment(&self) -> limits::Level {
        limits::Level {
            is_exempt: self.level.is_exempt(),
            bounds: self.bounds,
            seen: self.seen,
            current: self.current,
        }
    }

    /// Bounds the seats of one request, so that requests of few flows cannot take all. Relative to
    /// the current limit: a level that borrows more gives more seats to a list, so that the number
    /// of concurrent lists stays the same.
    fn widest(&self) -> usize {
        let part = (self.current * WIDEST_PERCENT).div_ceil(100);
        let hand = self.queuing.map_or(1, |queuing| queuing.hand_size.max(1));
        part.min(self.current / hand).clamp(1, WIDEST)
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use kinds::tree;
    use machinery::json::json;

    use super::*;
    use registry_testing::object;
    use request::Query;

    fn objects(defaults: Vec<defaults::Default>) -> Vec<Object> {
        defaults.into_iter().map(|default| default.object).collect()
    }

    fn levels() -> Levels {
        Levels::new(600, Figures::new())
    }

    fn schema_of(table: &Table, user: &User, request: &str) -> (String, String) {
        let (method, path) = request.split_once(' ').unwrap();
        let method: Method = method.parse().unwrap();
        let info = RequestInfo::new(&method, path, &Query::parse(""));
        let schema = table.classify(user, &info).unwrap();
        (schema.name.clone(), schema.level.name.clone())
    }

    #[test]
    fn requests_belong_to_the_schemas_that_upstream_suggests() {
        let table = levels().digest(&objects(defaults::levels()), &objects(defaults::schemas()));
        let admin = User::new("root", ["system:masters"]);
        let node = User::new("system:node:a", ["system:nodes"]);
        let manager = User::new("system:kube-controller-manager", [""; 0]);
        let scheduler = User::new("system:kube-scheduler", [""; 0]);
        let own = User::service_account("kube-system", "job-controller");
        let account = User::service_account("default", "default");
        let eve = User::new("eve", [""; 0]);
        let anonymous = User::anonymous();
        let odd = User::default();
        let pods = "GET /api/v1/namespaces/a/pods";
        let lease = "PUT /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x";
        let patch = "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a";
        for (user, request, schema, level) in [
            (&admin, pods, "exempt", "exempt"),
            (&admin, "GET /healthz", "exempt", "exempt"),
            (&anonymous, "GET /healthz", "probes", "exempt"),
            (&eve, "GET /readyz/ping", "probes", "exempt"),
            (&eve, "POST /readyz", "global-default", "global-default"),
            (&manager, lease, "system-leader-election", "leader-election"),
            (
                &scheduler,
                lease,
                "system-leader-election",
                "leader-election",
            ),
            (&own, lease, "system-leader-election", "leader-election"),
            (&scheduler, patch, "kube-scheduler", "workload-high"),
            (&account, lease, "service-accounts", "workload-low"),
            (&node, patch, "system-node-high", "node-high"),
            (
                &node,
                "PATCH /api/v1/nodes/a/status",
                "system-node-high",
                "node-high",
            ),
            (&node, "GET /api/v1/nodes/a/proxy", "system-nodes", "system"),
            (&node, pods, "system-nodes", "system"),
            (&node, "GET /version", "system-nodes", "system"),
            (&manager, pods, "kube-controller-manager", "workload-high"),
            (&scheduler, pods, "kube-scheduler", "workload-high"),
            (&own, pods, "kube-system-service-accounts", "workload-high"),
            (&account, pods, "service-accounts", "workload-low"),
            (&eve, pods, "global-default", "global-default"),
            (&anonymous, "GET /api", "global-default", "global-default"),
            (&odd, pods, "catch-all", "catch-all"),
        ] {
            let expected = (schema.to_owned(), level.to_owned());
            assert_eq!(
                schema_of(&table, user, request),
                expected,
                "{} {request}",
                user.name
            );
        }
    }

    fn named(name: &str, precedence: i64, level: &str) -> Object {
        let mut schema = defaults::schemas().remove(9).object;
        let spec = tree::child_or_new(&mut schema, "spec");
        spec.insert("matchingPrecedence".to_owned(), precedence.into());
        spec.insert(
            "priorityLevelConfiguration".to_owned(),
            json!({"name": level}),
        );
        tree::child_or_new(&mut schema, "metadata").insert("name".to_owned(), name.into());
        schema
    }

    #[test]
    fn precedence_decides_then_the_name_and_a_schema_without_its_level_counts_for_nothing() {
        let mut schemas = objects(defaults::schemas());
        schemas.push(named("zeta", 700, "system"));
        schemas.push(named("beta", 700, "workload-low"));
        schemas.push(named("alpha", 600, "missing"));
        let table = levels().digest(&objects(defaults::levels()), &schemas);
        let eve = User::new("eve", [""; 0]);
        let found = schema_of(&table, &eve, "GET /api/v1/nodes");
        assert_eq!(found, ("beta".to_owned(), "workload-low".to_owned()));
    }

    #[test]
    fn without_any_object_the_mandatory_ones_are_imagined() {
        let table = levels().digest(&[], &[]);
        let admin = User::new("root", ["system:masters"]);
        let eve = User::new("eve", [""; 0]);
        assert_eq!(schema_of(&table, &admin, "GET /api/v1/nodes").1, "exempt");
        assert_eq!(schema_of(&table, &eve, "GET /api/v1/nodes").1, "catch-all");
        // A schema refers to an existing level; only the built-in default refers to a built-in
        // level.
        let table = levels().digest(&[], &objects(defaults::schemas()));
        assert_eq!(schema_of(&table, &eve, "GET /api/v1/nodes").1, "catch-all");
    }

    #[test]
    fn changed_and_removed_levels_keep_their_requests_until_they_end() {
        let mut levels = levels();
        let custom = |shares: i64| {
            let limited =
                json!({"nominalConcurrencyShares": shares, "limitResponse": {"type": "Reject"}});
            object(
                json!({"metadata": {"name": "mine"}, "spec": {"type": "Limited", "limited": limited}}),
            )
        };
        let limit = |levels: &Levels, name: &str| {
            let found = levels.all().find(|(level, _)| level.name == name);
            found.map(|(level, leaves)| (level.limit(), leaves))
        };
        levels.digest(&[custom(5)], &[]);
        let (level, _) = levels
            .all()
            .find(|(level, _)| level.name == "mine")
            .unwrap();
        let level = level.clone();
        assert_eq!(limit(&levels, "mine"), Some((300, false)));
        let schema = named("mine", 600, "mine");
        let table = levels.digest(&[custom(15)], &[schema]);
        assert_eq!(limit(&levels, "mine"), Some((450, false)));
        let found = table
            .schemas
            .iter()
            .find(|schema| schema.name == "mine")
            .unwrap();
        assert!(Arc::ptr_eq(&found.level, &level));
        let needs = super::super::level::Needs {
            seats: 1,
            lingers: std::time::Duration::ZERO,
            patience: std::time::Duration::ZERO,
            longest: std::time::Duration::MAX,
        };
        let now = std::time::Instant::now();
        let seat =
            futures::FutureExt::now_or_never(super::super::Seat::take(found, || 0, needs, now));
        let seat = seat.unwrap().ok().unwrap();
        levels.digest(&[], &[]);
        assert!(matches!(limit(&levels, "mine"), Some((_, true))));
        drop(seat);
        levels.adjust();
        assert_eq!(limit(&levels, "mine"), None);
    }

    #[test]
    fn a_flow_is_a_user_or_a_namespace_as_the_schema_says() {
        let table = levels().digest(&objects(defaults::levels()), &objects(defaults::schemas()));
        let info = |namespace: &str| {
            let path = format!("/api/v1/namespaces/{namespace}/pods");
            RequestInfo::new(&Method::GET, &path, &Query::parse(""))
        };
        let find = |name: &str| {
            table
                .schemas
                .iter()
                .find(|schema| schema.name == name)
                .unwrap()
        };
        let (eve, mallory) = (User::new("eve", [""; 0]), User::new("mallory", [""; 0]));
        let (a, b) = (info("a"), info("b"));
        let by_user = find("global-default");
        assert_eq!(by_user.flow(&eve, &a), by_user.flow(&eve, &b));
        assert_ne!(by_user.flow(&eve, &a), by_user.flow(&mallory, &a));
        let by_namespace = find("kube-scheduler");
        assert_eq!(by_namespace.flow(&eve, &a), by_namespace.flow(&mallory, &a));
        assert_ne!(by_namespace.flow(&eve, &a), by_namespace.flow(&eve, &b));
        assert_ne!(
            by_namespace.flow(&eve, &a),
            find("kube-controller-manager").flow(&eve, &a)
        );
    }
}
