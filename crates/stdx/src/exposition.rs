//! The Prometheus text format, and counters and histograms for it. Callers must bound label values:
//! a family keeps every combination that was ever used, unless some are removed.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

/// The media type of a page.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metrics page.
#[derive(Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Starts a family.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) -> &mut Self {
        let _ = writeln!(self.text, "# HELP {name} {help}");
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
        self
    }

    /// Adds a sample; `millis` is its optional timestamp.
    pub fn sample(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: f64,
        millis: Option<i64>,
    ) -> &mut Self {
        self.text.push_str(name);
        if !labels.is_empty() {
            self.text.push('{');
            for (index, (label, content)) in labels.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let content = content
                    .replace('\\', "\\\\")
                    .replace('"', "\\\"")
                    .replace('\n', "\\n");
                let _ = write!(self.text, "{comma}{label}=\"{content}\"");
            }
            self.text.push('}');
        }
        let _ = write!(self.text, " {value}");
        if let Some(millis) = millis {
            let _ = write!(self.text, " {millis}");
        }
        self.text.push('\n');
        self
    }

    /// A family of counters.
    pub fn counters(&mut self, name: &str, help: &str, family: &Family<Counter>) -> &mut Self {
        self.family(name, "counter", help);
        family.each(|labels, counter| {
            self.sample(name, labels, counter.get() as f64, None);
        });
        self
    }

    /// A family of histograms.
    pub fn histograms(&mut self, name: &str, help: &str, family: &Family<Histogram>) -> &mut Self {
        self.family(name, "histogram", help);
        family.each(|labels, histogram| self.histogram(name, labels, histogram));
        self
    }

    /// Adds one histogram of a family that was started.
    pub fn histogram(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let seen = histogram.seen.lock().clone();
        let mut below = 0;
        let buckets = histogram.bounds.iter().zip(&seen.buckets);
        let buckets = buckets.map(|(bound, count)| {
            below += count;
            (bound.to_string(), below)
        });
        let all = ("+Inf".to_owned(), seen.count);
        for (bound, below) in buckets.chain([all]) {
            let labels = [labels, &[("le", &*bound)]].concat();
            self.sample(&format!("{name}_bucket"), &labels, below as f64, None);
        }
        self.sample(&format!("{name}_sum"), labels, seen.sum, None);
        self.sample(&format!("{name}_count"), labels, seen.count as f64, None);
    }

    /// The finished page.
    pub fn finish(self) -> String {
        self.text
    }
}

/// A monotonic counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn increment(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A histogram.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Guards the counts, which must be consistent.
    seen: Mutex<Seen>,
}

#[derive(Debug, Clone)]
struct Seen {
    /// Values up to each bound and above the previous one.
    buckets: Box<[u64]>,
    count: u64,
    sum: f64,
}

impl Histogram {
    /// Bounds must be ascending.
    pub fn new(bounds: &'static [f64]) -> Self {
        let seen = Seen {
            buckets: vec![0; bounds.len()].into(),
            count: 0,
            sum: 0.0,
        };
        Self {
            bounds,
            seen: Mutex::new(seen),
        }
    }

    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        let mut seen = self.seen.lock();
        if let Some(count) = seen.buckets.get_mut(bucket) {
            *count += 1;
        }
        seen.count += 1;
        seen.sum += value;
    }

    pub fn took(&self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    pub fn count(&self) -> u64 {
        self.seen.lock().count
    }
}

/// Label values, in the order of the labels.
type Values = Box<[Box<str>]>;

/// Metrics of one name with different labels.
#[derive(Debug)]
pub struct Family<T> {
    labels: &'static [&'static str],
    make: fn() -> T,
    /// Guards the members.
    members: Mutex<BTreeMap<Values, Arc<T>>>,
}

impl<T> Family<T> {
    pub fn new(labels: &'static [&'static str], make: fn() -> T) -> Self {
        Self {
            labels,
            make,
            members: Mutex::default(),
        }
    }

    /// The member with these label values, in order.
    pub fn with(&self, values: &[&str]) -> Arc<T> {
        debug_assert_eq!(values.len(), self.labels.len());
        let key: Values = values.iter().map(|value| Box::from(*value)).collect();
        let mut members = self.members.lock();
        let member = members
            .entry(key)
            .or_insert_with(|| Arc::new((self.make)()));
        member.clone()
    }

    /// Removes members with such values.
    pub fn forget(&self, is_gone: impl Fn(&[Box<str>]) -> bool) {
        self.members.lock().retain(|values, _| !is_gone(values));
    }

    fn each(&self, mut show: impl FnMut(&[(&str, &str)], &T)) {
        let members = self.members.lock().clone();
        for (values, member) in &members {
            let values = values.iter().map(|value| &**value);
            let labels: Vec<_> = self.labels.iter().copied().zip(values).collect();
            show(&labels, member);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_show_every_member_and_histograms_add_up() {
        let counts = Family::new(&["code", "method"], Counter::default);
        counts.with(&["200", "GET"]).add(2);
        counts.with(&["404", "GET"]).increment();
        let took = Family::new(&["verb"], || Histogram::new(&[0.5, 1.0]));
        for seconds in [0.25, 0.5, 0.75, 3.0] {
            took.with(&["GET"]).observe(seconds);
        }
        let mut page = Exposition::default();
        page.counters("asked_total", "Asked.", &counts);
        page.histograms("took_seconds", "Took.", &took);
        counts.forget(|values| *values[0] == *"200");
        page.counters("left_total", "Left.", &counts);
        assert_eq!(
            page.finish(),
            "# HELP asked_total Asked.\n# TYPE asked_total counter\n\
             asked_total{code=\"200\",method=\"GET\"} 2\nasked_total{code=\"404\",method=\"GET\"} 1\n\
             # HELP took_seconds Took.\n# TYPE took_seconds histogram\n\
             took_seconds_bucket{verb=\"GET\",le=\"0.5\"} 2\ntook_seconds_bucket{verb=\"GET\",le=\"1\"} 3\n\
             took_seconds_bucket{verb=\"GET\",le=\"+Inf\"} 4\n\
             took_seconds_sum{verb=\"GET\"} 4.5\ntook_seconds_count{verb=\"GET\"} 4\n\
             # HELP left_total Left.\n# TYPE left_total counter\n\
             left_total{code=\"404\",method=\"GET\"} 1\n"
        );
    }

    #[test]
    fn labels_are_escaped() {
        let mut page = Exposition::default();
        page.family("a", "gauge", "What.")
            .sample("a", &[("x", "q\"\\\n"), ("y", "")], 1.5, Some(7))
            .sample("a", &[], 2.0, None);
        assert_eq!(
            page.finish(),
            "# HELP a What.\n# TYPE a gauge\na{x=\"q\\\"\\\\\\n\",y=\"\"} 1.5 7\na 2\n"
        );
    }
}
