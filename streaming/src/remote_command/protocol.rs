//! The versions of the remote command protocol.

use crate::status::StatusFormat;

/// The subprotocols over SPDY, newest first.
pub(crate) const SPDY_PROTOCOLS: [&str; 4] = [
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];

/// A version from 1 to 5. Version 2 fixed half-close, 3 added resizing, 4 exit codes as JSON, and 5
/// the close signal for WebSocket (SPDY has one itself).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u8);

/// A WebSocket subprotocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subprotocol {
    pub(crate) version: Version,
    /// Whether messages are text: the channel as a digit, followed by the data in base64.
    pub(crate) base64: bool,
}

impl Version {
    pub(crate) const V1: Self = Self(1);

    /// Returns the version of a SPDY subprotocol; 1 for unknown names.
    pub(crate) fn of_spdy(name: &str) -> Self {
        match name {
            "v4.channel.k8s.io" => Self(4),
            "v3.channel.k8s.io" => Self(3),
            "v2.channel.k8s.io" => Self(2),
            _ => Self::V1,
        }
    }

    pub(crate) fn resizes(self) -> bool {
        self >= Self(3)
    }

    pub(crate) fn status_format(self) -> StatusFormat {
        if self >= Self(4) {
            StatusFormat::Json
        } else {
            StatusFormat::Text
        }
    }

    pub(crate) fn has_close_signal(self) -> bool {
        self >= Self(5)
    }
}

impl Subprotocol {
    /// Parses the name of a WebSocket subprotocol; "" is version 1.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (version, rest) = match name.split_once('.') {
            Some(("v2", rest)) => (2, rest),
            Some(("v3", rest)) => (3, rest),
            Some(("v4", rest)) => (4, rest),
            Some(("v5", rest)) => (5, rest),
            _ => (1, name),
        };
        let base64 = match rest {
            "channel.k8s.io" => false,
            "base64.channel.k8s.io" => true,
            "" if name.is_empty() => false,
            _ => return None,
        };
        Some(Self {
            version: Version(version),
            base64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let of = |name| Subprotocol::parse(name).map(|it| (it.version.0, it.base64));
        assert_eq!(of(""), Some((1, false)));
        assert_eq!(of("channel.k8s.io"), Some((1, false)));
        assert_eq!(of("base64.channel.k8s.io"), Some((1, true)));
        assert_eq!(of("v4.channel.k8s.io"), Some((4, false)));
        assert_eq!(of("v4.base64.channel.k8s.io"), Some((4, true)));
        assert_eq!(of("v5.channel.k8s.io"), Some((5, false)));
        assert_eq!(of("v6.channel.k8s.io"), None);
        assert_eq!(of("v5."), None);
        assert_eq!(of("portforward.k8s.io"), None);
    }
}
