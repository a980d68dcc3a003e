//! Capabilities as the engine has them.

use bollard::models::HostConfig;
use cri_proto::runtime::v1::Capability;

use crate::Error;

/// Adds and drops; both understand `ALL`, with or without `CAP_`, as the engine does.
///
/// # Errors
/// `Unsupported` for ambient capabilities.
pub fn apply(capabilities: Option<Capability>, host: &mut HostConfig) -> Result<(), Error> {
    let Some(capabilities) = capabilities else {
        return Ok(());
    };
    if !capabilities.add_ambient_capabilities.is_empty() {
        return Err(Error::unsupported(
            "linux.security_context.capabilities.add_ambient_capabilities",
            "the Docker engine has no ambient capabilities",
        ));
    }
    host.cap_add = Some(capabilities.add_capabilities);
    host.cap_drop = Some(capabilities.drop_capabilities);
    Ok(())
}
