mod gates;
mod process;

use std::fs;

use kubelet_container_manager::{
    ContainerManagerOptions, Enforcement, Limits, PodCgroupOptions, cgroup::Driver,
};
use kubelet_node::{capacity::CapacityOptions, options::NodeOptions};
use kubelet_pod_spec::quantity::NANOS;
use kubelet_server::{
    ClusterDependencies, Servers,
    options::{AuthorizationMode, CertificateSource, ServerOptions},
};

use super::*;
use crate::{
    cli::{Command, parse},
    pod_cgroups::options::{CgroupOptions, CgroupSource},
};

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn flags(args: &[&str]) -> Flags {
    match parse(["kubelet", "--hostname-override=Node-1"].iter().chain(args)).unwrap() {
        Command::Run(flags) => *flags,
        other => panic!("not a run: {other:?}"),
    }
}

fn with_file(body: &str, args: &[&str]) -> Result<Settings, SettingsError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    fs::write(&path, format!("{HEAD}{body}")).unwrap();
    let config = format!("--config={}", path.display());
    let mut all = vec![config.as_str()];
    all.extend(args);
    Settings::load(&flags(&all))
}

#[test]
fn nothing_given_is_upstreams_defaults() {
    let settings = Settings::load(&flags(&[])).unwrap();
    assert_eq!(settings.options.node.name, "node-1");
    assert_eq!(settings.options.capacity.max_pods, 110);
    assert_eq!(settings.max_open_files, 1_000_000);
    assert_eq!(
        settings.server.healthz,
        Some(([127, 0, 0, 1], 10248).into())
    );
    assert_eq!(settings.server.read_only, None);
    assert!(settings.manifests.is_none());
    assert_eq!(
        settings.options.cri.image_endpoint,
        "unix:///run/containerd/containerd.sock"
    );
}

#[test]
fn a_single_run_has_no_servers() {
    assert!(with_file("runOnce: true\n", &[]).unwrap().run_once);
    let error = with_file("runOnce: true\n", &["--enable-server"]).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("runOnce: invalid value true"), "{error}");
}

#[test]
fn nothing_given_is_the_default_of_each_part() {
    let settings = Settings::load(&flags(&[])).unwrap();
    // Eviction thresholds have a default in the configuration, and none by themselves.
    let capacity = CapacityOptions {
        reservation: settings.options.capacity.reservation.clone(),
        ..CapacityOptions::default()
    };
    // By themselves, pods have no cgroups.
    let cgroups = CgroupOptions {
        driver: Driver::Cgroupfs,
        manager: ContainerManagerOptions {
            enforce: vec![Enforcement::Pods],
            ..ContainerManagerOptions::default()
        },
        kube_reserved: Limits::default(),
        system_reserved: Limits::default(),
        source: CgroupSource::Machine,
    };
    let expected = KubeletOptions {
        cgroups: Some(cgroups),
        // The machine's own.
        node: settings.options.node.clone(),
        cri: CriOptions {
            image_endpoint: CriOptions::default().runtime_endpoint,
            ..CriOptions::default()
        },
        capacity: capacity.clone(),
        // Only a configuration has thresholds.
        eviction: settings.options.eviction.clone(),
        kernel_log: Some("/dev/kmsg".into()),
        ..KubeletOptions::default()
    };
    assert_eq!(format!("{:#?}", settings.options), format!("{expected:#?}"));
    let node = LocalNode::default();
    assert_eq!(settings.options.node.root_dir, node.root_dir);
    assert_eq!(settings.options.node.pod_logs_dir, node.pod_logs_dir);

    let member = Settings::load(&flags(&["--kubeconfig=/nowhere"])).unwrap();
    let expected = NodeOptions {
        capacity,
        ..NodeOptions::default()
    };
    assert_eq!(
        format!("{:#?}", member.cluster.unwrap().node),
        format!("{expected:#?}")
    );
}

#[test]
fn cgroups_of_pods_are_as_configured() {
    let none = with_file(
        "cgroupsPerQOS: false\nenforceNodeAllocatable: [none]\n",
        &[],
    )
    .unwrap();
    assert!(none.options.cgroups.is_none());
    let settings = with_file(
        "cgroupDriver: systemd\nkubeReserved: {cpu: 500m, memory: 1Mi, pid: '9'}\n\
         kubeReservedCgroup: /kube\nenforceNodeAllocatable: [pods, kube-reserved]\n\
         cpuCFSQuotaPeriod: 20ms\npodPidsLimit: 7\n",
        &["--cgroup-root=/own"],
    )
    .unwrap();
    assert_eq!(settings.warnings, [""; 0]);
    let cgroups = settings.options.cgroups.unwrap();
    assert_eq!(cgroups.driver, Driver::Systemd);
    assert_eq!(
        cgroups.manager,
        ContainerManagerOptions {
            cgroup_root: "/own".to_owned(),
            pods: PodCgroupOptions {
                cpu_cfs_quota_period: Duration::from_millis(20),
                pids_limit: Some(7),
                ..PodCgroupOptions::default()
            },
            enforce: vec![Enforcement::Pods, Enforcement::KubeReserved],
            kube_reserved_cgroup: "/kube".to_owned(),
            ..ContainerManagerOptions::default()
        }
    );
    let kube = cgroups.kube_reserved;
    assert_eq!(
        (kube.cpu, kube.memory, kube.pids),
        (Some(500), Some(1 << 20), Some(9))
    );
}

