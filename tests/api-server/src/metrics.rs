//! `metrics.k8s.io`, as a metrics server provides it to `kubectl top`, from the kubelets'
//! `/metrics/resource`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Server,
    errors::ApiError,
    request::{Query, Target},
    resources,
    selectors::Selectors,
    strategy::text,
};

/// The group of the metrics resources.
pub(super) const GROUP: &str = "metrics.k8s.io";
/// The minimum time between two samples, in milliseconds; a metrics server has a resolution too.
/// Over a shorter time, a container on a busy machine may not have run at all.
const WINDOW: i64 = 3000;

/// The owner of a measurement: namespace, pod and container, which are all empty for the node.
type Owner = [String; 3];

/// The measurements by node and owner.
pub(super) type MeasurementsByNode = BTreeMap<String, BTreeMap<Owner, Measurement>>;

/// A sample of the usage that a kubelet reports.
type Sample = BTreeMap<Owner, Usage>;

/// The last usage of an owner, and the sample from which the next one is computed. Kubelets sample
/// each container at a time of their own, so each owner has its own window.
#[derive(Debug, Default)]
pub(super) struct Measurement {
    since: Usage,
    /// `None` before the second sample.
    rate: Option<Value>,
}

/// The usage of a container or a node since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Usage {
    /// The CPU time in seconds.
    cpu: f64,
    /// The time of the sample, in milliseconds since the epoch.
    at: i64,
    /// The working set in bytes.
    memory: f64,
}

impl Server {
    /// Answers a read of the group's `nodes` or `pods`.
    pub(super) async fn metrics(&self, target: &Target, query: &Query) -> Result<Value, ApiError> {
        let objects = resources::find("", "v1", target.resource.plural);
        let objects = objects.ok_or_else(ApiError::no_such_path)?;
        let labels = query.text("labelSelector");
        let selectors = Selectors::parse(objects, labels, query.text("fieldSelector"))?;
        let mut chosen = self
            .storage
            .lock()
            .list(objects, target.namespace.as_deref());
        chosen.retain(|(key, object)| {
            let named = target.name.as_ref().is_none_or(|name| *name == key.name);
            named && selectors.match_object(object)
        });
        let mut measured: BTreeMap<String, BTreeMap<Owner, Value>> = BTreeMap::new();
        let mut items = Vec::new();
        for (key, object) in &chosen {
            let node = match objects.kind {
                "Node" => key.name.as_str(),
                _ => text(object, "/spec/nodeName"),
            };
            if node.is_empty() {
                continue;
            }
            if !measured.contains_key(node) {
                // A list omits nodes that do not answer.
                let told = self.measure(node).await.unwrap_or_default();
                measured.insert(node.to_owned(), told);
            }
            let told = measured.get(node).into_iter().flatten();
            let of_this = told.filter(|([namespace, name, _], _)| match objects.kind {
                "Node" => name.is_empty(),
                _ => *namespace == key.namespace && *name == key.name,
            });
            items.extend(item(target, object, of_this));
        }
        if let Some(name) = &target.name {
            let found = items.pop();
            return found.ok_or_else(|| ApiError::not_found(target.resource, name));
        }
        Ok(json!({
            "kind": format!("{}List", target.resource.kind),
            "apiVersion": target.resource.api_version(), "metadata": {}, "items": items,
        }))
    }

    /// The last usage of a node and its containers; those with a single sample are missing.
    async fn measure(&self, node: &str) -> Result<BTreeMap<Owner, Value>, ApiError> {
        let told = parse(&self.ask_kubelet(node, "/metrics/resource").await?);
        let mut measured = self.measured.lock();
        let of_node = measured.entry(node.to_owned()).or_default();
        take(of_node, &told);
        let rates = of_node.iter().filter_map(|(owner, one)| {
            let rate = one.rate.clone()?;
            Some((owner.clone(), rate))
        });
        Ok(rates.collect())
    }
}

/// Updates the measurements of a node with a kubelet's sample.
fn take(measured: &mut BTreeMap<Owner, Measurement>, told: &Sample) {
    measured.retain(|owner, _| told.contains_key(owner));
    for (owner, now) in told {
        let one = measured
            .entry(owner.clone())
            .or_insert_with(|| Measurement {
                since: *now,
                rate: None,
            });
        if now.cpu < one.since.cpu {
            // The container or node was restarted.
            *one = Measurement {
                since: *now,
                rate: None,
            };
        } else if let Some(rate) = rate(&one.since, now) {
            *one = Measurement {
                since: *now,
                rate: Some(rate),
            };
        }
    }
}

/// The metrics object of a node or of a pod's containers; `None` if there are no measurements.
fn item<'a>(
    target: &Target,
    object: &Value,
    told: impl Iterator<Item = (&'a Owner, &'a Value)>,
) -> Option<Value> {
    let mut told: Vec<(&Owner, Value)> = told.map(|(owner, one)| (owner, one.clone())).collect();
    let (_, first) = told.first()?.clone();
    let mut item = json!({
        "kind": target.resource.kind, "apiVersion": target.resource.api_version(),
        "metadata": {
            "name": object["metadata"]["name"], "labels": object["metadata"]["labels"],
            "creationTimestamp": first["timestamp"],
        },
        "timestamp": first["timestamp"], "window": first["window"],
    });
    if target.resource.kind == "NodeMetrics" {
        item["usage"] = first["usage"].clone();
        return Some(item);
    }
    item["metadata"]["namespace"] = object["metadata"]["namespace"].clone();
    let containers: Vec<Value> = told
        .drain(..)
        .map(|([_, _, container], one)| json!({"name": container, "usage": one["usage"]}))
        .collect();
    item["containers"] = Value::from(containers);
    Some(item)
}

