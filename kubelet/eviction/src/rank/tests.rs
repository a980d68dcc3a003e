//! The order is compared with the documented one, written as the comparisons of pairs.

use std::cmp::Ordering;

use proptest::{collection::vec, option, prelude::*};
use serde_json::json;

use super::*;
use crate::usage::ContainerUsage;

#[derive(Clone, Debug)]
struct Candidate {
    priority: Option<i32>,
    request: Option<u64>,
    usage: Option<[u64; 4]>,
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let priority = option::of(-2..3_i32);
    let request = option::of(0..4_u64);
    let usage = option::weighted(0.8, prop::array::uniform4(0..4_u64));
    let one = (priority, request, usage).prop_map(|(priority, request, usage)| Candidate {
        priority,
        request,
        usage,
    });
    vec(one, 0..12)
}

fn pod(index: usize, candidate: &Candidate) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {"name": format!("p{index}"), "uid": index.to_string()},
        "spec": {"containers": [{"name": "c"}]},
    });
    if let Some(priority) = candidate.priority {
        pod["spec"]["priority"] = json!(priority);
    }
    if let Some(request) = candidate.request {
        let request = request.to_string();
        pod["spec"]["containers"][0]["resources"] =
            json!({"requests": {"memory": request, "ephemeral-storage": request}});
    }
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn files(count: u64) -> FileUsage {
    FileUsage {
        bytes: count,
        inodes: count,
    }
}

fn usage([memory, layer, logs, volume]: [u64; 4]) -> PodUsage {
    let container = ContainerUsage {
        memory: Some(memory),
        layer: Some(files(layer)),
        logs: Some(files(logs)),
    };
    PodUsage {
        memory: Some(memory),
        processes: Some(memory),
        containers: [("c".to_owned(), container)].into(),
        local_volumes: [("v".to_owned(), files(volume))].into(),
        ..PodUsage::default()
    }
}

fn ranked(of: &[Candidate], signal: Signal, layout: Layout) -> Vec<usize> {
    let indexed = of.iter().enumerate();
    let mut pods: Vec<Arc<Pod>> = indexed.clone().map(|(i, it)| pod(i, it)).collect();
    let usages = indexed
        .filter_map(|(i, it)| Some((PodUid::of(&pod(i, it)), usage(it.usage?))))
        .collect();
    rank(&mut pods, &usages, signal, layout);
    pods.iter()
        .map(|pod| PodUid::of(pod).as_str().parse().unwrap())
        .collect()
}

/// What the documentation says a pod uses of the signal's resource.
fn used([memory, layer, logs, volume]: [u64; 4], signal: Signal, layout: Layout) -> u64 {
    let disk = |name: &str| match layout {
        Layout::Single => layer + logs + volume,
        Layout::ImagesApart if name.starts_with("nodefs") => logs + volume,
        Layout::ImagesApart => layer,
        Layout::OnlyImagesApart if name.starts_with("imagefs") => 0,
        Layout::OnlyImagesApart => layer + logs + volume,
    };
    match signal.as_str() {
        "memory.available" | "allocatableMemory.available" | "pid.available" => memory,
        name => disk(name),
    }
}

/// Which of two pods is evicted first.
fn documented(a: &Candidate, b: &Candidate, signal: Signal, layout: Layout) -> Ordering {
    let priorities = a.priority.unwrap_or(0).cmp(&b.priority.unwrap_or(0));
    let is_pid = signal == Signal::PidAvailable;
    let (Some(used_a), Some(used_b)) = (a.usage, b.usage) else {
        let measured = a.usage.is_some().cmp(&b.usage.is_some());
        return match is_pid {
            true => priorities.then(measured),
            false => measured.then(priorities),
        };
    };
    let (used_a, used_b) = (used(used_a, signal, layout), used(used_b, signal, layout));
    if is_pid {
        return priorities.then(used_b.cmp(&used_a));
    }
    let has_requests = !signal.as_str().ends_with("inodesFree");
    let request = |of: &Candidate| of.request.filter(|_| has_requests).unwrap_or(0);
    let (request_a, request_b) = (request(a), request(b));
    let above =
        |used: u64, request: u64| i64::try_from(used).unwrap() - i64::try_from(request).unwrap();
    let exceeds = (used_b > request_b).cmp(&(used_a > request_a));
    exceeds
        .then(priorities)
        .then(above(used_b, request_b).cmp(&above(used_a, request_a)))
}

proptest! {
    #[test]
    fn the_order_is_the_documented_one(of in candidates(), signal in 0..Signal::ALL.len()) {
        let signal = Signal::ALL[signal];
        for layout in [Layout::Single, Layout::ImagesApart, Layout::OnlyImagesApart] {
            let order = ranked(&of, signal, layout);
            let mut all = order.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..of.len()).collect::<Vec<_>>());
            for pair in order.windows(2) {
                let (a, b) = (&of[pair[0]], &of[pair[1]]);
                let ordering = documented(a, b, signal, layout);
                prop_assert!(ordering != Ordering::Greater, "{signal:?} {layout:?} {a:?} {b:?}");
                // Equals keep their order.
                prop_assert!(ordering != Ordering::Equal || pair[0] < pair[1]);
            }
        }
    }
}

#[test]
fn pods_above_their_requests_go_first_then_the_less_important_then_the_larger() {
    let candidate = |priority, request, memory| Candidate {
        priority: Some(priority),
        request: Some(request),
        usage: Some([memory, 0, 0, 0]),
    };
    let of = [
        candidate(0, 100, 90),
        candidate(9, 10, 20),
        candidate(1, 10, 15),
        candidate(1, 10, 90),
        candidate(-5, 50, 50),
    ];
    let order = ranked(&of, Signal::MemoryAvailable, Layout::Single);
    assert_eq!(order, [3, 2, 1, 4, 0]);
    let order = ranked(&of, Signal::PidAvailable, Layout::Single);
    assert_eq!(order, [4, 0, 3, 2, 1]);
}