#[test]
fn kernel_tunables_are_protected_set_or_kept() {
    let behavior = |body: &str, args: &[&str]| with_file(body, args).unwrap().tunables;
    assert_eq!(behavior("", &[]), TunableBehavior::Set);
    let keep = ["--set-kernel-tunables=false"];
    assert_eq!(behavior("", &keep), TunableBehavior::Keep);
    let protect = "protectKernelDefaults: true\n";
    assert_eq!(behavior(protect, &keep), TunableBehavior::Refuse);
}

#[test]
fn images_have_an_endpoint_of_their_own_if_one_is_given() {
    let endpoints = |body: &str| {
        let cri = with_file(body, &[]).unwrap().options.cri;
        (cri.runtime_endpoint, cri.image_endpoint)
    };
    let runtime = "containerRuntimeEndpoint: /run/a.sock\n";
    let (a, b) = ("unix:///run/a.sock", "unix:///run/b.sock");
    assert_eq!(endpoints(runtime), (a.to_owned(), a.to_owned()));
    let both = format!("{runtime}imageServiceEndpoint: {b}\n");
    assert_eq!(endpoints(&both), (a.to_owned(), b.to_owned()));
}

#[test]
fn a_flag_wins_over_the_file() {
    let settings = with_file(
        "syncFrequency: 30s\nmaxPods: 20\nstaticPodPath: manifests\ncontainerRuntimeEndpoint: /run/a.sock\n",
        &["--max-pods=30", "--read-only-port=10255"],
    )
    .unwrap();
    assert_eq!(settings.options.sync_frequency, Duration::from_secs(30));
    assert_eq!(settings.options.capacity.max_pods, 30);
    assert_eq!(settings.options.cri.runtime_endpoint, "unix:///run/a.sock");
    assert_eq!(
        settings.server.read_only,
        Some(([0, 0, 0, 0], 10255).into())
    );
    let manifests = settings.manifests.unwrap().path;
    assert!(manifests.is_absolute() && manifests.ends_with("manifests"));
}

#[test]
fn drivers_of_volumes_are_in_one_directory() {
    let dir = |body: &str, arguments: &[&str]| {
        let settings = with_file(body, arguments).unwrap();
        settings.options.volume_plugin_dir
    };
    let default = Path::new("/usr/libexec/kubernetes/kubelet-plugins/volume/exec");
    assert_eq!(dir("", &[]), default);
    let file = "volumePluginDir: /opt/drivers\n";
    assert_eq!(dir(file, &[]), Path::new("/opt/drivers"));
    let flag = "--volume-plugin-dir=/opt/others";
    assert_eq!(dir(file, &[flag]), Path::new("/opt/others"));
}

#[test]
fn volumes_are_measured_unless_the_period_is_negative() {
    let period = |body: &str, arguments: &[&str]| {
        let settings = with_file(body, arguments).unwrap();
        settings.options.volume_stats_period
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(period("", &[]), seconds(60));
    assert_eq!(period("volumeStatsAggPeriod: 0s\n", &[]), seconds(60));
    assert_eq!(period("volumeStatsAggPeriod: 90s\n", &[]), seconds(90));
    assert_eq!(period("volumeStatsAggPeriod: -1s\n", &[]), None);
    let flag = "--volume-stats-agg-period=2m";
    assert_eq!(period("volumeStatsAggPeriod: 90s\n", &[flag]), seconds(120));
}

#[test]
fn pods_get_time_when_the_node_shuts_down_only_if_it_is_asked_for() {
    let settings = with_file("", &[]).unwrap();
    assert_eq!(settings.options.shutdown_grace_periods, []);
    let body = "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n";
    let settings = with_file(body, &[]).unwrap();
    let periods = settings.options.shutdown_grace_periods;
    let seconds: Vec<u64> = periods.iter().map(|grace| grace.period.as_secs()).collect();
    assert_eq!(seconds, [20, 10]);
    assert_eq!(settings.warnings, Vec::<String>::new());
}

#[test]
fn drop_ins_lie_over_the_file_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for (name, body) in [
        ("10.conf", "maxPods: 1\nlogging: {verbosity: 4}\n"),
        ("20.conf", "maxPods: 2\n"),
        ("30.yaml", "maxPods: 3\n"),
    ] {
        fs::write(dir.path().join(name), format!("{HEAD}{body}")).unwrap();
    }
    let drop_ins = format!("--config-dir={}", dir.path().display());
    let settings = with_file("maxPods: 9\n", &[&drop_ins]).unwrap();
    assert_eq!(
        (settings.options.capacity.max_pods, settings.verbosity),
        (2, 4)
    );
}

