//! Metrics of calls to the runtime: count, duration and errors.

use std::{
    borrow::Cow,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use cri_streaming::bound::Bound;
use kubelet_metrics::{Collector, Counter, DEFAULT_BUCKETS, Exposition, Family, Histogram};
use tokio::time::Instant;

use super::{CriError, exec_output::KEPT};

/// The version of Kubernetes that needs a runtime which tells its cgroup driver.
const UNSUPPORTED_FROM: &str = "1.37.0";

/// From 5 ms, each 2.5 times the previous one.
const BUCKETS: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];

/// Metrics of a client, shared by its clones.
#[derive(Debug)]
pub struct RuntimeMetrics {
    operations: Family<Counter, 1>,
    durations: Family<Histogram, 1>,
    errors: Family<Counter, 1>,
    sandbox_durations: Family<Histogram, 1>,
    sandbox_errors: Family<Counter, 1>,
    exec_output: Arc<Bound>,
    is_outdated: AtomicBool,
}

impl Default for RuntimeMetrics {
    fn default() -> Self {
        let operation = ["operation_type"];
        let handler = ["runtime_handler"];
        Self {
            operations: Family::counter(
                "kubelet_runtime_operations_total",
                "[ALPHA] Cumulative number of runtime operations by operation type.",
                operation,
            ),
            durations: Family::histogram(
                "kubelet_runtime_operations_duration_seconds",
                "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.",
                operation,
                BUCKETS,
            ),
            errors: Family::counter(
                "kubelet_runtime_operations_errors_total",
                "[ALPHA] Cumulative number of runtime operation errors by operation type.",
                operation,
            ),
            sandbox_durations: Family::histogram(
                "kubelet_run_podsandbox_duration_seconds",
                "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
                handler,
                DEFAULT_BUCKETS,
            ),
            sandbox_errors: Family::counter(
                "kubelet_run_podsandbox_errors_total",
                "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
                handler,
            ),
            exec_output: Arc::new(Bound::new("runtime", "exec_output_bytes", KEPT)),
            is_outdated: AtomicBool::new(false),
        }
    }
}

impl RuntimeMetrics {
    /// The limit on kept command output; it counts how often it is reached.
    pub(super) fn exec_output(&self) -> Arc<Bound> {
        Arc::clone(&self.exec_output)
    }

    /// The runtime does not tell its cgroup driver.
    pub(super) fn note_outdated(&self) {
        self.is_outdated.store(true, Ordering::Relaxed);
    }

    /// Counts a finished call. A cancelled call is not counted.
    pub(super) async fn measure<T>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T, CriError>>,
    ) -> Result<T, CriError> {
        let begun = Instant::now();
        let result = call.await;
        let took = begun.elapsed();
        let operation = operation(verb);
        self.operations.of([operation]).increment();
        self.durations.of([operation]).observe_duration(took);
        if result.is_err() {
            self.errors.of([operation]).increment();
        }
        result
    }

    /// Counts the creation of a sandbox by a runtime handler.
    pub(super) async fn sandbox<T>(
        &self,
        handler: &str,
        call: impl Future<Output = Result<T, CriError>>,
    ) -> Result<T, CriError> {
        let begun = Instant::now();
        let result = call.await;
        let handler = || [Cow::Owned(handler.to_owned())];
        let durations = self.sandbox_durations.with(handler());
        durations.observe_duration(begun.elapsed());
        if result.is_err() {
            self.sandbox_errors.with(handler()).increment();
        }
        result
    }
}

impl Collector for RuntimeMetrics {
    fn collect(&self, page: &mut Exposition) {
        self.operations.collect(page);
        self.durations.collect(page);
        self.errors.collect(page);
        self.sandbox_durations.collect(page);
        self.sandbox_errors.collect(page);
        let name = "kubelet_runtime_exec_outputs_cut_total";
        let help = "Number of probe and hook commands whose output was truncated.";
        page.family(name, "counter", help);
        page.sample(name, &[], self.exec_output.reached(), None);
        if self.is_outdated.load(Ordering::Relaxed) {
            let help = "[ALPHA] the Kubernetes version that the currently running CRI implementation will lose support on if not upgraded.";
            page.family("kubelet_cri_losing_support", "gauge", help);
            let version = [("version", UNSUPPORTED_FROM)];
            page.sample("kubelet_cri_losing_support", &version, 1, None);
        }
    }
}

/// The name of a CRI verb in upstream's metrics.
fn operation(verb: &'static str) -> &'static str {
    match verb {
        "Version" => "version",
        "Status" => "status",
        "UpdateRuntimeConfig" => "update_runtime_config",
        "ListPodSandbox" => "list_podsandbox",
        "PodSandboxStatus" => "podsandbox_status",
        "RunPodSandbox" => "run_podsandbox",
        "StopPodSandbox" => "stop_podsandbox",
        "RemovePodSandbox" => "remove_podsandbox",
        "ListPodSandboxStats" => "list_podsandbox_stats",
        "ListPodSandboxMetrics" => "list_podsandbox_metrics",
        "ListMetricDescriptors" => "list_metric_descriptors",
        "UpdatePodSandboxResources" => "update_podsandbox_resources",
        "ListContainers" => "list_containers",
        "ContainerStatus" => "container_status",
        "ContainerStats" => "container_stats",
        "CreateContainer" => "create_container",
        "StartContainer" => "start_container",
        "StopContainer" => "stop_container",
        "RemoveContainer" => "remove_container",
        "UpdateContainerResources" => "update_container",
        "ReopenContainerLog" => "reopen_container_log",
        "CheckpointContainer" => "checkpoint_container",
        "ExecSync" => "exec_sync",
        "Exec" => "exec",
        "Attach" => "attach",
        "PortForward" => "port_forward",
        "GetContainerEvents" => "get_container_events",
        "ListImages" => "list_images",
        "ImageStatus" => "image_status",
        "PullImage" => "pull_image",
        "RemoveImage" => "remove_image",
        _ => verb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_with_their_time_and_their_errors() {
        let metrics = RuntimeMetrics::default();
        let slow = async {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            Ok(())
        };
        let slow = metrics.measure("RunPodSandbox", slow);
        metrics.sandbox("runsc", slow).await.unwrap();
        let failing = async {
            Err::<(), _>(CriError::Incomplete {
                verb: "ContainerStatus",
                object: String::new(),
                missing: "status",
            })
        };
        metrics
            .measure("ContainerStatus", failing)
            .await
            .unwrap_err();
        let mut page = Exposition::default();
        metrics.collect(&mut page);
        let text = page.into_text();
        for line in [
            "# TYPE kubelet_runtime_operations_total counter\n",
            "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 1\n",
            "kubelet_runtime_operations_errors_total{operation_type=\"container_status\"} 1\n",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"run_podsandbox\",le=\"0.48828125\"} 0\n",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"run_podsandbox\",le=\"1.220703125\"} 1\n",
            "kubelet_run_podsandbox_duration_seconds_bucket{runtime_handler=\"runsc\",le=\"1\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains(
            "kubelet_runtime_operations_errors_total{operation_type=\"run_podsandbox\"}"
        ));
        assert!(!text.contains("kubelet_run_podsandbox_errors_total"));
    }
}
