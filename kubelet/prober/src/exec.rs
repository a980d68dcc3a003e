//! Exec probes: a command in the container.

use std::{collections::HashMap, time::Duration};

use go_duration::GoDuration;
use k8s_openapi::api::core::v1::EnvVar;
use kubelet_cri_client::{CriClient, CriError, KEPT_OUTPUT};
use kubelet_pod_spec::expansion::{Expander, TooLong};
use tonic::Code;

use super::outcome::Outcome;

/// The command, with the variables whose values the spec itself contains. Variables from other
/// sources are not expanded, as upstream.
///
/// # Errors
/// The command is too long.
pub(super) fn command(command: &[String], env: &[EnvVar]) -> Result<Vec<String>, TooLong> {
    // The last one of a name counts.
    let variables = env.iter();
    let values: HashMap<&str, &str> = variables
        .map(|variable| {
            (
                &*variable.name,
                variable.value.as_deref().unwrap_or_default(),
            )
        })
        .collect();
    let mut expander = Expander::default();
    let words = command.iter();
    words
        .map(|word| expander.expand(word, |name| values.get(name).copied()))
        .collect()
}

/// Runs the command; exit code 0 is success.
///
/// # Errors
/// The runtime did not run the command.
pub(super) async fn probe(
    cri: &CriClient,
    container_id: &str,
    command: Vec<String>,
    timeout: Duration,
) -> Result<Outcome, CriError> {
    let shown = command.join(" ");
    match cri.exec_sync(container_id, command, timeout).await {
        Ok(answer) if answer.exit_code == 0 => Ok(Outcome::Success),
        Ok(answer) => {
            let mut output: Vec<u8> = [answer.stdout, answer.stderr].concat();
            output.truncate(KEPT_OUTPUT);
            Ok(Outcome::Failure(
                String::from_utf8_lossy(&output).into_owned(),
            ))
        }
        Err(error) if timed_out(&error) => {
            let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
            let after = GoDuration::from_secs(seconds);
            Ok(Outcome::Failure(format!(
                "command timed out: {shown:?} timed out after {after}"
            )))
        }
        Err(error) => Err(error),
    }
}

fn timed_out(error: &CriError) -> bool {
    match error {
        CriError::Deadline { .. } => true,
        CriError::Status { status, .. } => status.code() == Code::DeadlineExceeded,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use fake_runtime::FakeRuntime;

    use super::*;

    #[test]
    fn commands_see_what_the_spec_itself_says() {
        let variable = |name: &str, value: Option<&str>| EnvVar {
            name: name.to_owned(),
            value: value.map(str::to_owned),
            ..EnvVar::default()
        };
        let env = [
            variable("A", Some("0")),
            variable("A", Some("1")),
            variable("FROM", None),
        ];
        let words = ["x$(A)", "$(FROM)", "$(NONE)", "$$(A)"].map(str::to_owned);
        let command = command(&words, &env).unwrap();
        assert_eq!(command, ["x1", "", "$(NONE)", "$(A)"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_container_that_is_not_there_says_nothing() {
        let runtime = FakeRuntime::new();
        let timeout = Duration::from_secs(120);
        let cri = CriClient::from_channels(runtime.channel(), runtime.channel(), timeout);
        let command = vec!["true".to_owned()];
        let probed = probe(&cri, "none", command, Duration::from_secs(1)).await;
        assert!(probed.is_err_and(|error| error.is_not_found()));
    }
}
