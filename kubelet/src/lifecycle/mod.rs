//! Admission of pods: whether this kubelet runs them at all, and for how long.

mod app_armor;
pub mod deadline;
mod unsupported;

use k8s_openapi::api::core::v1::Pod;

pub use self::unsupported::unsupported;
use crate::{config::options::Options, sysctl::Allowlist};

/// Why a pod is not run: reason and message of its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// One word.
    pub reason: &'static str,
    /// Details for people.
    pub message: String,
}

/// What decides whether pods are run.
#[derive(Clone, Debug)]
pub struct Admission {
    max_pods: u32,
    sysctls: Allowlist,
    has_app_armor: bool,
}

impl Admission {
    /// The rules of `options` on this host. Blocks on the host's `/sys`, for a moment.
    pub fn new(options: &Options) -> Self {
        Self {
            max_pods: options.max_pods,
            sysctls: Allowlist::new(&options.allowed_unsafe_sysctls),
            has_app_armor: app_armor::is_enabled(),
        }
    }

    /// Whether the pod may run beside `active` others.
    ///
    /// # Errors
    /// It may not.
    pub fn admit(&self, pod: &Pod, active: usize) -> Result<(), Rejection> {
        let fields = unsupported(pod);
        if !fields.is_empty() {
            return Err(Rejection {
                reason: "UnsupportedPodSpec",
                message: format!("this kubelet does not support: {}", fields.join("; ")),
            });
        }
        self.check_sysctls(pod)?;
        let max_pods = self.max_pods;
        if active >= usize::try_from(max_pods).unwrap_or(usize::MAX) {
            return Err(Rejection {
                reason: "OutOfpods",
                message: format!(
                    "Node didn't have enough resource: pods, requested: 1, used: {active}, \
                     capacity: {max_pods}"
                ),
            });
        }
        if !self.has_app_armor && app_armor::is_required(pod) {
            return Err(Rejection {
                reason: "AppArmor",
                message: "Cannot enforce AppArmor: AppArmor is not enabled on the host".to_owned(),
            });
        }
        Ok(())
    }

    fn check_sysctls(&self, pod: &Pod) -> Result<(), Rejection> {
        let Some(spec) = &pod.spec else {
            return Ok(());
        };
        let host_network = spec.host_network == Some(true);
        let host_ipc = spec.host_ipc == Some(true);
        let context = spec.security_context.as_ref();
        let sysctls = context.and_then(|context| context.sysctls.as_ref());
        for sysctl in sysctls.into_iter().flatten() {
            self.sysctls
                .check(&sysctl.name, host_network, host_ipc)
                .map_err(|error| Rejection {
                    reason: "SysctlForbidden",
                    message: error.to_string(),
                })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_node_takes_no_more() {
        let admission = Admission::new(&Options {
            max_pods: 2,
            ..Options::default()
        });
        assert_eq!(admission.admit(&Pod::default(), 1), Ok(()));
        let rejection = admission.admit(&Pod::default(), 2).unwrap_err();
        assert_eq!(rejection.reason, "OutOfpods");
    }
}
