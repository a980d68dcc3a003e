//! Restart policies and stop signals of containers.

use super::*;

#[test]
fn restarts_of_containers() {
    let rule = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]);
    let path = "spec.containers[0]";
    one(
        container("restartPolicyRules", rule),
        &format!(
            "{path}.restartPolicy: Required value: must specify restartPolicy when restart rules are used"
        ),
    );
    let ruled = |rule: Value| {
        faults(&[
            ("/spec/containers/0/restartPolicy", json!("Never")),
            ("/spec/containers/0/restartPolicyRules", json!([rule])),
        ])
    };
    one(
        ruled(json!({"action": "Reboot", "exitCodes": {"operator": "In"}})),
        &format!(
            "{path}.restartPolicyRules[0].action: Unsupported value: \"Reboot\": supported values: \"Restart\", \"RestartAllContainers\""
        ),
    );
    one(
        ruled(json!({"action": "Restart"})),
        &format!("{path}.restartPolicyRules[0].exitCodes: Required value: must be specified"),
    );
    let codes = json!({"operator": "In", "values": vec![1; 256]});
    one(
        ruled(json!({"action": "Restart", "exitCodes": codes})),
        &format!(
            "{path}.restartPolicyRules[0].exitCodes.values: Too many: 256: must have at most 255 items"
        ),
    );
    let resize = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    one(
        faults(&[
            ("/spec/restartPolicy", json!("Never")),
            ("/spec/containers/0/resizePolicy", resize),
        ]),
        &format!(
            "{path}.resizePolicy: Invalid value: \"RestartContainer\": must be 'NotRequired' when pod `restartPolicy` is 'Never'"
        ),
    );
}

#[test]
fn signals_that_end_containers() {
    let path = "spec.containers[0].lifecycle.stopSignal";
    one(
        container("lifecycle", json!({"stopSignal": "SIGUSR1"})),
        &format!("{path}: Forbidden: may not be set for containers with empty `spec.os.name`"),
    );
    let on_linux = |signal: &str| {
        let lifecycle = json!({"stopSignal": signal});
        faults(&[
            ("/spec/os", json!({"name": "linux"})),
            ("/spec/containers/0/lifecycle", lifecycle),
        ])
    };
    assert_eq!(on_linux("SIGRTMIN+3"), Vec::<String>::new());
    one(
        on_linux("USR1"),
        &format!("{path}: Invalid value: \"USR1\": must be the name of a signal, such as SIGTERM"),
    );
}
