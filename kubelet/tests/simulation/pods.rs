//! The pods of a simulation: their behaviour and their expected outcome.

use std::time::Duration;

use fake_runtime::{Behaviour, FakeRuntime};
use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet::sources::update::Source;
use serde_json::{Value, json};
use test_run::random::Random;

use crate::cluster::NODE;

/// The expected outcome of a pod that only its own containers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// All its containers keep running.
    Runs,
    /// Its containers exit and are restarted forever.
    Loops,
    /// It succeeds.
    Succeeds,
    /// It fails.
    Fails,
}

/// A pod with its expected outcome.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub pod: Pod,
    pub source: Source,
    pub expect: Expect,
}

/// Images on the node, and images that must be pulled.
const PRESENT: &[&str] = &["app:1", "app:2"];
const PULLABLE: &[&str] = &["tool:1", "tool:2", "tool:3"];

pub(crate) fn add_images(runtime: &FakeRuntime) {
    for image in PRESENT {
        runtime.add_image(&with_registry(image));
    }
    for image in PULLABLE {
        runtime.add_pullable_image(&with_registry(image));
    }
}

/// The name as the runtime stores it, with its registry; images are looked up by this name.
fn with_registry(image: &str) -> String {
    format!("registry.test/{image}")
}

pub(crate) fn image(random: &mut Random) -> String {
    let all = [PRESENT, PULLABLE].concat();
    with_registry(random.of(&all))
}

/// The inputs to a kind of pod.
pub(crate) struct Maker<'a> {
    slot: usize,
    random: &'a mut Random,
    runtime: &'a FakeRuntime,
    spec: Value,
}

/// A kind of pod: completes the spec and returns the expected outcome.
pub(crate) type Kind = fn(&mut Maker<'_>) -> Expect;

/// The kinds of pods; each entry has the same probability.
pub(crate) const KINDS: &[Kind] = &[
    server,
    server,
    server,
    server_with_init,
    crash_loop,
    job,
    job,
    job_with_init,
    one_shot,
    failing_one_shot,
    failing_init,
    long_one_shot,
    server_with_scratch_space,
    probed_server,
    probed_server,
    server_with_sidecar,
    job_with_sidecar,
    one_shot_with_sidecar,
];

/// All containers of a pod in start order.
pub(crate) fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref().unwrap();
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers)
}

/// Whether an init container is a sidecar.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// A pod of one of `kinds`: generation `generation` of its name.
pub(crate) fn plan(
    slot: usize,
    generation: u32,
    kinds: &[Kind],
    random: &mut Random,
    runtime: &FakeRuntime,
) -> Planned {
    let source = if generation > 0 || random.permille(500) {
        Source::File
    } else {
        Source::Api
    };
    let kind = random.of(kinds);
    let (spec, expect) = make(slot, kind, random, runtime);
    planned(slot, generation, source, spec, expect)
}

/// The first generation of a name from `source`: one container that keeps running and requests
/// `millis` thousandths of a CPU. Its image is on the node.
pub(crate) fn plan_sized(
    slot: usize,
    source: Source,
    millis: i64,
    random: &mut Random,
    runtime: &FakeRuntime,
) -> Planned {
    let (mut spec, expect) = make(slot, lone_server, random, runtime);
    let container = &mut spec["containers"][0];
    container["resources"] = json!({"requests": {"cpu": format!("{millis}m")}});
    container["image"] = json!(with_registry(PRESENT[0]));
    container["imagePullPolicy"] = json!("IfNotPresent");
    planned(slot, 0, source, spec, expect)
}

fn make(slot: usize, kind: Kind, random: &mut Random, runtime: &FakeRuntime) -> (Value, Expect) {
    let grace = random.between(0, 8);
    let mut maker = Maker {
        slot,
        random,
        runtime,
        spec: json!({"terminationGracePeriodSeconds": grace, "dnsPolicy": "ClusterFirst"}),
    };
    let expect = kind(&mut maker);
    (maker.spec, expect)
}

fn planned(
    slot: usize,
    generation: u32,
    source: Source,
    mut spec: Value,
    expect: Expect,
) -> Planned {
    let uid = format!("uid-{slot}-{generation}");
    let mut metadata = json!({"name": format!("p{slot}"), "namespace": "default", "uid": uid});
    if source == Source::File {
        spec["nodeName"] = json!(NODE);
        metadata["annotations"] = json!({
            "kubernetes.io/config.source": "file", "kubernetes.io/config.hash": uid,
        });
    }
    let pod = json!({"metadata": metadata, "spec": spec});
    Planned {
        pod: serde_json::from_value(pod).unwrap(),
        source,
        expect,
    }
}

// === kinds ===

pub(crate) fn server(maker: &mut Maker<'_>) -> Expect {
    maker.policy("Always");
    for _ in 0..maker.random.between(1, 3) {
        maker.container("containers", None);
    }
    Expect::Runs
}

fn lone_server(maker: &mut Maker<'_>) -> Expect {
    maker.policy("Always");
    maker.container("containers", None);
    Expect::Runs
}

fn server_with_init(maker: &mut Maker<'_>) -> Expect {
    maker.init_containers(2);
    server(maker)
}

