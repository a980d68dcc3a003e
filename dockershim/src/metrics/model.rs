//! Metrics read from the shim's state at every scrape.

use std::{collections::BTreeMap, fmt, sync::Arc};

use cri_proto::runtime::v1::{ContainerState, PodSandboxState};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

use crate::{
    cgroup_settings::CgroupSettings,
    engine::{ConnectionState, Engine},
    images::Images,
    logs::{Logs, Loss},
    model::Model,
};

/// The size of the model, the connection to the engine, and the progress of logs and events.
#[derive(Debug)]
pub struct ModelMetrics {
    engine: Arc<Engine>,
    model: Arc<Model>,
    images: Arc<Images>,
    logs: Arc<Logs>,
    cgroup_settings: Arc<CgroupSettings>,
}

impl ModelMetrics {
    /// Creates a collector for these parts.
    pub fn new(
        engine: Arc<Engine>,
        model: Arc<Model>,
        images: Arc<Images>,
        logs: Arc<Logs>,
        cgroup_settings: Arc<CgroupSettings>,
    ) -> Self {
        Self {
            engine,
            model,
            images,
            logs,
            cgroup_settings,
        }
    }
}

impl Collector for ModelMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let snapshot = self.model.snapshot();
        let mut sandboxes = BTreeMap::from([("ready", 0), ("not_ready", 0)]);
        for sandbox in snapshot.sandboxes() {
            *sandboxes
                .entry(sandbox_state(sandbox.status.state()))
                .or_default() += 1;
        }
        by_state(
            &mut encoder,
            "sandboxes",
            "Pod sandboxes, by state.",
            sandboxes,
        )?;

        let mut containers = BTreeMap::from([("created", 0), ("running", 0), ("exited", 0)]);
        for container in snapshot.containers() {
            let state = container_state(container.status.state());
            *containers.entry(state).or_default() += 1;
        }
        by_state(
            &mut encoder,
            "containers",
            "Pod containers, by state.",
            containers,
        )?;

        let images = self.images.snapshot().iter().count();
        gauge(
            &mut encoder,
            "images",
            "Images stored in the engine.",
            images,
        )?;

        let connected = matches!(&*self.engine.state(), ConnectionState::Connected(_));
        let help = "Whether the Docker engine answers: 1 or 0.";
        gauge(
            &mut encoder,
            "engine_connected",
            help,
            usize::from(connected),
        )?;

        let help = "Bytes written to containers' logs.";
        counter(&mut encoder, "log_bytes", help, self.logs.bytes())?;
        let help = "Losses of container output that did not reach the logs, by reason.";
        let mut family =
            encoder.encode_descriptor("log_losses", help, None, MetricType::Counter)?;
        for loss in Loss::ALL {
            let lost = ConstCounter::new(self.logs.lost(loss));
            lost.encode(family.encode_family(&[("reason", loss.name())])?)?;
        }
        let help = "Log syncs that were still running when the next one was due.";
        counter(&mut encoder, "log_syncs_late", help, self.logs.late_saves())?;
        let help = "Time from the engine's timestamp of the newest line until it was in its log.";
        let lag =
            encoder.encode_descriptor("log_lag", help, Some(&Unit::Seconds), MetricType::Gauge)?;
        ConstGauge::new(self.logs.lag_seconds()).encode(lag)?;

        let help = "Container event listeners.";
        let listeners = self.model.events.listeners();
        gauge(&mut encoder, "event_listeners", help, listeners)?;
        let help = "Container events that listeners did not read in time.";
        counter(
            &mut encoder,
            "events_missed",
            help,
            self.model.events.missed(),
        )?;
        let help = "Failed writes of a container's cgroup settings.";
        let failed = self.cgroup_settings.failed();
        counter(&mut encoder, "cgroup_settings_failures", help, failed)?;
        differences(&mut encoder, self.model.differences.counts())
    }
}

fn differences<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    counts: [(&'static str, u64); N],
) -> Result<(), fmt::Error> {
    let help = "Containers and sandboxes that differed from the engine's (lost events), by kind.";
    let mut metric =
        encoder.encode_descriptor("model_differences", help, None, MetricType::Counter)?;
    for (kind, count) in counts {
        let labels = [("kind", kind)];
        ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: usize,
) -> Result<(), fmt::Error> {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    constant(value).encode(metric)
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), fmt::Error> {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

fn by_state(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counts: BTreeMap<&'static str, usize>,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (state, count) in counts {
        constant(count).encode(family.encode_family(&[("state", state)])?)?;
    }
    Ok(())
}

fn constant(value: usize) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

fn sandbox_state(state: PodSandboxState) -> &'static str {
    match state {
        PodSandboxState::SandboxReady => "ready",
        PodSandboxState::SandboxNotready => "not_ready",
    }
}

fn container_state(state: ContainerState) -> &'static str {
    match state {
        ContainerState::ContainerCreated => "created",
        ContainerState::ContainerRunning => "running",
        ContainerState::ContainerExited => "exited",
        ContainerState::ContainerUnknown => "unknown",
    }
}
