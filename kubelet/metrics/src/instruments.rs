//! Counters, gauges and histograms, and families of them by label values.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;

use super::Exposition;

/// One time series, or the few that make up a histogram.
pub trait Instrument {
    /// The Prometheus type: `counter`, `gauge` or `histogram`.
    const KIND: &'static str;
    /// Configuration shared by all instruments of a family.
    type Config: Copy;

    /// A new instrument at zero.
    fn new(config: Self::Config) -> Self;

    /// Writes its samples.
    fn write(&self, page: &mut Exposition, name: &str, labels: &[(&str, &str)]);
}

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds a number of events.
    pub fn add(&self, times: u64) {
        self.0.fetch_add(times, Ordering::Relaxed);
    }
}

impl Instrument for Counter {
    const KIND: &'static str = "counter";
    type Config = ();

    fn new((): ()) -> Self {
        Self::default()
    }

    fn write(&self, page: &mut Exposition, name: &str, labels: &[(&str, &str)]) {
        page.sample(name, labels, self.0.load(Ordering::Relaxed), None);
    }
}

/// A value that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Adds one.
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts one.
    pub fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Instrument for Gauge {
    const KIND: &'static str = "gauge";
    type Config = ();

    fn new((): ()) -> Self {
        Self::default()
    }

    fn write(&self, page: &mut Exposition, name: &str, labels: &[(&str, &str)]) {
        page.sample(name, labels, self.0.load(Ordering::Relaxed), None);
    }
}

/// A distribution of values over buckets. A value recorded during a scrape may show in its
/// bucket before it shows in the sum.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds of the buckets, ascending.
    bounds: &'static [f64],
    /// The number of values in each bucket, and last those above all bounds.
    counts: Box<[AtomicU64]>,
    /// The sum, as the bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    /// Records a value.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        // Never fails: the closure always returns a value.
        let _ = self
            .sum
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Records a duration in seconds.
    pub fn observe_duration(&self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }
}

impl Instrument for Histogram {
    const KIND: &'static str = "histogram";
    type Config = &'static [f64];

    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0.0_f64.to_bits()),
        }
    }

    fn write(&self, page: &mut Exposition, name: &str, labels: &[(&str, &str)]) {
        let bucket = format!("{name}_bucket");
        let bounds = self.bounds.iter().map(ToString::to_string);
        let mut total = 0;
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(&self.counts) {
            total += count.load(Ordering::Relaxed);
            let mut labels = labels.to_vec();
            labels.push(("le", bound.as_str()));
            page.sample(&bucket, &labels, total, None);
        }
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        page.sample(&format!("{name}_sum"), labels, sum, None);
        page.sample(&format!("{name}_count"), labels, total, None);
    }
}

/// The instruments of one metric, by label values. Callers take label values from a bounded
/// set. A metric without labels has its one instrument from the start.
#[derive(Debug)]
pub struct Family<M: Instrument, const LABELS: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; LABELS],
    config: M::Config,
    members: RwLock<Members<M, LABELS>>,
}

