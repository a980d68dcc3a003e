//! What feature gates change.

use super::*;

#[test]
fn restart_delays_follow_from_gates_and_the_longest_that_is_given() {
    let gates = |gates: &str| format!("featureGates: {{{gates}}}\n");
    let quick = gates("ReduceDefaultCrashLoopBackOffDecay: true");
    let no_maximum = gates("KubeletCrashLoopBackOffMax: false");
    let both = gates("ReduceDefaultCrashLoopBackOffDecay: true, KubeletCrashLoopBackOffMax: false");
    let given = "crashLoopBackOff: {maxContainerRestartPeriod: 30s}\n";
    for (body, first, longest) in [
        (String::new(), 10, 300),
        (given.to_owned(), 10, 30),
        (no_maximum, 10, 300),
        (quick.clone(), 1, 300),
        (quick + given, 1, 30),
        (both, 1, 60),
    ] {
        let delays = with_file(&body, &[]).unwrap().options.restart_delays;
        let expected = RestartDelays {
            first: Duration::from_secs(first),
            longest: Duration::from_secs(longest),
        };
        assert_eq!(delays, expected, "{body}");
    }
}

#[test]
fn features_of_pods_can_be_switched_off() {
    let off = "featureGates: {PodLevelResources: false, \
               InPlacePodLevelResourcesVerticalScaling: false, \
               KubeletPodResourcesListUseActivePods: false}\n";
    for (body, on) in [("", true), (off, false)] {
        let settings = with_file(body, &["--kubeconfig=/nonexistent"]).unwrap();
        let PodFeatures {
            pod_resources,
            pod_resize,
        } = settings.options.pod_features;
        let node = settings.cluster.unwrap().node;
        let lists = settings.options.lists_active_pods;
        let all = [pod_resources, pod_resize, node.resizes_pods, lists];
        assert_eq!(all, [on; 4], "{body}");
    }
}

#[test]
fn lists_of_the_runtime_are_streamed_on_request() {
    for (body, on) in [
        ("", false),
        ("featureGates: {CRIListStreaming: true}\n", true),
    ] {
        let settings = with_file(body, &[]).unwrap();
        assert_eq!(settings.options.cri.list_streaming, on, "{body}");
    }
}
