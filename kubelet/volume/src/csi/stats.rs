//! Usage and condition of a volume, as its driver reports them.

use std::{path::PathBuf, sync::Arc};

use cri_proto::csi::v1::{
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    node_service_capability::rpc::Type as Capability, volume_usage::Unit,
};
use futures::future::FutureExt as _;
use tracing::debug;

use super::{Csi, DriverStore, client::text, source::Source};
use crate::{
    VolumeError,
    plugin::{MountRequest, PluginFuture},
    spec::VolumeMode,
    usage::{Amounts, DriverUsage, DriverVolume, UsageSource, VolumeCondition},
};

/// The limit on the message of a condition, in characters: an event's message has at most 1024.
const MAX_MESSAGE: usize = 900;

/// A mounted volume.
#[derive(Debug)]
struct CsiVolume {
    drivers: Arc<DriverStore>,
    driver: String,
    handle: String,
    path: PathBuf,
}

impl Csi {
    /// How the volume of a request is measured.
    pub(super) fn usage_source(&self, request: &MountRequest) -> UsageSource {
        let Ok(source) = Source::of(request) else {
            return UsageSource::None;
        };
        let path = match source.mode {
            VolumeMode::Filesystem => Self::published_path(request),
            VolumeMode::Block => self.block_targets(request).1,
        };
        UsageSource::Driver(Arc::new(CsiVolume {
            drivers: Arc::clone(&self.drivers),
            driver: source.driver,
            handle: source.handle,
            path,
        }))
    }
}

impl DriverVolume for CsiVolume {
    fn driver(&self) -> &str {
        &self.driver
    }

    fn usage(&self) -> PluginFuture<'_, Option<DriverUsage>> {
        async move {
            let client = self.drivers.client(&self.driver)?;
            let capabilities = client.capabilities().await?;
            if !capabilities.has(Capability::GetVolumeStats) {
                return Ok(None);
            }
            let request = NodeGetVolumeStatsRequest {
                volume_id: self.handle.clone(),
                volume_path: text(&self.path),
                staging_target_path: String::new(),
            };
            let answer = client.stats(request).await?;
            let is_monitored = capabilities.has(Capability::VolumeCondition);
            usage(answer, is_monitored).map(Some)
        }
        .boxed()
    }
}

fn usage(
    answer: NodeGetVolumeStatsResponse,
    is_monitored: bool,
) -> Result<DriverUsage, VolumeError> {
    if !is_monitored && answer.usage.is_empty() {
        let why = "failed to get usage from response. usage is nil";
        return Err(VolumeError::Other(why.into()));
    }
    let mut usage = DriverUsage::default();
    for item in answer.usage {
        let amounts = Amounts {
            total: amount(item.total),
            available: amount(item.available),
            used: amount(item.used),
        };
        match item.unit() {
            Unit::Bytes => usage.bytes = amounts,
            Unit::Inodes => usage.inodes = amounts,
            Unit::Unknown => debug!(unit = item.unit, "unknown unit in a volume's usage"),
        }
    }
    // A driver that monitors the volume and reports no condition reports a normal one.
    usage.condition = is_monitored.then(|| {
        let condition = answer.volume_condition.unwrap_or_default();
        let mut message = condition.message;
        if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
            message.truncate(end);
        }
        VolumeCondition {
            is_abnormal: condition.abnormal,
            message,
        }
    });
    Ok(usage)
}

fn amount(reported: i64) -> u64 {
    u64::try_from(reported).unwrap_or_default()
}

#[cfg(test)]
mod tests;