type Members<M, const LABELS: usize> = BTreeMap<[Cow<'static, str>; LABELS], Arc<M>>;

impl<const LABELS: usize> Family<Counter, LABELS> {
    /// A family of counters.
    pub fn counter(name: &'static str, help: &'static str, labels: [&'static str; LABELS]) -> Self {
        Self::new(name, help, labels, ())
    }
}

impl<const LABELS: usize> Family<Gauge, LABELS> {
    /// A family of gauges.
    pub fn gauge(name: &'static str, help: &'static str, labels: [&'static str; LABELS]) -> Self {
        Self::new(name, help, labels, ())
    }
}

impl<const LABELS: usize> Family<Histogram, LABELS> {
    /// A family of histograms with a bucket for each of `bounds` and one above them.
    pub fn histogram(
        name: &'static str,
        help: &'static str,
        labels: [&'static str; LABELS],
        bounds: &'static [f64],
    ) -> Self {
        Self::new(name, help, labels, bounds)
    }
}

impl<M: Instrument, const LABELS: usize> Family<M, LABELS> {
    fn new(
        name: &'static str,
        help: &'static str,
        labels: [&'static str; LABELS],
        config: M::Config,
    ) -> Self {
        let family = Self {
            name,
            help,
            labels,
            config,
            members: RwLock::default(),
        };
        if LABELS == 0 {
            family.with([const { Cow::Borrowed("") }; LABELS]);
        }
        family
    }

    /// The instrument with these label values, in the order of the labels.
    pub fn with(&self, values: [Cow<'static, str>; LABELS]) -> Arc<M> {
        if let Some(member) = self.members.read().get(&values) {
            return Arc::clone(member);
        }
        let mut members = self.members.write();
        let member = members
            .entry(values)
            .or_insert_with(|| Arc::new(M::new(self.config)));
        Arc::clone(member)
    }

    /// The instrument with these label values, known at compile time.
    pub fn of(&self, values: [&'static str; LABELS]) -> Arc<M> {
        self.with(values.map(Cow::Borrowed))
    }

    /// Drops the instruments whose label values `keep` rejects.
    pub fn retain(&self, keep: impl Fn(&[Cow<'static, str>; LABELS]) -> bool) {
        self.members.write().retain(|values, _| keep(values));
    }

    /// Writes the metric; nothing if it has no instruments.
    pub fn collect(&self, page: &mut Exposition) {
        let members = self.members.read();
        if members.is_empty() {
            return;
        }
        page.family(self.name, M::KIND, self.help);
        for (values, member) in &*members {
            let values = values.iter().map(|value| &**value);
            let labels: Vec<(&str, &str)> = self.labels.into_iter().zip(values).collect();
            member.write(page, self.name, &labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(collect: impl Fn(&mut Exposition)) -> String {
        let mut page = Exposition::default();
        collect(&mut page);
        page.into_text()
    }

    #[test]
    fn counters_without_labels_are_there_before_anything_happened() {
        let family = Family::counter("a_total", "What a is", []);
        assert_eq!(
            text(|page| family.collect(page)),
            "# HELP a_total What a is\n# TYPE a_total counter\na_total 0\n"
        );
        family.of([]).add(3);
        assert!(text(|page| family.collect(page)).ends_with("\na_total 3\n"));
    }

    #[test]
    fn families_with_labels_show_what_happened() {
        let family = Family::counter("a", "What a is", ["kind", "code"]);
        assert_eq!(text(|page| family.collect(page)), "");
        family.of(["b", "2"]).increment();
        family.of(["b", "1"]).increment();
        family.of(["b", "2"]).increment();
        assert_eq!(
            text(|page| family.collect(page)),
            "# HELP a What a is\n# TYPE a counter\n\
             a{kind=\"b\",code=\"1\"} 1\na{kind=\"b\",code=\"2\"} 2\n"
        );
        family.retain(|[_, code]| code == "1");
        assert!(!text(|page| family.collect(page)).contains("code=\"2\""));
    }

    #[test]
    fn gauges_go_up_and_down() {
        let family = Family::gauge("a", "What a is", []);
        family.of([]).increment();
        family.of([]).increment();
        family.of([]).decrement();
        assert_eq!(
            text(|page| family.collect(page)),
            "# HELP a What a is\n# TYPE a gauge\na 1\n"
        );
    }

    #[test]
    fn buckets_count_what_is_up_to_their_bounds() {
        let family = Family::histogram("a_seconds", "What a is", ["kind"], &[0.5, 1.0]);
        let histogram = family.of(["b"]);
        histogram.observe(0.25);
        histogram.observe(0.5);
        histogram.observe_duration(Duration::from_secs(4));
        assert_eq!(
            text(|page| family.collect(page)),
            "# HELP a_seconds What a is\n# TYPE a_seconds histogram\n\
             a_seconds_bucket{kind=\"b\",le=\"0.5\"} 2\n\
             a_seconds_bucket{kind=\"b\",le=\"1\"} 2\n\
             a_seconds_bucket{kind=\"b\",le=\"+Inf\"} 3\n\
             a_seconds_sum{kind=\"b\"} 4.75\n\
             a_seconds_count{kind=\"b\"} 3\n"
        );
    }
}
