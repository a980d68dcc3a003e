//! Limits of ephemeral storage.

use super::*;

pub(super) async fn run(node: Result<Node>) -> Result<()> {
    let flags = flags(&[
        "--eviction-hard=nodefs.available<1Mi",
        "--volume-stats-agg-period=1s",
    ]);
    let site = Site::new(node, &flags).await?;
    let limit = |amount: &'static str| {
        move |spec: &mut Value| {
            spec["containers"][0]["resources"] = json!({"limits": {"ephemeral-storage": amount}});
        }
    };
    site.create("within-limit", &fill(4), limit("20Mi")).await?;
    let size_limit = |spec: &mut Value| {
        spec["volumes"][0]["emptyDir"] = json!({"sizeLimit": "10Mi"});
    };
    site.create("volume", &fill(20), size_limit).await?;
    let layer = "dd if=/dev/zero of=/file bs=1M count=20";
    let two_limits = |spec: &mut Value| {
        limit("10Mi")(spec);
        let mut other = spec["containers"][0].clone();
        other["name"] = json!("other");
        other["command"] = json!(["sleep", "1000"]);
        other["resources"] = json!({"limits": {"ephemeral-storage": "100Mi"}});
        spec["containers"].as_array_mut().unwrap().push(other);
    };
    site.create("layer", layer, two_limits).await?;
    site.create("whole", &fill(20), limit("10Mi")).await?;
    for (name, expected) in [
        (
            "volume",
            "Usage of EmptyDir volume \"data\" exceeds the limit \"10Mi\". ",
        ),
        (
            "layer",
            "Container c exceeded its local ephemeral storage limit \"10Mi\". ",
        ),
        (
            "whole",
            "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ",
        ),
    ] {
        let message = site.evicted(name).await?;
        ensure!(message == expected, "{name}: {message:?}");
        // It is the pod's own fault.
        ensure!(!site.is_disrupted(name).await?, "{name} is a disruption");
    }
    site.runs_on("within-limit").await?;
    site.condition("DiskPressure", "False").await
}
