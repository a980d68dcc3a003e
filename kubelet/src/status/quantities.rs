//! Quantities in canonical form, and the total resources of a pod.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, btree_map::Entry},
};

use k8s_openapi::{
    api::core::v1::{Container, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use kubelet_pod_spec::{
    quantity::{self, NANOS},
    restart_rules,
};

/// Amounts by resource name.
pub(super) type ResourceList = BTreeMap<String, Quantity>;

const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// A CPU amount in millicores.
pub(super) fn millis(thousandths: i64) -> Quantity {
    Quantity(decimal(i128::from(thousandths) * (NANOS / 1000)))
}

/// An amount of bytes, with binary suffix.
pub(super) fn bytes(bytes: i64) -> Quantity {
    Quantity(binary(i128::from(bytes) * NANOS))
}

/// Requests and limits in canonical form.
pub(super) fn canonical(resources: &ResourceRequirements) -> ResourceRequirements {
    let list = |list: &ResourceList| -> ResourceList {
        list.iter()
            .map(|(name, quantity)| {
                let amount = Amount::of(quantity).map(Amount::quantity);
                (name.clone(), amount.unwrap_or_else(|| quantity.clone()))
            })
            .collect()
    };
    ResourceRequirements {
        claims: resources.claims.clone(),
        limits: resources.limits.as_ref().map(list),
        requests: resources.requests.as_ref().map(list),
    }
}

/// Requests and limits of the whole pod: its pod-level resources where set, else the most that its
/// containers need at the same time; plus overhead.
pub(super) fn of_pod(spec: &PodSpec) -> ResourceRequirements {
    let own = spec.resources.as_ref();
    let requests = together(spec, |resources| resources.requests.as_ref());
    let limits = together(spec, |resources| resources.limits.as_ref());
    ResourceRequirements {
        claims: None,
        requests: total(
            requests,
            own.and_then(|own| own.requests.as_ref()),
            spec.overhead.as_ref(),
            false,
        ),
        limits: total(
            limits,
            own.and_then(|own| own.limits.as_ref()),
            spec.overhead.as_ref(),
            true,
        ),
    }
}

/// An amount in billionths, and whether it has a binary suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount {
    nanos: i128,
    binary: bool,
}

impl Amount {
    fn of(quantity: &Quantity) -> Option<Self> {
        Some(Self {
            nanos: quantity::parse(&quantity.0).ok()?,
            binary: quantity.0.ends_with('i'),
        })
    }

    fn quantity(self) -> Quantity {
        Quantity(if self.binary {
            binary(self.nanos)
        } else {
            decimal(self.nanos)
        })
    }
}

type Amounts<'a> = BTreeMap<&'a str, Amount>;

fn amounts(list: Option<&ResourceList>) -> impl Iterator<Item = (&str, Amount)> {
    list.into_iter()
        .flatten()
        .filter_map(|(name, quantity)| Some((name.as_str(), Amount::of(quantity)?)))
}

fn add<'a>(to: &mut Amounts<'a>, what: impl Iterator<Item = (&'a str, Amount)>) {
    for (name, amount) in what {
        match to.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert(amount);
            }
            Entry::Occupied(mut entry) => {
                let sum = entry.get_mut();
                if sum.nanos == 0 {
                    sum.binary = amount.binary;
                }
                sum.nanos = sum.nanos.saturating_add(amount.nanos);
            }
        }
    }
}

fn raise<'a>(to: &mut Amounts<'a>, what: &Amounts<'a>) {
    for (name, amount) in what {
        let most = to.entry(name).or_insert(*amount);
        if amount.nanos.cmp(&most.nanos) == Ordering::Greater {
            *most = *amount;
        }
    }
}