/// The usage between two samples; `None` if they are less than [`WINDOW`] apart.
fn rate(before: &Usage, now: &Usage) -> Option<Value> {
    let milliseconds = now.at - before.at;
    if milliseconds < WINDOW {
        return None;
    }
    let elapsed = milliseconds as f64 / 1000.0;
    let cores = (now.cpu - before.cpu) / elapsed;
    let at = Timestamp::from_second(now.at / 1000).unwrap_or(Timestamp::MAX);
    Some(json!({
        "timestamp": at.to_string(), "window": format!("{elapsed}s"),
        "usage": {
            "cpu": format!("{:.0}n", cores * 1e9),
            "memory": format!("{:.0}Ki", now.memory / 1024.0),
        },
    }))
}

/// Parses the Prometheus text format.
fn parse(text: &str) -> Sample {
    let mut sample = Sample::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, rest) = match line.split_once('}') {
            Some((series, rest)) => (series, rest),
            None => line.split_once(' ').unwrap_or((line, "")),
        };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let mut numbers = rest.split_whitespace();
        let Some(value) = numbers.next().and_then(|value| value.parse::<f64>().ok()) else {
            continue;
        };
        let label = |wanted: &str| {
            let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
            let found = pairs.find(|(label, _)| *label == wanted);
            found.map_or_else(String::new, |(_, value)| value.trim_matches('"').to_owned())
        };
        let owner = match name.split_once('_') {
            Some(("node", _)) => Owner::default(),
            Some(("container", _)) => [label("namespace"), label("pod"), label("container")],
            _ => continue,
        };
        let usage = sample.entry(owner).or_default();
        if name.ends_with("_cpu_usage_seconds_total") {
            usage.cpu = value;
            usage.at = numbers.next().and_then(|at| at.parse().ok()).unwrap_or(0);
        } else if name.ends_with("_memory_working_set_bytes") {
            usage.memory = value;
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_what_came_between_two_samples() {
        let sample = |cpu: f64, at: i64| {
            parse(&format!(
                "# TYPE node_cpu_usage_seconds_total counter\n\
                 node_cpu_usage_seconds_total {cpu} {at}\n\
                 node_memory_working_set_bytes 2.097152e+06 {at}\n\
                 container_cpu_usage_seconds_total{{container=\"c\",namespace=\"default\",pod=\"web\"}} 1.5 {at}\n\
                 container_memory_working_set_bytes{{container=\"c\",namespace=\"default\",pod=\"web\"}} 4096 {at}\n\
                 scrape_error 0\n"
            ))
        };
        let (before, now) = (sample(10.0, 1_000), sample(11.0, 5_000));
        assert_eq!(now.len(), 2);
        let node = Owner::default();
        let told = rate(&before[&node], &now[&node]).unwrap();
        assert_eq!(
            told["usage"],
            json!({"cpu": "250000000n", "memory": "2048Ki"})
        );
        assert_eq!(told["window"], "4s");
        let container = ["default", "web", "c"].map(str::to_owned);
        let told = rate(&before[&container], &now[&container]).unwrap();
        assert_eq!(told["usage"], json!({"cpu": "0n", "memory": "4Ki"}));
        assert_eq!(rate(&now[&node], &now[&node]), None);
        let soon = sample(10.5, 3_999);
        assert_eq!(rate(&before[&node], &soon[&node]), None);
    }

    #[test]
    fn each_owner_has_a_window_of_its_own_and_keeps_its_last_usage() {
        let usage = |cpu: f64, at: i64| Usage {
            cpu,
            at,
            memory: 0.0,
        };
        let (node, busy) = (Owner::default(), ["d", "busy", "c"].map(str::to_owned));
        let mut measured = BTreeMap::new();
        let mut told = |of_node, of_busy| {
            let told = Sample::from([(node.clone(), of_node), (busy.clone(), of_busy)]);
            take(&mut measured, &told);
            let cores = |owner| {
                let rate = measured[owner].rate.as_ref();
                rate.map(|rate| text(rate, "/usage/cpu").to_owned())
            };
            (cores(&node), cores(&busy))
        };
        let cores = |text: &str| Some(text.to_owned());
        let half = cores("500000000n");
        assert_eq!(told(usage(0.0, 0), usage(0.0, 0)), (None, None));
        // The sample of the container is older than that of its node.
        let (first, second) = (usage(2.0, 4_000), usage(1.0, 2_000));
        assert_eq!(told(first, second), (half.clone(), None));
        let (first, second) = (usage(2.5, 5_000), usage(2.0, 4_000));
        assert_eq!(told(first, second), (half.clone(), half.clone()));
        assert_eq!(told(first, second), (half.clone(), half.clone()));
        // A restarted container is measured from its restart.
        let (first, second) = (usage(6.0, 8_000), usage(0.1, 8_000));
        assert_eq!(told(first, second), (cores("1000000000n"), None));
    }
}
