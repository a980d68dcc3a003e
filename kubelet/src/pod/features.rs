//! What feature gates let pods have.

/// The features of pods that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodFeatures {
    /// Resources of pods as wholes (`PodLevelResources`).
    pub pod_resources: bool,
    /// Their resize in place (`InPlacePodLevelResourcesVerticalScaling`).
    pub pod_resize: bool,
}

impl Default for PodFeatures {
    fn default() -> Self {
        Self {
            pod_resources: true,
            pod_resize: true,
        }
    }
}
