//! Sends spans to a collector, by OTLP over gRPC.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithTonicConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter},
};
use tonic::transport::{self, Endpoint};
use tracing::{Subscriber, info, level_filters::LevelFilter, warn};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use crate::TARGET;

/// What the process is called.
const SERVICE: &str = "kubelet";
/// The deadline of an export.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The export of spans (`tracing`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// The collector: a host and port, or a unix socket (`unix:///PATH`).
    pub endpoint: String,
    /// How many of a million traces are exported. Others are, too, if a request says so.
    pub sampling_rate_per_million: u32,
}

/// The collector's endpoint is unusable.
#[derive(Debug, thiserror::Error)]
#[error("tracing.endpoint: invalid value {endpoint:?}: {source}")]
pub struct ExportError {
    endpoint: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// An export of spans.
#[derive(Debug)]
pub struct Export {
    provider: SdkTracerProvider,
}

impl Export {
    /// Prepares the export. Must be called inside a tokio runtime; a thread of its own exports in
    /// batches.
    ///
    /// # Errors
    /// The endpoint is unusable. A collector that does not answer is not an error.
    pub fn new(options: &ExportOptions, host_name: &str) -> Result<Self, ExportError> {
        let unusable = |source: Box<dyn std::error::Error + Send + Sync>| ExportError {
            endpoint: options.endpoint.clone(),
            source,
        };
        let endpoint = endpoint(&options.endpoint).map_err(|error| unusable(error.into()))?;
        let channel = endpoint.timeout(TIME_LIMIT).connect_lazy();
        let exporter = OtlpExporter::builder().with_tonic().with_channel(channel);
        let exporter = exporter.build().map_err(|error| unusable(error.into()))?;
        let ratio = f64::from(options.sampling_rate_per_million) / 1e6;
        let sampler = match options.sampling_rate_per_million {
            0 => Sampler::AlwaysOff,
            _ => Sampler::TraceIdRatioBased(ratio),
        };
        let resource = Resource::builder_empty().with_attributes([
            KeyValue::new("service.name", SERVICE),
            KeyValue::new("host.name", host_name.to_owned()),
        ]);
        let exporter = LoggedExporter {
            exporter,
            endpoint: options.endpoint.clone(),
            fails: AtomicBool::new(false),
        };
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(sampler)))
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        Ok(Self { provider })
    }

    /// What takes the spans from the code.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let layer: OpenTelemetryLayer<S, _> =
            tracing_opentelemetry::layer().with_tracer(self.provider.tracer(SERVICE));
        layer
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target(TARGET, LevelFilter::TRACE))
    }

    /// Exports what is left, which may take as long as `limit`. Blocks.
    pub fn finish(self, limit: Duration) {
        if let Err(error) = self.provider.shutdown_with_timeout(limit) {
            warn!(%error, "the last traces were not exported");
        }
    }
}

/// A host and port has no scheme, unlike a socket.
fn endpoint(text: &str) -> Result<Endpoint, transport::Error> {
    if text.starts_with("unix:") {
        return Endpoint::from_shared(text.to_owned());
    }
    let text = text.strip_prefix("dns://").unwrap_or(text);
    Endpoint::from_shared(format!("http://{}", text.trim_start_matches('/')))
}

/// Logs when the export begins to fail, and when it works again.
#[derive(Debug)]
struct LoggedExporter {
    exporter: OtlpExporter,
    endpoint: String,
    fails: AtomicBool,
}

impl SpanExporter for LoggedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        let endpoint = &self.endpoint;
        match &result {
            Ok(()) if self.fails.swap(false, Ordering::Relaxed) => {
                info!(endpoint, "traces are exported again");
            }
            Ok(()) => {}
            Err(error) if !self.fails.swap(true, Ordering::Relaxed) => warn!(
                endpoint, %error,
                "cannot export traces (tracing.endpoint); they are lost until the collector answers"
            ),
            Err(_) => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
