//! Any labels, and any JSON, as the engine's inspect response for a container: only labels that
//! the shim has set become settings.
#![no_main]

use std::collections::HashMap;

use bollard::models::{ContainerInspectResponse, ContainerSummary};
use dockershim::{
    labels::{self, Author},
    model::{Record, Snapshot},
};
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    own: Vec<(u8, &'a str)>,
    others: Vec<(&'a str, &'a str)>,
    name: &'a str,
    state: u8,
    kind: bool,
    by_image: Option<Vec<&'a str>>,
    json: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let image: Option<Vec<String>> = input
        .by_image
        .as_ref()
        .map(|keys| keys.iter().map(|key| (*key).to_owned()).collect());
    let known = Snapshot::default();
    let other = Author::Other(image.as_deref());
    let inspect: ContainerInspectResponse = match serde_json::from_slice(input.json) {
        Ok(inspect) => inspect,
        Err(_) => match serde_json::from_value(answer(&input)) {
            Ok(inspect) => inspect,
            Err(error) => panic!("{error}"),
        },
    };
    let _ = Record::from_inspect(inspect.clone(), Author::Shim, &known);
    match Record::from_inspect(inspect, other, &known) {
        Some(Record::Container(container)) => {
            assert!(container.unified.is_empty());
            assert!(container.image_mounts.is_empty());
            assert!(!container.cri_log);
        }
        Some(Record::Sandbox(sandbox)) => assert!(sandbox.status.runtime_handler.is_empty()),
        None => {}
    }
    if let Ok(summary) = serde_json::from_slice::<ContainerSummary>(input.json) {
        let _ = Record::from_summary(summary);
    }
});

/// An inspect's answer with the labels of `input`.
fn answer(input: &Input<'_>) -> serde_json::Value {
    let own = input.own.iter().map(|(key, value)| {
        let key = labels::OWN[usize::from(*key) % labels::OWN.len()];
        (key, *value)
    });
    let mut labels: HashMap<&str, &str> = input.others.iter().copied().chain(own).collect();
    let kind = if input.kind {
        labels::TYPE_SANDBOX
    } else {
        labels::TYPE_CONTAINER
    };
    labels.insert(labels::TYPE, kind);
    const STATES: [&str; 7] = [
        "created",
        "running",
        "paused",
        "restarting",
        "removing",
        "exited",
        "dead",
    ];
    serde_json::json!({
        "Id": "0123456789ab",
        "Created": input.others.first().map_or("2026-01-01T00:00:00Z", |(_, time)| time),
        "Name": input.name,
        "Image": "sha256:0123",
        "State": {
            "Status": STATES[usize::from(input.state) % STATES.len()],
            "StartedAt": input.name,
            "FinishedAt": "0001-01-01T00:00:00Z",
            "Pid": i64::from(input.state) - 1,
            "ExitCode": i64::from(input.state),
        },
        "Config": { "Image": input.name, "Labels": labels },
        "HostConfig": {},
    })
}
