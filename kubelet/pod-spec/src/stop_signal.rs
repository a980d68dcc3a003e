//! Stop signals of containers by name.

use cri_proto::runtime::v1::Signal;

/// The signal with this name in the API, such as `SIGTERM` or `SIGRTMIN+3`; `None` for an unknown
/// name.
pub fn parse(name: &str) -> Option<Signal> {
    let rest = name.strip_prefix("SIG")?;
    let name = rest.replace('+', "PLUS").replace('-', "MINUS");
    Signal::from_str_name(&format!("SIGNAL_SIG{name}"))
}
