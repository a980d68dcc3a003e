//! Which devices containers get.

use kubelet_topology_manager::ResourceHints;

use super::*;

/// The devices that a container has.
fn held(ledger: &Ledger, pod: &str, container: &str) -> String {
    let devices = ledger.devices_of(pod, container);
    let ids: BTreeSet<String> = devices
        .into_values()
        .flatten()
        .flat_map(|it| it.1)
        .collect();
    ids.into_iter().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn devices_come_from_the_nodes_of_the_hint_first() {
    let devices = [
        device("a", &[0]),
        device("b", &[0, 1]),
        device("c", &[1]),
        device("d", &[]),
        device("e", &[3]),
    ];
    for (hint, count, expected) in [
        (None, 2, "a b"),
        (Some(vec![1]), 1, "b"),
        (Some(vec![1]), 2, "b c"),
        (Some(vec![1]), 3, "a b c"),
        (Some(vec![3]), 2, "a e"),
        (Some(vec![2]), 4, "a b c e"),
        (Some(vec![0]), 5, "a b c d e"),
    ] {
        let mut ledger = ledger(&devices, DevicePluginOptions::default());
        let hint: Option<NodeMask> = hint.clone().map(|nodes| nodes.into_iter().collect());
        let (reusable, preferences) = (Reusable::default(), Preferences::new());
        let given = ledger.assign(request("p", count), &reusable, hint, &preferences);
        assert_eq!(given, Ok(()));
        assert_eq!(held(&ledger, "p", "c"), expected, "{hint:?}");
    }
}

#[tokio::test]
async fn a_plugin_chooses_among_devices_that_are_aligned() {
    let options = DevicePluginOptions {
        get_preferred_allocation_available: true,
        ..DevicePluginOptions::default()
    };
    let devices: Vec<ReportedDevice> = [("a", 0), ("b", 0), ("c", 0), ("d", 1), ("e", 1)]
        .into_iter()
        .map(|(id, node)| device(id, &[node]))
        .collect();
    for (count, available, must_include, prefers, expected) in [
        (1, &["a", "b", "c"][..], &[][..], &["c"][..], "c"),
        (2, &["a", "b", "c"], &[], &["c", "d"], "a c"),
        // No choice: all of the node.
        (3, &[], &[], &[], "a b c"),
        (
            4,
            &["a", "b", "c", "d", "e"],
            &["a", "b", "c"],
            &["e"],
            "a b c e",
        ),
        (
            4,
            &["a", "b", "c", "d", "e"],
            &["a", "b", "c"],
            &[],
            "a b c d",
        ),
    ] {
        let mut ledger = ledger(&devices, options);
        let hint = Some([0].into_iter().collect());
        let reusable = Reusable::default();
        let asked = ledger.assign(request("p", count), &reusable, hint, &Preferences::new());
        if available.is_empty() {
            assert_eq!(asked, Ok(()));
        } else {
            let question = PreferenceRequest {
                resource: GPU.to_owned(),
                available: ids(available),
                must_include: ids(must_include),
                size: count,
            };
            assert_eq!(asked, Err(Obstacle::Ask(question.clone())));
            assert_eq!(held(&ledger, "p", "c"), "");
            let prefers = prefers.iter().map(|&id| id.to_owned()).collect();
            let preferences = [(question, prefers)].into();
            let given = ledger.assign(request("p", count), &reusable, hint, &preferences);
            assert_eq!(given, Ok(()));
        }
        assert_eq!(held(&ledger, "p", "c"), expected);
    }
}

#[tokio::test]
async fn devices_of_init_containers_are_used_again() {
    let devices = [device("a", &[]), device("b", &[]), device("c", &[])];
    let mut ledger = ledger(&devices, DevicePluginOptions::default());
    let mut reusable = Reusable::default();
    for (container, count, ends, expected) in [
        ("init", 2, true, "a b"),
        ("sidecar", 1, false, "a"),
        ("next", 2, true, "b c"),
        ("main", 1, false, "b"),
        ("other", 1, false, "c"),
    ] {
        let request = DeviceRequest {
            container,
            ..request("p", count)
        };
        let given = ledger.assign(request, &reusable, None, &Preferences::new());
        assert_eq!(given, Ok(()), "{container}");
        reusable.given(&ledger, "p", container, ends);
        assert_eq!(held(&ledger, "p", container), expected, "{container}");
    }
}

#[tokio::test]
async fn hints_are_of_the_nodes_that_have_devices() {
    let devices = [
        device("a", &[0]),
        device("b", &[0]),
        device("c", &[1]),
        device("d", &[1, 9]),
    ];
    let mut ledger = ledger(&devices, DevicePluginOptions::default());
    let shown = |hints: ResourceHints| match hints {
        ResourceHints::Any => "any".to_owned(),
        ResourceHints::Among(hints) => {
            let shown = hints.iter().map(|hint| {
                let nodes = hint.nodes.unwrap().nodes().map(|node| node.to_string());
                let mark = if hint.preferred { "!" } else { "" };
                nodes.collect::<Vec<_>>().join(",") + mark
            });
            shown.collect::<Vec<_>>().join(" ")
        }
    };
    let reusable = Reusable::default();
    for (count, expected) in [(1, "0! 1! 0,1"), (2, "0! 1! 0,1"), (3, "0,1!"), (5, "")] {
        let hints = ledger.hints(request("p", count), &reusable);
        assert_eq!(shown(hints), expected, "{count}");
    }
    let hint = Some([0].into_iter().collect());
    let given = ledger.assign(request("p", 2), &reusable, hint, &Preferences::new());
    assert_eq!(given, Ok(()));
    // What the container has, it can have again; what others have, it cannot.
    assert_eq!(shown(ledger.hints(request("p", 2), &reusable)), "0! 0,1");
    assert_eq!(shown(ledger.hints(request("p", 1), &reusable)), "");
    assert_eq!(shown(ledger.hints(request("q", 2), &reusable)), "1! 0,1");
    assert_eq!(shown(ledger.hints(request("q", 3), &reusable)), "");
    assert_eq!(shown(ledger.pod_hints(request("p", 2))), "0! 0,1");
    let mut reusable = Reusable::default();
    reusable.given(&ledger, "p", "c", true);
    assert_eq!(shown(ledger.hints(request("q", 2), &reusable)), "0! 0,1");
    let without = ledger_without_nodes();
    assert_eq!(
        shown(without.hints(request("p", 1), &Reusable::default())),
        "any"
    );
}

fn ledger_without_nodes() -> Ledger {
    ledger(&[device("a", &[])], DevicePluginOptions::default())
}
