//! Conversion of stop signals between CRI's names and the engine's.

use cri_proto::runtime::v1::Signal;

const CRI_PREFIX: &str = "SIGNAL_";

/// The engine's name; `None` keeps the image's signal.
pub fn to_docker(signal: Signal) -> Option<String> {
    let name = signal.as_str_name().strip_prefix(CRI_PREFIX)?;
    (signal != Signal::RuntimeDefault).then(|| name.replace("PLUS", "+").replace("MINUS", "-"))
}

/// CRI's name for the engine's signal; without one, the engine sends SIGTERM.
pub fn from_docker(name: Option<&str>) -> Signal {
    let name = match name {
        None | Some("") => return Signal::Sigterm,
        Some(name) => name.to_ascii_uppercase(),
    };
    let full = match name.strip_prefix("SIG") {
        Some(rest) => rest,
        None => &name,
    };
    let cri = full.replace('+', "PLUS").replace('-', "MINUS");
    Signal::from_str_name(&format!("{CRI_PREFIX}SIG{cri}"))
        .or_else(|| by_number(full.parse().ok()?))
        .unwrap_or(Signal::RuntimeDefault)
}

/// Images may specify a signal by number.
fn by_number(number: u8) -> Option<Signal> {
    let signal = match number {
        1 => Signal::Sighup,
        2 => Signal::Sigint,
        3 => Signal::Sigquit,
        6 => Signal::Sigabrt,
        9 => Signal::Sigkill,
        10 => Signal::Sigusr1,
        12 => Signal::Sigusr2,
        15 => Signal::Sigterm,
        28 => Signal::Sigwinch,
        _ => return None,
    };
    Some(signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_survives_the_engine() {
        let all = (1..=65).map(|n| Signal::try_from(n).unwrap());
        for signal in all {
            let name = to_docker(signal).unwrap();
            assert_eq!(from_docker(Some(&name)), signal, "{name}");
        }
        assert_eq!(to_docker(Signal::RuntimeDefault), None);
        assert_eq!(
            to_docker(Signal::Sigrtminplus1).as_deref(),
            Some("SIGRTMIN+1")
        );
    }

    #[test]
    fn what_images_say() {
        assert_eq!(from_docker(None), Signal::Sigterm);
        assert_eq!(from_docker(Some("quit")), Signal::Sigquit);
        assert_eq!(from_docker(Some("3")), Signal::Sigquit);
        assert_eq!(from_docker(Some("?")), Signal::RuntimeDefault);
    }
}
