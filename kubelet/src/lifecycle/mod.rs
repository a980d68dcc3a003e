//! Admission of pods: whether this kubelet runs them at all, and for how long.

pub mod deadline;
mod unsupported;

use k8s_openapi::api::core::v1::Pod;

pub use self::unsupported::unsupported;

/// Why a pod is not run: reason and message of its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// One word.
    pub reason: &'static str,
    /// Details for people.
    pub message: String,
}

/// Whether the pod may run beside `active` others on a node for `max_pods`.
///
/// # Errors
/// It may not.
pub fn admit(pod: &Pod, active: usize, max_pods: u32) -> Result<(), Rejection> {
    let fields = unsupported(pod);
    if !fields.is_empty() {
        return Err(Rejection {
            reason: "UnsupportedPodSpec",
            message: format!("this kubelet does not support: {}", fields.join("; ")),
        });
    }
    if active >= usize::try_from(max_pods).unwrap_or(usize::MAX) {
        return Err(Rejection {
            reason: "OutOfpods",
            message: format!(
                "Node didn't have enough resource: pods, requested: 1, used: {active}, \
                 capacity: {max_pods}"
            ),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_node_takes_no_more() {
        assert_eq!(admit(&Pod::default(), 1, 2), Ok(()));
        let rejection = admit(&Pod::default(), 2, 2).unwrap_err();
        assert_eq!(rejection.reason, "OutOfpods");
    }
}