#[test]
fn faults_of_a_file_name_file_line_and_field() {
    for (body, parts) in [
        (
            "syncFrequency: 10\n",
            &[
                "line 3",
                "syncFrequency: invalid type: integer `10`, expected a duration like \"1m30s\"",
            ][..],
        ),
        (
            "maxpods: 5\nsyncFrequency: 10\n",
            &["syncFrequency: invalid type: integer `10`"],
        ),
        (
            "healthzPort: 99999\nhairpinMode: x\n",
            &[
                "healthzPort: invalid value 99999",
                "hairpinMode: invalid value \"x\"",
            ],
        ),
        ("maxPods: [\n", &["config.yaml: line"]),
    ] {
        let error = with_file(body, &[]).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
}

#[test]
fn fields_that_are_not_known_are_passed_over_in_the_file_and_refused_in_drop_ins() {
    for (body, parts) in [
        (
            "maxpods: 5\nmaxPods: 6\n",
            &[
                "line 3",
                "\"maxpods\"",
                "did you mean \"maxPods\"",
                "unknown fields: maxpods",
            ][..],
        ),
        (
            "maxPods: 5\nmaxPods: 6\n",
            &["line 4", "duplicate field \"maxPods\""],
        ),
        (
            "maxPods: 6\nlogging: {colour: x}\nregisterWithTaints: [{key: a, effect: NoSchedule}]\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1, of: 2}]\n",
            &[
                "line 4",
                "unknown fields: logging.colour, shutdownGracePeriodByPodPriority[0].of",
            ],
        ),
        (
            "maxPods: 6\nnewerThing: {a: [1]}\nauthentication: {x509: {clientCaFile: a, clientCAFile: b}}\n",
            &["unknown fields: authentication.x509.clientCaFile, newerThing"],
        ),
    ] {
        let settings = with_file(body, &[]).unwrap();
        assert_eq!(settings.options.capacity.max_pods, 6);
        let warning = settings.warnings.join("\n");
        for part in parts {
            assert!(warning.contains(part), "{part:?} is not in {warning:?}");
        }
        assert!(warning.contains("config.yaml"), "{warning}");

        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("10.conf"), format!("{HEAD}{body}")).unwrap();
        let drop_ins = format!("--config-dir={}", dir.path().display());
        let error = with_file("", &[&drop_ins]).unwrap_err().to_string();
        assert!(error.contains("10.conf: line "), "{error}");
    }
}

#[test]
fn another_kind_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c");
    fs::write(&path, "apiVersion: v1\nkind: Pod\n").unwrap();
    let config = format!("--config={}", path.display());
    let error = Settings::load(&flags(&[&config])).unwrap_err().to_string();
    assert!(
        error.contains("apiVersion is \"v1\"; it must be \"kubelet.config.k8s.io/v1beta1\""),
        "{error}"
    );
}

#[test]
fn what_has_no_effect_is_said_in_one_line() {
    let settings = with_file(
        "enableContentionProfiling: true\niptablesDropBit: 15\n",
        &["--hairpin-mode=none"],
    )
    .unwrap();
    assert_eq!(
        settings.warnings,
        [
            "configuration file fields without effect yet: enableContentionProfiling, iptablesDropBit",
            "flags without effect: --hairpin-mode",
        ]
    );
}

#[test]
fn the_example_is_a_standalone_node_beside_the_shim() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.yaml");
    let example = include_str!("../../../../deploy/kubelet.yaml");
    fs::write(&path, example).unwrap();
    let config = format!("--config={}", path.display());
    let settings = Settings::load(&flags(&[&config])).unwrap();
    assert_eq!(settings.warnings, [""; 0]);
    let shim = "unix:///run/cri-dockerd.sock";
    assert_eq!(settings.options.cri.runtime_endpoint, shim);
    assert_eq!(settings.options.cri.image_endpoint, shim);
    assert!(settings.manifests.is_some() && settings.cluster.is_none());
    assert_eq!(
        settings.server.read_only,
        Some(([127, 0, 0, 1], 10255).into())
    );
}

