//! The reports of pods to the status manager.

use std::pin::pin;

use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::pod_status::PodStatus;
use kubelet_pod_spec::{identity::PodUid, phase::Phase};
use kubelet_runtime::pod_state::PodState;
use tokio::select;

use super::Syncer;
use crate::{
    pod::rejection::Rejection,
    pod_worker::PodSyncer as _,
    status::{StatusInputs, Verdict},
};

impl Syncer {
    /// Reports what follows from the state of the pod in the runtime. Returns its phase.
    pub(super) fn report(
        &self,
        pod: &Pod,
        status: &PodStatus,
        state: &PodState,
        verdict: Option<&Verdict>,
        held_back: Option<&Rejection>,
    ) -> Phase {
        let before = self.statuses.get(&PodUid::of(pod));
        let phase = self.statuses.update(
            pod,
            StatusInputs {
                status,
                sandbox_made: state.has_made_sandbox(),
                waiting: &state.waiting(),
                runtime_name: self.runtime.name(),
                ending: false,
                verdict,
                held_back,
                resize: self.runtime.resize_report(&PodUid::of(pod)).as_ref(),
            },
        );
        let pulling = state.pulls.lock().time_spent();
        self.statuses.latencies().pulled(&PodUid::of(pod), pulling);
        let before = before.and_then(|before| before.phase.clone());
        // The start duration of a pod that already ran under an earlier kubelet is unknown.
        if before.is_some()
            && Phase::parse(before.as_deref()) == Phase::Pending
            && phase == Phase::Running
        {
            self.starts.observe(state.seen().elapsed());
        }
        phase
    }

    /// Completes a sync. Reports that the pod is ready to start containers before their images are
    /// pulled, as that may take long.
    pub(super) async fn sync_reported<T>(
        &self,
        pod: &Pod,
        status: &PodStatus,
        state: &PodState,
        sync: impl Future<Output = T>,
    ) -> T {
        let mut sync = pin!(sync);
        select! {
            biased;
            synced = &mut sync => return synced,
            () = state.sandbox_made() => {}
        }
        self.report(pod, status, state, None, None);
        sync.await
    }

    /// Reports a pod that waits before it starts. After a reboot, its source has it as it ran before.
    pub(crate) async fn report_waiting(&self, pod: &Pod) {
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        if Phase::parse(phase) == Phase::Pending {
            return;
        }
        // Without it, the report of the pod's worker follows.
        if let Ok(status) = self.status(&PodUid::of(pod), None).await {
            let state = PodState::new(self.restart_delays);
            self.report(pod, &status, &state, None, None);
        }
    }

    /// The pod's IP addresses in its status.
    pub(super) fn reported_ips(&self, uid: &PodUid) -> Vec<String> {
        let status = self.statuses.get(uid);
        let ips = status
            .iter()
            .flat_map(|status| status.pod_ips.iter().flatten());
        ips.map(|ip| ip.ip.clone()).collect()
    }
}