fn server_with_scratch_space(maker: &mut Maker<'_>) -> Expect {
    maker.spec["volumes"] = json!([{"name": "scratch", "emptyDir": {}}]);
    let expect = server(maker);
    for container in maker.spec["containers"].as_array_mut().unwrap() {
        container["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    }
    expect
}

fn probed_server(maker: &mut Maker<'_>) -> Expect {
    let expect = server(maker);
    let kinds = ["livenessProbe", "readinessProbe", "startupProbe"];
    // A pod with any probe has a liveness probe.
    for kind in &kinds[..usize::try_from(maker.random.between(1, 3)).unwrap()] {
        maker.probe("containers", kind);
    }
    expect
}

fn server_with_sidecar(maker: &mut Maker<'_>) -> Expect {
    maker.sidecars();
    server(maker)
}

fn job_with_sidecar(maker: &mut Maker<'_>) -> Expect {
    maker.sidecars();
    job(maker)
}

fn one_shot_with_sidecar(maker: &mut Maker<'_>) -> Expect {
    maker.sidecars();
    one_shot(maker)
}

fn crash_loop(maker: &mut Maker<'_>) -> Expect {
    maker.policy("Always");
    let code = maker.random.of(&[0, 1]);
    maker.container("containers", Some((code, 0)));
    if maker.random.permille(500) {
        maker.container("containers", None);
    }
    Expect::Loops
}

pub(crate) fn job(maker: &mut Maker<'_>) -> Expect {
    maker.policy("OnFailure");
    for _ in 0..maker.random.between(1, 2) {
        let fails = maker.random.between(0, 2);
        maker.container("containers", Some((0, fails)));
    }
    Expect::Succeeds
}

fn job_with_init(maker: &mut Maker<'_>) -> Expect {
    maker.init_containers(2);
    job(maker)
}

fn one_shot(maker: &mut Maker<'_>) -> Expect {
    maker.policy("Never");
    for _ in 0..maker.random.between(1, 2) {
        maker.container("containers", Some((0, 0)));
    }
    Expect::Succeeds
}

fn failing_one_shot(maker: &mut Maker<'_>) -> Expect {
    maker.policy("Never");
    maker.container("containers", Some((3, 0)));
    if maker.random.permille(500) {
        maker.container("containers", Some((0, 0)));
    }
    Expect::Fails
}

fn failing_init(maker: &mut Maker<'_>) -> Expect {
    maker.policy("Never");
    maker.container("initContainers", Some((2, 0)));
    maker.container("containers", None);
    Expect::Fails
}

fn long_one_shot(maker: &mut Maker<'_>) -> Expect {
    maker.policy("Never");
    maker.container("containers", None);
    Expect::Runs
}

impl Maker<'_> {
    fn policy(&mut self, policy: &str) {
        self.spec["restartPolicy"] = json!(policy);
    }

    fn init_containers(&mut self, most: u64) {
        for _ in 0..self.random.between(1, most) {
            let fails = self.random.between(0, 1);
            self.container("initContainers", Some((0, fails)));
        }
    }

    /// Adds one or two sidecars, perhaps with init containers that end between or after them.
    fn sidecars(&mut self) {
        for _ in 0..self.random.between(1, 2) {
            self.container("initContainers", None);
            let sidecars = self.spec["initContainers"].as_array_mut().unwrap();
            sidecars.last_mut().unwrap()["restartPolicy"] = json!("Always");
            if self.random.permille(300) {
                self.probe("initContainers", "startupProbe");
                self.probe("initContainers", "livenessProbe");
            }
            if self.random.permille(300) {
                self.container("initContainers", Some((0, 0)));
            }
        }
    }

    /// Adds a probe to the last container of a list.
    fn probe(&mut self, list: &str, kind: &str) {
        let probe = json!({
            "exec": {"command": ["check", kind]},
            "periodSeconds": self.random.between(2, 5),
            "failureThreshold": self.random.between(2, 4),
        });
        let containers = self.spec[list].as_array_mut().unwrap();
        containers.last_mut().unwrap()[kind] = probe;
    }

    /// Adds a container. `exits`: its exit code, and the number of attempts that fail before.
    fn container(&mut self, list: &str, exits: Option<(i32, u64)>) {
        if self.spec[list].is_null() {
            self.spec[list] = json!([]);
        }
        let containers = self.spec[list].as_array_mut().unwrap();
        // The name is unique among all pods, because the runtime keys behaviours by it.
        let name = format!("p{}-{}{}", self.slot, &list[..1], containers.len());
        let policy = self.random.of(&["IfNotPresent", "IfNotPresent", "Always"]);
        containers.push(json!({
            "name": name,
            "image": image(self.random),
            "imagePullPolicy": policy,
        }));
        let stops_after = (!self.random.permille(100)).then(|| self.random.millis(0, 2000));
        let behaviour = Behaviour {
            exits_after: exits.map(|(code, _)| (self.random.millis(1, 4000), code)),
            stops_after: stops_after
                .filter(|after| *after > Duration::from_millis(200))
                .or(stops_after.map(|_| Duration::ZERO)),
            fails_first: exits.map_or(0, |(_, fails)| u32::try_from(fails).unwrap()),
            ..Behaviour::default()
        };
        self.runtime.behave(&name, behaviour);
    }
}
