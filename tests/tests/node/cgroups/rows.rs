//! The table of limits.

use serde_json::{Value, json};

use super::limits::{Limits, Row};

const MIB: u64 = 1 << 20;

const fn limits(shares: u64, quota: Option<u64>, mebibytes: Option<u64>) -> Limits {
    Limits {
        shares,
        quota,
        memory: match mebibytes {
            Some(mebibytes) => Some(mebibytes * MIB),
            None => None,
        },
    }
}

/// A container with requests and limits, each as `cpu memory`; `-` leaves one out.
fn container(name: &str, requests: &str, limits: &str) -> Value {
    json!({"name": name, "resources": resources(requests, limits)})
}

fn sidecar(name: &str, requests: &str, limits: &str) -> Value {
    let mut container = container(name, requests, limits);
    container["restartPolicy"] = json!("Always");
    container
}

/// An init container that ends at once.
fn init(name: &str, requests: &str, limits: &str) -> Value {
    let mut container = container(name, requests, limits);
    container["command"] = json!(["true"]);
    container
}

fn resources(requests: &str, limits: &str) -> Value {
    let list = |text: &str| {
        let (cpu, memory) = text.split_once(' ').unwrap_or((text, "-"));
        let mut list = json!({});
        for (name, amount) in [("cpu", cpu), ("memory", memory)] {
            if !matches!(amount, "" | "-") {
                list[name] = json!(amount);
            }
        }
        list
    };
    json!({"requests": list(requests), "limits": list(limits)})
}

/// A pod of one container `c`.
fn single(
    name: &'static str,
    class: &'static str,
    (requested, limited): (&str, &str),
    pod: Limits,
    of_container: Limits,
) -> Row {
    Row {
        name,
        class,
        spec: json!({"containers": [container("c", requested, limited)]}),
        pod,
        containers: vec![("c", of_container)],
    }
}

/// Pods of one container: what the container has, the pod has.
fn singles() -> Vec<Row> {
    const BE: &str = "BestEffort";
    const BU: &str = "Burstable";
    const GU: &str = "Guaranteed";
    let same = |name, class, amounts, of_both| single(name, class, amounts, of_both, of_both);
    vec![
        same("nothing", BE, ("", ""), limits(2, None, None)),
        same("zeros", BE, ("0 0", ""), limits(2, None, None)),
        same("cpu-request", BU, ("250m", ""), limits(256, None, None)),
        same("cpu-small", BU, ("1m", ""), limits(2, None, None)),
        same("cpu-odd", BU, ("333m", ""), limits(340, None, None)),
        same("cpu-large", BU, ("1", "-"), limits(1024, None, None)),
        same("memory-request", BU, ("- 16Mi", ""), limits(2, None, None)),
        same(
            "both-requests",
            BU,
            ("100m 16Mi", ""),
            limits(102, None, None),
        ),
        // A limit is the default of the request.
        same(
            "cpu-limit",
            BU,
            ("", "500m"),
            limits(512, Some(50_000), None),
        ),
        same(
            "cpu-limit-small",
            BU,
            ("", "5m"),
            limits(5, Some(1000), None),
        ),
        same(
            "cpu-limit-least",
            BU,
            ("", "1m"),
            limits(2, Some(1000), None),
        ),
        same(
            "memory-limit",
            BU,
            ("", "- 32Mi"),
            limits(2, None, Some(32)),
        ),
        same(
            "cpu-between",
            BU,
            ("100m", "200m"),
            limits(102, Some(20_000), None),
        ),
        same(
            "memory-between",
            BU,
            ("- 16Mi", "- 64Mi"),
            limits(2, None, Some(64)),
        ),
        same(
            "cpu-with-memory-limit",
            BU,
            ("100m", "- 32Mi"),
            limits(102, None, Some(32)),
        ),
        same(
            "memory-with-cpu-limit",
            BU,
            ("- 16Mi", "300m"),
            limits(307, Some(30_000), None),
        ),
        same(
            "both-between",
            BU,
            ("50m 16Mi", "100m 32Mi"),
            limits(51, Some(10_000), Some(32)),
        ),
        same(
            "cpu-equal",
            BU,
            ("100m 16Mi", "100m 32Mi"),
            limits(102, Some(10_000), Some(32)),
        ),
        same(
            "memory-equal",
            BU,
            ("50m 32Mi", "100m 32Mi"),
            limits(51, Some(10_000), Some(32)),
        ),
        same(
            "exact",
            GU,
            ("100m 32Mi", "100m 32Mi"),
            limits(102, Some(10_000), Some(32)),
        ),
        same(
            "exact-limits-only",
            GU,
            ("", "100m 32Mi"),
            limits(102, Some(10_000), Some(32)),
        ),
        same(
            "exact-cpu-only-requested",
            GU,
            ("50m", "50m 32Mi"),
            limits(51, Some(5_000), Some(32)),
        ),
        same(
            "exact-small",
            GU,
            ("", "1m 16Mi"),
            limits(2, Some(1000), Some(16)),
        ),
        same(
            "exact-odd",
            GU,
            ("", "123m 20Mi"),
            limits(125, Some(12_300), Some(20)),
        ),
        same(
            "notation",
            GU,
            ("0.1 32768Ki", "100m 33554432"),
            limits(102, Some(10_000), Some(32)),
        ),
    ]
}

