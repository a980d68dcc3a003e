//! What a driver responds to a call.

use kubelet_host::bounded_program::ProgramOutput;
use kubelet_pod_spec::json;
use serde::Deserialize;

/// Limit of a message in characters: an event's message has at most 1024.
const MAX_MESSAGE: usize = 800;

/// The response to a call that succeeded.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Response {
    status: Option<String>,
    message: Option<String>,
    device: Option<String>,
    #[serde(alias = "Capabilities")]
    capabilities: Option<CapabilitiesJson>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CapabilitiesJson {
    attach: Option<bool>,
    #[serde(rename = "selinuxRelabel")]
    selinux_relabel: Option<bool>,
    supports_metrics: Option<bool>,
    fs_group: Option<bool>,
    #[serde(rename = "requiresFSResize")]
    requires_fs_resize: Option<bool>,
}

/// What a driver can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// Volumes are attached by the controller, and mounted once for all of their pods.
    pub(super) attach: bool,
    /// The runtime may relabel the files.
    pub(super) selinux_relabel: bool,
    /// The file system at the volume's directory shows how full the volume is.
    pub(super) supports_metrics: bool,
    /// The kubelet may change the group of the files.
    pub(super) fs_group: bool,
    /// File systems are expanded on the node.
    pub(super) requires_fs_resize: bool,
}

impl Default for Capabilities {
    /// Those of a driver that mentions none, as upstream.
    fn default() -> Self {
        Self {
            attach: true,
            selinux_relabel: true,
            supports_metrics: false,
            fs_group: true,
            requires_fs_resize: true,
        }
    }
}

impl Response {
    /// The response in a driver's output; `None` if it does not support the call. As upstream, it
    /// may be in either stream: the usual scripts print failures to standard error.
    ///
    /// # Errors
    /// The call failed, or the output is no response.
    pub(super) fn of(output: &ProgramOutput) -> Result<Option<Self>, String> {
        let printed = match output.stdout.trim_ascii() {
            b"" => output.stderr.trim_ascii(),
            printed => printed,
        };
        let response = json::from_slice::<Self>(printed).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            match output.status.success() {
                true => format!("its output is no JSON response (line {line}, column {column})"),
                false => format!("{}, without a JSON response", output.status),
            }
        })?;
        match response.status.as_deref().unwrap_or_default() {
            "Not supported" => Ok(None),
            "Success" if output.status.success() => Ok(Some(response)),
            "Success" => Err(format!("{}, but its response is Success", output.status)),
            status => {
                let message = response.message.as_deref().unwrap_or_default();
                Err(format!("status {:?}: {}", shown(status), shown(message)))
            }
        }
    }

    /// The path of a device.
    pub(super) fn device(&self) -> &str {
        self.device.as_deref().unwrap_or_default()
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        let default = Capabilities::default();
        let Some(given) = &self.capabilities else {
            return default;
        };
        Capabilities {
            attach: given.attach.unwrap_or(default.attach),
            selinux_relabel: given.selinux_relabel.unwrap_or(default.selinux_relabel),
            supports_metrics: given.supports_metrics.unwrap_or(default.supports_metrics),
            fs_group: given.fs_group.unwrap_or(default.fs_group),
            requires_fs_resize: given
                .requires_fs_resize
                .unwrap_or(default.requires_fs_resize),
        }
    }
}

/// A driver's text on one line, limited in length.
fn shown(text: &str) -> String {
    let visible = text.trim().chars().take(MAX_MESSAGE);
    visible
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

    use super::*;

    fn response(code: i32, stdout: &str, stderr: &str) -> Result<Option<Response>, String> {
        Response::of(&ProgramOutput {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        })
    }

    #[test]
    fn capabilities_that_are_not_mentioned_are_upstreams_defaults() {
        let capabilities = |json: &str| {
            let json = format!(r#"{{"status": "Success"{json}}}"#);
            response(0, &json, "").unwrap().unwrap().capabilities()
        };
        let default = Capabilities::default();
        assert_eq!(capabilities(""), default);
        assert_eq!(capabilities(r#", "capabilities": null"#), default);
        let given = capabilities(
            r#", "capabilities": {"attach": false, "supportsMetrics": true, "fsGroup": null}"#,
        );
        let expected = Capabilities {
            attach: false,
            supports_metrics: true,
            ..default
        };
        assert_eq!(given, expected);
        let given = capabilities(
            r#", "capabilities": {"selinuxRelabel": false, "fsGroup": false, "requiresFSResize": false}"#,
        );
        let expected = Capabilities {
            selinux_relabel: false,
            fs_group: false,
            requires_fs_resize: false,
            ..default
        };
        assert_eq!(given, expected);
    }

    #[test]
    fn a_response_is_in_either_stream() {
        let success = r#" {"status": "Success", "device": "/dev/x"}"#;
        let found = response(0, success, "noise").unwrap().unwrap();
        assert_eq!(found.device(), "/dev/x");
        let failure = r#"{"status": "Failure", "message": "no\n such share"}"#;
        let error = response(1, "\n", failure).unwrap_err();
        assert_eq!(error, "status \"Failure\": no  such share");
        assert!(
            response(1, "", r#"{"status": "Not supported"}"#)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn other_output_is_an_error_that_does_not_quote_it() {
        for (code, output, expected) in [
            (
                0,
                "hidden",
                "its output is no JSON response (line 1, column 1)",
            ),
            (0, "", "its output is no JSON response (line 1, column 0)"),
            (
                0,
                "{} {}",
                "its output is no JSON response (line 1, column 4)",
            ),
            (0, "{}", "status \"\": "),
            (0, r#"{"status": "success"}"#, "status \"success\": "),
            (2, "hidden", "exit status: 2, without a JSON response"),
            (
                3,
                r#"{"status": "Success"}"#,
                "exit status: 3, but its response is Success",
            ),
        ] {
            assert_eq!(
                response(code, output, "").unwrap_err(),
                expected,
                "{output}"
            );
        }
        let long = format!(
            r#"{{"status": "Failure", "message": "{}"}}"#,
            "x".repeat(5000)
        );
        let error = response(0, &long, "").unwrap_err();
        assert_eq!(error.len(), "status \"Failure\": ".len() + MAX_MESSAGE);
    }
}
