//! Settings of the kubelet's own process: its log, metrics and OOM score.

use super::*;

#[test]
fn modules_of_the_log_come_from_the_file_or_the_flag() {
    let module = |pattern: &str, verbosity| ModuleVerbosity {
        pattern: pattern.to_owned(),
        verbosity,
    };
    let body = "logging: {vmodule: [{filePattern: pleg, verbosity: 6}]}\n";
    let settings = with_file(body, &[]).unwrap();
    assert_eq!(settings.module_verbosity, [module("pleg", 6)]);
    let settings = with_file(body, &["--vmodule=csi_*=5,status=4"]).unwrap();
    let given = [module("csi_*", 5), module("status", 4)];
    assert_eq!(settings.module_verbosity, given);
    assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
}

#[test]
fn metrics_can_be_shown_as_in_the_previous_version_only() {
    with_file("showHiddenMetricsForVersion: \"1.35\"\n", &[]).unwrap();
    let error = with_file("showHiddenMetricsForVersion: \"1.34\"\n", &[]).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("showHiddenMetricsForVersion: invalid value \"1.34\""),
        "{error}"
    );
}

#[test]
fn the_kubelets_own_process_is_as_the_file_says() {
    let settings = with_file("", &[]).unwrap();
    assert_eq!(settings.log_format, LogFormat::Text);
    assert_eq!(
        (settings.oom_score_adj, settings.fail_swap_on),
        (-999, true)
    );
    let body = "logging: {format: json}\noomScoreAdj: 10\nfailSwapOn: false\npodCIDR: 10.1.0.0/24\nreservedSystemCPUs: \"0\"\n";
    let settings = with_file(body, &[]).unwrap();
    assert_eq!(settings.log_format, LogFormat::Json);
    assert_eq!((settings.oom_score_adj, settings.fail_swap_on), (10, false));
    assert_eq!(settings.pod_cidr, "10.1.0.0/24");
    let core = NANOS;
    assert_eq!(
        settings
            .options
            .capacity
            .reservation
            .amount("cpu", 2 * core),
        core
    );
    assert_eq!(settings.warnings, Vec::<String>::new());
    let error = with_file("reservedSystemCPUs: 0-60000\n", &[]).unwrap_err();
    assert!(error.to_string().contains("reservedSystemCPUs"), "{error}");
}