/// The sum of regular containers and sidecars, or if greater that of an init container and the
/// sidecars before it.
fn together<'a>(
    spec: &'a PodSpec,
    list: impl Fn(&'a ResourceRequirements) -> Option<&'a ResourceList>,
) -> Amounts<'a> {
    let of = |container: &'a Container| amounts(container.resources.as_ref().and_then(&list));
    let mut running = Amounts::new();
    for container in &spec.containers {
        add(&mut running, of(container));
    }
    let (mut sidecars, mut most) = (Amounts::new(), Amounts::new());
    for init in spec.init_containers.iter().flatten() {
        let mut at_once = sidecars.clone();
        add(&mut at_once, of(init));
        if restart_rules::is_sidecar(init) {
            add(&mut running, of(init));
            sidecars.clone_from(&at_once);
        }
        raise(&mut most, &at_once);
    }
    raise(&mut running, &most);
    running
}

fn total<'a>(
    mut together: Amounts<'a>,
    own: Option<&'a ResourceList>,
    overhead: Option<&'a ResourceList>,
    only_named: bool,
) -> Option<ResourceList> {
    together.extend(amounts(own));
    let overhead: Vec<_> = amounts(overhead)
        .filter(|(name, _)| !only_named || together.contains_key(name))
        .collect();
    add(&mut together, overhead.into_iter());
    (!together.is_empty()).then(|| {
        together
            .into_iter()
            .map(|(name, amount)| (name.to_owned(), amount.quantity()))
            .collect()
    })
}

fn decimal(nanos: i128) -> String {
    scaled(nanos, 1000, &DECIMAL)
}

fn binary(nanos: i128) -> String {
    if nanos.abs() < 1024 * NANOS || nanos % NANOS != 0 {
        return decimal(nanos);
    }
    scaled(nanos / NANOS, 1024, &BINARY)
}

/// The number with the largest suffix that keeps it whole.
fn scaled(mut amount: i128, step: i128, suffixes: &[&str]) -> String {
    if amount == 0 {
        return "0".to_owned();
    }
    let mut suffixes = suffixes.iter().peekable();
    let mut suffix = suffixes.next();
    while amount % step == 0 && suffixes.peek().is_some() {
        amount /= step;
        suffix = suffixes.next();
    }
    format!("{amount}{}", suffix.copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn writes_as_the_api_does() {
        for (text, expected) in [
            ("0.5", "500m"),
            ("1500m", "1500m"),
            ("1000", "1k"),
            ("1024Mi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("0.5Ki", "512"),
            ("0", "0"),
            ("100M", "100M"),
        ] {
            let quantity = Amount::of(&Quantity(text.to_owned())).unwrap().quantity();
            assert_eq!(quantity.0, expected, "{text}");
        }
        for suffix in [
            "n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
        ] {
            let text = format!("3{suffix}");
            let quantity = Amount::of(&Quantity(text.clone())).unwrap().quantity();
            assert_eq!(quantity.0, text);
        }
        assert_eq!(
            (millis(100).0, bytes(64 << 20).0),
            ("100m".into(), "64Mi".into())
        );
    }

    #[test]
    fn a_pod_requests_what_runs_at_once() {
        let spec: PodSpec = serde_json::from_value(serde_json::json!({
            "initContainers": [
                {"name": "s", "restartPolicy": "Always",
                 "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}},
                {"name": "i", "resources": {"requests": {"cpu": "2", "memory": "16Mi"}}}
            ],
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "200m", "memory": "64Mi"},
                                            "limits": {"memory": "1Gi"}}}
            ],
            "overhead": {"cpu": "10m", "memory": "1Mi"}
        }))
        .unwrap();
        let total = of_pod(&spec);
        let requests = total.requests.unwrap();
        assert_eq!(requests["cpu"].0, "2110m");
        assert_eq!(requests["memory"].0, "129Mi");
        let limits = total.limits.unwrap();
        assert_eq!(limits["memory"].0, "1025Mi");
        assert!(!limits.contains_key("cpu"));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_as_the_same(amount in 0..i64::MAX) {
            for quantity in [millis(amount), bytes(amount)] {
                let by = if quantity == bytes(amount) { NANOS } else { NANOS / 1000 };
                prop_assert_eq!(quantity::parse(&quantity.0).unwrap(), i128::from(amount) * by);
            }
        }
    }
}
