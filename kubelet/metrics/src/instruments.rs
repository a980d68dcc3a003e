//! What counts and measures, and the families that it comes in.

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
    /// What Prometheus calls it.
    const KIND: &'static str;
    /// What all instruments of a family have in common.
    type Shape: Copy;

    /// One that was not used yet.
    fn new(shape: Self::Shape) -> Self;

    /// Writes its values.
    fn write(&self, page: &mut Exposition, name: &str, labels: &[(&str, &str)]);
}

/// A number of things that happened.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// It happened once more.
    pub fn increment(&self) {
        self.add(1);
    }

    /// It happened so many times more.
    pub fn add(&self, times: u64) {
        self.0.fetch_add(times, Ordering::Relaxed);
    }
}

impl Instrument for Counter {
    const KIND: &'static str = "counter";
    type Shape = ();

    fn new((): ()) -> Self {
        Self::default()
    }

    fn write(&self, page: &mut Exposition, name: &str, labels: &[(&str, &str)]) {
        page.sample(name, labels, self.0.load(Ordering::Relaxed), None);
    }
}

/// A number of things that there are.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// There is one more.
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// There is one less.
    pub fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Instrument for Gauge {
    const KIND: &'static str = "gauge";
    type Shape = ();

    fn new((): ()) -> Self {
        Self::default()
    }

    fn write(&self, page: &mut Exposition, name: &str, labels: &[(&str, &str)]) {
        page.sample(name, labels, self.0.load(Ordering::Relaxed), None);
    }
}

/// How values are distributed over buckets. A value that is written while it is read may
/// show in its bucket and not yet in the sum.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds of the buckets, each higher than the one before.
    bounds: &'static [f64],
    /// Values of each bucket alone, and of those above all bounds.
    counts: Box<[AtomicU64]>,
    /// The bits of a float.
    sum: AtomicU64,
}

impl Histogram {
    /// Takes in a value.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        // Never fails: it is always told what to write.
        let _ = self
            .sum
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes in a duration, in seconds.
    pub fn observe_duration(&self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }
}

impl Instrument for Histogram {
    const KIND: &'static str = "histogram";
    type Shape = &'static [f64];

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

/// The instruments of one name, by the values of their labels. Whoever names them sees to
/// it that these are from a bounded set. Without labels there is one, from the beginning.
#[derive(Debug)]
pub struct Family<M: Instrument, const LABELS: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; LABELS],
    shape: M::Shape,
    members: RwLock<Members<M, LABELS>>,
}

type Members<M, const LABELS: usize> = BTreeMap<[Cow<'static, str>; LABELS], Arc<M>>;

impl<const LABELS: usize> Family<Counter, LABELS> {
    /// Counters.
    pub fn counter(name: &'static str, help: &'static str, labels: [&'static str; LABELS]) -> Self {
        Self::new(name, help, labels, ())
    }
}

impl<const LABELS: usize> Family<Gauge, LABELS> {
    /// Gauges.
    pub fn gauge(name: &'static str, help: &'static str, labels: [&'static str; LABELS]) -> Self {
        Self::new(name, help, labels, ())
    }
}

impl<const LABELS: usize> Family<Histogram, LABELS> {
    /// Histograms with buckets up to each of `bounds`, and one for what is above them.
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
        shape: M::Shape,
    ) -> Self {
        let family = Self {
            name,
            help,
            labels,
            shape,
            members: RwLock::default(),
        };
        if LABELS == 0 {
            family.with([const { Cow::Borrowed("") }; LABELS]);
        }
        family
    }

    /// The instrument of these values of the labels, in their order.
    pub fn with(&self, values: [Cow<'static, str>; LABELS]) -> Arc<M> {
        if let Some(member) = self.members.read().get(&values) {
            return Arc::clone(member);
        }
        let mut members = self.members.write();
        let member = members
            .entry(values)
            .or_insert_with(|| Arc::new(M::new(self.shape)));
        Arc::clone(member)
    }

    /// The same, of values that are known when this is compiled.
    pub fn of(&self, values: [&'static str; LABELS]) -> Arc<M> {
        self.with(values.map(Cow::Borrowed))
    }

    /// Forgets the instruments of which `keep` does not want the values of the labels.
    pub fn retain(&self, keep: impl Fn(&[Cow<'static, str>; LABELS]) -> bool) {
        self.members.write().retain(|values, _| keep(values));
    }

    /// Writes all of them; nothing, if there is none.
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
