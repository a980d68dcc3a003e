//! Drivers that break the protocol.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::*;

/// The error of a mount by a driver with this script.
async fn error(script: &str) -> String {
    let node = Node::new();
    node.on("mount", script);
    let error = node.error(&node.inline(json!({}))).await;
    let rest = error.strip_prefix("flexVolume driver \"example.com/fake\": mount: ");
    rest.unwrap_or(&error).to_owned()
}

/// Waits for the end of the process with the ID in a file.
async fn is_gone(file: &Path) {
    let pid = fs::read_to_string(file).unwrap();
    let stat = format!("/proc/{}/stat", pid.trim());
    let gone = async {
        // It may not have been waited for yet.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(30), gone).await.unwrap();
}

#[tokio::test]
async fn output_that_is_no_response_is_an_error() {
    for (script, expected) in [
        ("yes", "its output is longer than 65536 bytes"),
        (
            "echo hidden",
            "its output is no JSON response (line 1, column 1)",
        ),
        ("exit 7", "exit status: 7, without a JSON response"),
        (
            r#"echo '{"status": "Success"}'; exit 7"#,
            "exit status: 7, but its response is Success",
        ),
        (
            r#"echo '{"status": "Success", "device": 7}'"#,
            "its output is no JSON response (line 1, column 33)",
        ),
        ("kill -9 $$", "signal: 9 (SIGKILL), without a JSON response"),
    ] {
        assert_eq!(error(script).await, expected, "{script}");
    }
}

#[tokio::test]
async fn endless_messages_delay_no_response() {
    let node = Node::new();
    node.on("mount", &format!("yes | head -c 1000000 >&2; {MOUNT}"));
    node.plugin.set_up(&node.inline(json!({}))).await.unwrap();
}

#[tokio::test]
async fn a_driver_that_hangs_is_killed_at_the_limit() {
    let node = Node::new();
    let (pid, started) = (node.path("pid"), node.path("started"));
    let (file, begun) = (pid.display(), started.display());
    node.on(
        "mount",
        &format!("echo $$ > {file}; touch {begun}; sleep 100000"),
    );
    let request = node.inline(json!({}));
    let waits = async {
        while !started.exists() {
            sleep(Duration::from_millis(5)).await;
        }
        // From here on, time passes as fast as the driver hangs.
        tokio::time::pause();
    };
    let (error, ()) = tokio::join!(node.error(&request), waits);
    tokio::time::resume();
    assert!(
        error.ends_with("mount: it did not end within 600s"),
        "{error}"
    );
    is_gone(&pid).await;
    assert!(!request.dir.exists());
}

#[tokio::test]
async fn a_driver_is_killed_when_the_kubelet_stops() {
    let node = Node::new();
    let pid = node.path("pid");
    let file = pid.display();
    node.on(
        "mount",
        &format!("echo $$ > {file}.new; mv {file}.new {file}; sleep 100000"),
    );
    let request = node.inline(json!({}));
    let mount = node.plugin.set_up(&request);
    let started = async {
        while !pid.exists() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        mounted = mount => panic!("{mounted:?}"),
        () = started => {}
    }
    is_gone(&pid).await;
}

#[tokio::test]
async fn a_driver_that_fails_to_initialise_is_not_called() {
    let node = Node::new();
    node.on(
        "init",
        r#"echo '{"status": "Failure", "message": "no kernel module"}'"#,
    );
    let request = node.inline(json!({}));
    let error = node.error(&request).await;
    assert!(
        error.ends_with("init: status \"Failure\": no kernel module"),
        "{error}"
    );
    node.not_supported("init");
    let error = node.error(&request).await;
    assert!(error.ends_with("init: Not supported"), "{error}");
    assert_eq!(node.calls(), ["init", "init"]);
}

#[tokio::test]
async fn invalid_fields_reach_no_driver() {
    let node = Node::new();
    let request = node.inline(json!({"options": {"kubernetes.io/secret/x": "y"}}));
    let error = node.error(&request).await;
    let field = "volume v: flexVolume.options[kubernetes.io/secret/x]: Invalid value";
    assert!(error.starts_with(field), "{error}");
    for driver in [
        "",
        "../fake",
        "example.com/../../bin/sh",
        "example.com~fake",
    ] {
        let volume = json!({"name": "v", "flexVolume": {"driver": driver}});
        let volume = serde_json::from_value(volume).unwrap();
        let request = node.request_of(VolumeSource::Inline(Box::new(volume)));
        let error = node.plugin.device(&request.spec).await.unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("volume v: flexVolume.driver: "),
            "{error}"
        );
    }
    assert_eq!(node.log(), Vec::<String>::new());
}