#[test]
fn a_kubeconfig_makes_a_member_of_a_cluster() {
    assert!(Settings::load(&flags(&[])).unwrap().cluster.is_none());
    let settings = with_file(
        "rotateCertificates: true\nnodeStatusUpdateFrequency: 20s\nnodeStatusMaxImages: -1\n\
         registerWithTaints: [{key: a, effect: NoSchedule}]\nproviderID: cloud://1\n\
         eventRecordQPS: 9\n",
        &[
            "--kubeconfig=/k.conf",
            "--node-labels=tier=web",
            "--cloud-provider=external",
            "--kube-api-qps=7",
        ],
    )
    .unwrap();
    let cluster = settings.cluster.unwrap();
    assert_eq!(cluster.identity.kubeconfig, Path::new("/k.conf"));
    assert_eq!((cluster.rate_limit.qps, cluster.rate_limit.burst), (7, 100));
    let events = cluster.event_rate_limit.map(|limit| limit.qps);
    assert_eq!(events, Some(9));
    assert!(cluster.identity.rotate_certificates && !cluster.server_tls_bootstrap);
    let node = cluster.node;
    assert_eq!(node.labels["tier"], "web");
    assert_eq!(node.taints[0].key, "a");
    assert!(node.external_cloud_provider && node.register);
    assert_eq!(node.max_images, None);
    assert_eq!(node.provider_id, "cloud://1");
    // A longer update interval also lengthens the report interval.
    assert_eq!(node.status_report_frequency, Duration::from_secs(20));
}

/// The authorization mode of the secure port with the settings, or the error of its setup.
async fn authorizes(settings: &Settings) -> Result<AuthorizationMode, String> {
    let secure = settings.server.secure.as_ref().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut secure = secure.clone();
    secure.access.authentication.client_ca_file = None;
    secure.address = ([127, 0, 0, 1], 0).into();
    secure.certificate = CertificateSource::SelfSigned(dir.path().join("pki"));
    let options = ServerOptions {
        secure: Some(secure.clone()),
        ..ServerOptions::default()
    };
    let bound = Servers::bind(&options, dir.path(), ClusterDependencies::default()).await;
    bound.map_err(|error| error.to_string())?;
    Ok(secure.access.authorization)
}

#[tokio::test]
async fn who_serves_callers_says_what_they_may_do() {
    const ALLOW: &str = "authorization: {mode: AlwaysAllow}\n";
    for callers in [
        "authentication: {x509: {clientCAFile: /ca.crt}}\n",
        "authentication: {anonymous: {enabled: true}}\n",
    ] {
        let settings = with_file(callers, &[]).unwrap();
        let refusal = authorizes(&settings).await.unwrap_err();
        for part in [
            "no client provided",
            "authorization.mode",
            "--authorization-mode",
        ] {
            assert!(refusal.contains(part), "{part} is not in {refusal}");
        }
        let settings = with_file(&format!("{callers}{ALLOW}"), &[]).unwrap();
        let mode = authorizes(&settings).await.unwrap();
        assert!(matches!(mode, AuthorizationMode::AlwaysAllow));
        assert_eq!(settings.warnings, Vec::<String>::new());
        let settings = with_file(callers, &["--authorization-mode=AlwaysAllow"]).unwrap();
        authorizes(&settings).await.unwrap();
    }
    // Without any authentication there is nothing to authorize.
    let settings = with_file("", &[]).unwrap();
    authorizes(&settings).await.unwrap();
    let settings = with_file("enableServer: false\n", &["--anonymous-auth"]).unwrap();
    assert!(settings.server.secure.is_none());
}

#[tokio::test]
async fn flags_alone_let_callers_do_everything_as_upstream_and_say_so() {
    for callers in ["--client-ca-file=/ca.crt", "--anonymous-auth"] {
        let settings = Settings::load(&flags(&[callers])).unwrap();
        let mode = authorizes(&settings).await.unwrap();
        assert!(matches!(mode, AuthorizationMode::AlwaysAllow));
        let [warning] = &settings.warnings[..] else {
            panic!("{:?}", settings.warnings);
        };
        assert!(warning.contains("--authorization-mode"), "{warning}");
        let said = Settings::load(&flags(&[callers, "--authorization-mode=AlwaysAllow"]));
        assert_eq!(said.unwrap().warnings, Vec::<String>::new());
    }
    assert_eq!(
        Settings::load(&flags(&[])).unwrap().warnings,
        Vec::<String>::new()
    );
}

#[test]
fn attaching_is_refused_by_name_in_a_cluster() {
    let file = "enableControllerAttachDetach: false\n";
    let error = with_file(file, &["--kubeconfig=/k.conf"]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("enableControllerAttachDetach: invalid value false"),
        "{error}"
    );
    // A standalone node attaches no volumes.
    with_file(file, &[]).unwrap();
}
