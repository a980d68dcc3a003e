//! Metrics of images: requests, checks of credentials, pulls, and runs of credential provider plugins.

use std::{borrow::Cow, sync::Arc, time::Duration};

use kubelet_metrics::{Collector, Counter, DEFAULT_BUCKETS, Exposition, Family, Histogram};

use super::pull_sizes;

/// The metrics of an image manager.
#[derive(Debug)]
pub(super) struct ImageMetrics {
    /// Requests for images, by pull policy and by what was found.
    requests: Family<Counter, 3>,
    /// Checks whether a pod may use an image that is on the node, by result.
    checks: Family<Counter, 1>,
    /// Pull durations by size class of the image.
    pulls: Family<Histogram, 1>,
    plugins: Arc<PluginMetrics>,
}

/// The metrics of credential provider plugins.
#[derive(Debug)]
pub struct PluginMetrics {
    /// Failed runs by plugin.
    errors: Family<Counter, 1>,
    /// Durations of runs by plugin.
    durations: Family<Histogram, 1>,
}

/// Why a pod may use an image that is on the node, or may not without a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckResult {
    /// The policy asks for no credentials.
    PolicyAllows,
    /// The image was pulled with credentials that the pod may use.
    RecordFound,
    /// The pod has to pull the image with its own credentials.
    MustAuthenticate,
    /// The records or the pod's credentials cannot be read.
    Error,
}

impl ImageMetrics {
    pub(super) fn new() -> Self {
        Self {
            requests: Family::counter(
                "kubelet_image_manager_ensure_image_requests_total",
                "[ALPHA] Number of ensure-image requests processed by the kubelet.",
                ["pull_policy", "present_locally", "pull_required"],
            ),
            checks: Family::counter(
                "kubelet_imagemanager_image_mustpull_checks_total",
                "[ALPHA] Counter for how many times kubelet checked whether credentials need to be re-verified to access an image",
                ["result"],
            ),
            pulls: Family::histogram(
                "kubelet_image_pull_duration_seconds",
                "[ALPHA] Duration in seconds to pull an image.",
                ["image_size_in_bytes"],
                pull_sizes::SECONDS,
            ),
            plugins: Arc::new(PluginMetrics::new()),
        }
    }

    /// The metrics of the plugins.
    pub(super) fn plugins(&self) -> &Arc<PluginMetrics> {
        &self.plugins
    }

    /// A request with this pull policy.
    pub(super) fn request(&self, policy: Option<&str>) -> ImageRequest<'_> {
        ImageRequest {
            requests: &self.requests,
            policy: match policy {
                Some("Always") => "always",
                Some("Never") => "never",
                _ => "ifnotpresent",
            },
            is_present: None,
            is_pulled: None,
        }
    }

    /// Counts a check of credentials.
    pub(super) fn checked(&self, result: CheckResult) {
        let result = match result {
            CheckResult::PolicyAllows => "credentialPolicyAllowed",
            CheckResult::RecordFound => "credentialRecordFound",
            CheckResult::MustAuthenticate => "mustAuthenticate",
            CheckResult::Error => "error",
        };
        self.checks.of([result]).increment();
    }

    /// Records a pull of an image of this size in bytes.
    pub(super) fn pulled(&self, size: u64, took: Duration) {
        let class = pull_sizes::class(size);
        self.pulls.of([class]).observe_duration(took);
    }
}

impl Collector for ImageMetrics {
    fn collect(&self, page: &mut Exposition) {
        self.requests.collect(page);
        self.checks.collect(page);
        self.pulls.collect(page);
        self.plugins.collect(page);
    }
}

impl Collector for PluginMetrics {
    fn collect(&self, page: &mut Exposition) {
        self.errors.collect(page);
        self.durations.collect(page);
    }
}

impl PluginMetrics {
    pub(super) fn new() -> Self {
        Self {
            errors: Family::counter(
                "kubelet_credential_provider_plugin_errors_total",
                "[ALPHA] Number of errors from credential provider plugin",
                ["plugin_name"],
            ),
            durations: Family::histogram(
                "kubelet_credential_provider_plugin_duration",
                "[ALPHA] Duration of execution in seconds for credential provider plugin",
                ["plugin_name"],
                DEFAULT_BUCKETS,
            ),
        }
    }

    /// Records a run of the plugin with this name.
    pub(super) fn ran(&self, plugin: &str, took: Duration, has_failed: bool) {
        let plugin = || [Cow::Owned(plugin.to_owned())];
        self.durations.with(plugin()).observe_duration(took);
        if has_failed {
            self.errors.with(plugin()).increment();
        }
    }
}

/// Counts a request for an image when dropped, even if it was cancelled.
pub(super) struct ImageRequest<'a> {
    requests: &'a Family<Counter, 3>,
    policy: &'static str,
    /// Whether the image is on the node, if that is known.
    pub(super) is_present: Option<bool>,
    /// Whether the image has to be pulled, if that is known.
    pub(super) is_pulled: Option<bool>,
}

impl Drop for ImageRequest<'_> {
    fn drop(&mut self) {
        let text = |known| match known {
            None => "unknown",
            Some(false) => "false",
            Some(true) => "true",
        };
        let labels = [self.policy, text(self.is_present), text(self.is_pulled)];
        self.requests.of(labels).increment();
    }
}