fn row(name: &'static str, class: &'static str, spec: Value, pod: Limits) -> Row {
    Row {
        name,
        class,
        spec,
        pod,
        containers: Vec::new(),
    }
}

/// Pods of several containers: the pod has the sum, and a limit only if each has one.
fn sums() -> Vec<Row> {
    let pair = |a: Value, b: Value| json!({"containers": [a, b]});
    vec![
        row(
            "two-exact",
            "Guaranteed",
            pair(
                container("a", "", "100m 32Mi"),
                container("b", "", "50m 16Mi"),
            ),
            limits(153, Some(15_000), Some(48)),
        ),
        row(
            "two-burstable",
            "Burstable",
            pair(
                container("a", "100m", "200m 32Mi"),
                container("b", "50m", "100m 16Mi"),
            ),
            limits(153, Some(30_000), Some(48)),
        ),
        row(
            "one-without-cpu-limit",
            "Burstable",
            pair(
                container("a", "", "100m 32Mi"),
                container("b", "", "- 16Mi"),
            ),
            limits(102, None, Some(48)),
        ),
        row(
            "one-without-memory-limit",
            "Burstable",
            pair(container("a", "", "100m 32Mi"), container("b", "", "50m")),
            limits(153, Some(15_000), None),
        ),
        row(
            "one-without-anything",
            "Burstable",
            pair(container("a", "", "100m 32Mi"), container("b", "", "")),
            limits(102, None, None),
        ),
        row(
            "two-best-effort",
            "BestEffort",
            pair(container("a", "", ""), container("b", "", "")),
            limits(2, None, None),
        ),
    ]
}

/// Init containers count with the sidecars before them, sidecars with the containers.
fn inits() -> Vec<Row> {
    let spec = |init: Vec<Value>, container: Value| json!({"initContainers": init, "containers": [container]});
    vec![
        row(
            "larger-init",
            "Guaranteed",
            spec(
                vec![init("i", "", "300m 64Mi")],
                container("c", "", "100m 32Mi"),
            ),
            limits(307, Some(30_000), Some(64)),
        ),
        row(
            "smaller-init",
            "Guaranteed",
            spec(
                vec![init("i", "", "50m 16Mi")],
                container("c", "", "100m 32Mi"),
            ),
            limits(102, Some(10_000), Some(32)),
        ),
        row(
            "init-without-limits",
            "Burstable",
            spec(vec![init("i", "", "")], container("c", "", "100m 32Mi")),
            limits(102, None, None),
        ),
        row(
            "sidecar",
            "Guaranteed",
            spec(
                vec![sidecar("s", "", "50m 16Mi")],
                container("c", "", "100m 32Mi"),
            ),
            limits(153, Some(15_000), Some(48)),
        ),
        row(
            "init-after-sidecar",
            "Guaranteed",
            spec(
                vec![sidecar("s", "", "50m 16Mi"), init("i", "", "200m 64Mi")],
                container("c", "", "100m 32Mi"),
            ),
            limits(256, Some(25_000), Some(80)),
        ),
        row(
            "init-before-sidecar",
            "Guaranteed",
            spec(
                vec![init("i", "", "200m 64Mi"), sidecar("s", "", "50m 16Mi")],
                container("c", "", "100m 32Mi"),
            ),
            limits(204, Some(20_000), Some(64)),
        ),
    ]
}

/// Pod-level resources replace those of the containers, overhead is added.
fn of_whole_pods() -> Vec<Row> {
    let with = |whole: Value, containers: Vec<Value>| json!({"resources": whole, "containers": containers});
    vec![
        Row {
            containers: vec![
                ("a", limits(102, Some(40_000), Some(96))),
                // Without limits of its own, a container is bounded by the pod's.
                ("b", limits(409, Some(40_000), Some(96))),
            ],
            ..row(
                "pod-level",
                "Burstable",
                with(
                    resources("300m 48Mi", "400m 96Mi"),
                    vec![container("a", "100m", ""), container("b", "", "")],
                ),
                limits(307, Some(40_000), Some(96)),
            )
        },
        row(
            "pod-level-exact",
            "Guaranteed",
            with(
                resources("", "200m 64Mi"),
                vec![container("a", "", ""), container("b", "", "")],
            ),
            limits(204, Some(20_000), Some(64)),
        ),
        row(
            "pod-level-cpu",
            "Burstable",
            with(
                resources("", "200m"),
                vec![container("a", "", ""), container("b", "", "- 16Mi")],
            ),
            limits(204, Some(20_000), None),
        ),
        row(
            "pod-level-requests",
            "Burstable",
            with(resources("200m 64Mi", ""), vec![container("a", "", "")]),
            limits(204, None, None),
        ),
    ]
}

pub(super) fn all() -> Vec<Row> {
    [singles(), sums(), inits(), of_whole_pods()]
        .into_iter()
        .flatten()
        .collect()
}
