//! A volume of the driver with its objects, as the provisioner and the resizer create and change
//! them.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{
    driver::{NAME, NODE_ID},
    site::Site,
};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
/// The driver's topology key.
const TOPOLOGY: &str = "topology.hostpath.csi/node";

const MIB: i64 = 1024 * 1024;
/// The initial size of volumes, and the size after expansion, in MiB.
const SMALL: i64 = 16;
const LARGE: i64 = 32;

/// The volume mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A directory.
    Filesystem,
    /// A block device.
    Block,
}

/// A persistent volume and its claim.
#[derive(Debug)]
pub(crate) struct Volume {
    /// The name of both.
    pub name: String,
    /// Its volume mode.
    pub mode: Mode,
    /// The driver's ID of the volume.
    id: String,
}

impl Volume {
    fn path(&self) -> String {
        format!("{VOLUMES}/{}", self.name)
    }

    fn claim_path(&self) -> String {
        format!("{CLAIMS}/{}", self.name)
    }
}

fn quantity(size: i64) -> Value {
    json!({"storage": format!("{size}Mi")})
}

impl Site {
    /// Creates a volume in the driver, and binds a new claim to it.
    pub(crate) async fn provision(&mut self, name: &str, mode: Mode) -> Result<Volume> {
        let controller = self.driver.controller().await?;
        let made = controller.create(name, SMALL * MIB, mode).await?;
        let volume = Volume {
            name: name.to_owned(),
            mode,
            id: made.volume_id,
        };
        let volume_mode = format!("{mode:?}");
        let here = json!({"key": TOPOLOGY, "operator": "In", "values": [NODE_ID]});
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": quantity(SMALL), "accessModes": ["ReadWriteOnce"],
                "volumeMode": volume_mode, "storageClassName": NAME,
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": "default", "name": name},
                "csi": {"driver": NAME, "volumeHandle": volume.id,
                    "volumeAttributes": made.volume_context},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        });
        self.create(VOLUMES, &object).await?;
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeMode": volume_mode,
                "storageClassName": NAME, "volumeName": name,
                "resources": {"requests": quantity(SMALL)},
            },
        });
        let claim = self.create(CLAIMS, &claim).await?;
        if !self.cluster.control_plane.has_controllers() {
            let uid = &claim["metadata"]["uid"];
            let reference = json!({"spec": {"claimRef": {"uid": uid}}});
            self.patch(&volume.path(), &reference).await?;
            let bound = json!({"status": {"phase": "Bound"}});
            self.patch(&format!("{}/status", volume.path()), &bound)
                .await?;
            let bound = json!({"status": {"phase": "Bound", "capacity": quantity(SMALL)}});
            self.patch(&format!("{}/status", volume.claim_path()), &bound)
                .await?;
        }
        let path = volume.claim_path();
        self.until("the claim is bound", async |site| {
            let claim = site.get(&path).await?;
            let is_bound = claim["status"]["phase"] == "Bound";
            Ok((is_bound && claim["status"]["capacity"] == quantity(SMALL)).then_some(()))
        })
        .await?;
        Ok(volume)
    }

    /// Requests the larger size, and performs the expansion by the driver's controller and the
    /// cluster's part of it. The node's part remains.
    pub(crate) async fn grow(&self, volume: &Volume) -> Result<()> {
        let (path, status) = (volume.claim_path(), volume.claim_path() + "/status");
        let wanted = json!({"spec": {"resources": {"requests": quantity(LARGE)}}});
        self.patch(&path, &wanted).await?;
        let stage = |stage: &str, condition: &str| {
            json!({"status": {
                "allocatedResources": quantity(LARGE),
                "allocatedResourceStatuses": {"storage": stage},
                "conditions": [{"type": condition, "status": "True",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            }})
        };
        let resizing = stage("ControllerResizeInProgress", "Resizing");
        self.patch(&status, &resizing).await?;
        let controller = self.driver.controller().await?;
        let (id, mode) = (&volume.id, volume.mode);
        controller.expand(id, LARGE * MIB, mode).await?;
        let capacity = json!({"spec": {"capacity": quantity(LARGE)}});
        self.patch(&volume.path(), &capacity).await?;
        let pending = stage("NodeResizePending", "FileSystemResizePending");
        self.patch(&status, &pending).await?;
        Ok(())
    }

    /// Waits until the claim's status shows only the new size.
    pub(crate) async fn grown(&mut self, volume: &Volume) -> Result<()> {
        let path = volume.claim_path();
        let claim = self
            .until("the claim has what it asks for", async |site| {
                let claim = site.get(&path).await?;
                let has_all = claim["status"]["capacity"] == quantity(LARGE);
                Ok(has_all.then_some(claim))
            })
            .await?;
        let status = &claim["status"];
        let is_nothing = |value: &Value| match value {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        let stages = &status["allocatedResourceStatuses"];
        let is_over = is_nothing(stages) && is_nothing(&status["conditions"]);
        ensure!(is_over, "{status:#}");
        ensure!(
            status["allocatedResources"] == quantity(LARGE),
            "{status:#}"
        );
        Ok(())
    }

    /// Deletes an unused volume.
    pub(crate) async fn remove(&mut self, volume: &Volume) -> Result<()> {
        let controller = self.driver.controller().await?;
        let deleted = controller.delete(&volume.id).await;
        deleted.with_context(|| format!("{:?}", self.driver.volumes()))?;
        let devices = self.driver.loop_devices();
        ensure!(devices.is_empty(), "loop devices are left: {devices:?}");
        for path in [volume.claim_path(), volume.path()] {
            self.delete(&path).await?;
            self.until("the object is gone", async |site| {
                Ok(site.get(&path).await?.is_null().then_some(()))
            })
            .await?;
        }
        Ok(())
    }
}
