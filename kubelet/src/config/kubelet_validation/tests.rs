use super::*;
use crate::config::kubelet_defaults::set_defaults;

fn faults(json: serde_json::Value) -> Vec<String> {
    let mut config = serde_json::from_value(json).unwrap();
    set_defaults(&mut config);
    validate(&config)
}

#[test]
fn the_defaults_are_valid() {
    assert_eq!(faults(serde_json::json!({})), Vec::<String>::new());
}

#[test]
fn every_fault_is_named_with_what_is_allowed() {
    let found = faults(serde_json::json!({
        "healthzPort": 70000,
        "hairpinMode": "loop",
        "imageGCLowThresholdPercent": 90,
        "podLogsDir": "/var/log/../pods",
        "maxParallelImagePulls": 3,
        "serializeImagePulls": true,
        "crashLoopBackOff": {"maxContainerRestartPeriod": "10m"},
        "containerRuntimeEndpoint": "tcp://127.0.0.1:1234",
        "enableSystemLogQuery": true,
        "enableSystemLogHandler": false,
        "registerWithTaints": [
            {"key": "a/b", "effect": "NoSchedule"},
            {"key": "a b", "value": "-", "effect": "Never", "timeAdded": "2026-01-01T00:00:00Z"},
        ],
    }));
    for expected in [
        "healthzPort: invalid value 70000: must be between 0 and 65535, inclusive",
        "hairpinMode: invalid value \"loop\": must be one of: \"promiscuous-bridge\", \"hairpin-veth\", \"none\"",
        "imageGCLowThresholdPercent: invalid value 90: must be less than imageGCHighThresholdPercent, 85",
        "podLogsDir: invalid value \"/var/log/../pods\": must be an absolute, normalized path of ASCII characters",
        "maxParallelImagePulls: invalid value 3: must be 1 unless serializeImagePulls is false",
        "crashLoopBackOff.maxContainerRestartPeriod: invalid value 10m0s: must be between 1s and 5m0s, inclusive",
        "containerRuntimeEndpoint: invalid value \"tcp://127.0.0.1:1234\": must be a unix socket: unix:///path/to/runtime.sock or /path/to/runtime.sock",
        "enableSystemLogQuery: invalid value true: requires enableSystemLogHandler",
        "registerWithTaints[1].effect: invalid value \"Never\": must be one of: \"\", \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
        "registerWithTaints[1].timeAdded: invalid value (set): must not be set",
    ] {
        assert!(
            found.iter().any(|fault| fault == expected),
            "{expected}\n{found:#?}"
        );
    }
    for field in ["registerWithTaints[1].key", "registerWithTaints[1].value"] {
        assert!(found.iter().any(|it| it.starts_with(field)), "{found:#?}");
    }
    assert_eq!(found.len(), 12);
}

#[test]
fn runtime_endpoints_are_unix_sockets() {
    assert_eq!(
        unix_socket_path("unix:///run/cri.sock"),
        Ok(Path::new("/run/cri.sock"))
    );
    assert_eq!(
        unix_socket_path("/run/cri.sock"),
        Ok(Path::new("/run/cri.sock"))
    );
    assert!(unix_socket_path("npipe:////./pipe/x").is_err());
    assert!(unix_socket_path("run/cri.sock").is_err());
}
