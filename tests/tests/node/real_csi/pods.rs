//! Pods that use a volume, and record the data that they find in it.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use e2e::{images::BUSYBOX, node::is_ready};
use serde_json::{Value, json};

use super::{
    driver::NAME,
    site::Site,
    volume::{Mode, Volume},
};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A pod's first action.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PodAction<'a> {
    /// Writes this word, then reads it.
    Writes(&'a str),
    /// Reads the word.
    Reads,
}

/// The volume of a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PodVolume<'a> {
    /// A persistent volume.
    Claimed(&'a Volume),
    /// An ephemeral volume.
    Ephemeral,
}

impl PodVolume<'_> {
    fn is_block(self) -> bool {
        matches!(self, Self::Claimed(volume) if volume.mode == Mode::Block)
    }

    fn source(self) -> Value {
        match self {
            Self::Claimed(volume) => json!({
                "name": "data", "persistentVolumeClaim": {"claimName": volume.name},
            }),
            Self::Ephemeral => json!({"name": "data", "csi": {"driver": NAME}}),
        }
    }
}

/// A pod that was created.
#[derive(Debug)]
pub(crate) struct VolumePod {
    /// Its name.
    pub name: String,
    uid: String,
}

impl Site {
    /// Creates a pod.
    pub(crate) async fn start(
        &self,
        name: &str,
        uses: PodVolume<'_>,
        action: PodAction<'_>,
    ) -> Result<VolumePod> {
        let place = if uses.is_block() {
            "/data"
        } else {
            "/data/word"
        };
        let write = match action {
            PodAction::Writes(word) => format!("echo {word} > {place} && busybox sync && "),
            PodAction::Reads => String::new(),
        };
        let script = format!(
            "echo started >> /said/{name}; trap exit TERM; \
             {write}busybox head -n 1 {place} >> /said/{name}; \
             while :; do sleep 0.2; done"
        );
        let mut mounts = vec![json!({"name": "said", "mountPath": "/said"})];
        let mut devices = Vec::new();
        if uses.is_block() {
            devices.push(json!({"name": "data", "devicePath": "/data"}));
        } else {
            mounts.push(json!({"name": "data", "mountPath": "/data"}));
        }
        let container = json!({
            "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
            "volumeMounts": mounts, "volumeDevices": devices,
        });
        let said = json!({"name": "said", "hostPath": {"path": self.said()}});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 5, "securityContext": {"fsGroup": 1000},
                "containers": [container], "volumes": [said, uses.source()],
            },
        });
        let made = self.create(PODS, &pod).await?;
        let uid = made["metadata"]["uid"].as_str().unwrap_or_default();
        Ok(VolumePod {
            name: name.to_owned(),
            uid: uid.to_owned(),
        })
    }

    /// Waits until the pod is running and has found this word; returns its container's ID.
    ///
    /// # Errors
    /// For example, it found another word, or its container was started more than once.
    pub(crate) async fn found(&mut self, user: &VolumePod, word: &str) -> Result<String> {
        let path = format!("{PODS}/{}", user.name);
        let file = self.said().join(&user.name);
        let what = format!("{} runs and has found {word}", user.name);
        let pod = self
            .until(&what, async |site| {
                let pod = site.get(&path).await?;
                let is_over = pod["status"]["phase"] == "Failed";
                ensure!(!pod.is_null() && !is_over, "{} is over: {pod:#}", user.name);
                Ok((is_ready(&pod) && lines(&file) >= 2).then_some(pod))
            })
            .await?;
        let said = fs::read_to_string(&file)?;
        let wanted = format!("started\n{word}\n");
        // The restart count is not checked: a container that was created but not started before the
        // kubelet was killed counts as a restart.
        let container = &pod["status"]["containerStatuses"][0];
        ensure!(
            said == wanted,
            "{} said {said:?}, not {wanted:?}: {container:#}\nkubelet:\n{}",
            user.name,
            self.cluster.node.kubelet_log()
        );
        let id = container["containerID"].as_str().unwrap_or_default();
        Ok(id.to_owned())
    }

    /// Changes a pod so that the kubelet syncs it immediately: claims are only read at a sync,
    /// which otherwise happens about once a minute.
    pub(crate) async fn touch(&mut self, user: &VolumePod) -> Result<()> {
        let now = self.random(u64::MAX).to_string();
        let touched = json!({"metadata": {"annotations": {"touched": now}}});
        let path = format!("{PODS}/{}", user.name);
        self.patch(&path, &touched).await?;
        Ok(())
    }

    /// Starts the deletion of a pod.
    pub(crate) async fn end(&self, user: &VolumePod) -> Result<()> {
        self.delete(&format!("{PODS}/{}", user.name)).await?;
        Ok(())
    }

    /// Waits until nothing is left of a pod.
    pub(crate) async fn gone(&mut self, user: &VolumePod) -> Result<()> {
        let path = format!("{PODS}/{}", user.name);
        let directory = self.cluster.node.path("kubelet/pods").join(&user.uid);
        let what = format!("{} is gone", user.name);
        self.until(&what, async |site| {
            let is_gone = site.get(&path).await?.is_null() && !directory.exists();
            Ok(is_gone.then_some(()))
        })
        .await
    }
}

fn lines(file: &Path) -> usize {
    fs::read_to_string(file).map_or(0, |text| text.lines().count())
}
