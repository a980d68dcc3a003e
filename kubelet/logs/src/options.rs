//! Options of a request for a log: the API's `PodLogOptions`.

use std::time::Duration;

use jiff::Timestamp;
use kubelet_host::clock;

use super::record::Stream;

/// Which part of a container's log is requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Follow the log until the container exits.
    pub follow: bool,
    /// The log of the previous run.
    pub previous: bool,
    /// Prefix each line with its time.
    pub timestamps: bool,
    /// Number of lines from the end.
    pub tail_lines: Option<u64>,
    /// Limit of output in bytes.
    pub limit_bytes: Option<u64>,
    /// Only lines since this time.
    pub since: Option<Timestamp>,
    /// Only this stream.
    pub stream: Option<Stream>,
}

/// Why options are invalid, with upstream's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// A parameter has the wrong type.
    #[error(r#"{{"message": "Unable to decode query."}}"#)]
    Undecodable,
    /// A value or a combination is not allowed.
    #[error(r#"{{"message": "Invalid request."}}"#)]
    Invalid,
}

impl LogOptions {
    /// Parses the decoded query parameters of a request.
    ///
    /// # Errors
    /// A value has the wrong type or is not allowed.
    pub fn from_parameters<'a>(
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, OptionsError> {
        let mut options = Self::default();
        let (mut tail, mut limit, mut since_seconds) = (None, None, None);
        let (mut since_time, mut stream) = (None, None);
        // A deprecated name, which takes precedence.
        let mut old_tail = None;
        for (name, value) in parameters {
            match name {
                "follow" => options.follow = is_true(value),
                "previous" => options.previous = is_true(value),
                "timestamps" => options.timestamps = is_true(value),
                "tailLines" => tail = Some(integer(value)?),
                "tail" if value == "all" => old_tail = Some(None),
                "tail" if !value.is_empty() => old_tail = Some(Some(integer(value)?)),
                "limitBytes" => limit = Some(integer(value)?),
                "sinceSeconds" => since_seconds = Some(integer(value)?),
                "sinceTime" if !value.is_empty() => {
                    let time: Timestamp = value.parse().map_err(|_| OptionsError::Undecodable)?;
                    since_time = Some(time);
                }
                "stream" => stream = Some(value),
                _ => {}
            }
        }
        if let Some(old) = old_tail {
            tail = old;
        }
        options.tail_lines = tail.map(|lines| at_least(lines, 0)).transpose()?;
        options.limit_bytes = limit.map(|bytes| at_least(bytes, 1)).transpose()?;
        options.since = match (since_seconds, since_time) {
            (Some(_), Some(_)) => return Err(OptionsError::Invalid),
            (None, time) => time,
            (Some(seconds), None) => {
                let ago = Duration::from_secs(at_least(seconds, 1)?);
                Some(clock::now().checked_sub(ago).unwrap_or(Timestamp::MIN))
            }
        };
        options.stream = match stream {
            None | Some("All") => None,
            Some("Stdout") => Some(Stream::Stdout),
            Some("Stderr") => Some(Stream::Stderr),
            Some(_) => return Err(OptionsError::Invalid),
        };
        // Not told apart in the file, so not counted apart from its end.
        if options.stream.is_some() && options.tail_lines.is_some() {
            return Err(OptionsError::Invalid);
        }
        Ok(options)
    }
}

/// Parses a boolean query parameter as the API server does.
fn is_true(value: &str) -> bool {
    !value.eq_ignore_ascii_case("false") && value != "0"
}

fn integer(value: &str) -> Result<i64, OptionsError> {
    value.parse().map_err(|_| OptionsError::Undecodable)
}

fn at_least(value: i64, least: u64) -> Result<u64, OptionsError> {
    u64::try_from(value)
        .ok()
        .filter(|value| *value >= least)
        .ok_or(OptionsError::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_upstream_does() {
        let options = |parameters: &[(&'static str, &'static str)]| {
            LogOptions::from_parameters(parameters.iter().copied())
        };
        let all = options(&[("follow", "true"), ("tailLines", "5"), ("limitBytes", "9")]).unwrap();
        assert!(all.follow && !all.timestamps);
        assert!(!options(&[("follow", "False")]).unwrap().follow);
        assert_eq!((all.tail_lines, all.limit_bytes), (Some(5), Some(9)));
        assert_eq!(
            options(&[("tailLines", "5"), ("tail", "all")])
                .unwrap()
                .tail_lines,
            None
        );
        assert_eq!(options(&[("tail", "0")]).unwrap().tail_lines, Some(0));
        assert!(options(&[("timestamps", "")]).unwrap().timestamps);
        let since = options(&[("sinceTime", "2016-10-20T18:39:20Z")]).unwrap();
        assert_eq!(since.since.map(|at| at.as_second()), Some(1_476_988_760));
        let ago = options(&[("sinceSeconds", "60")]).unwrap().since.unwrap();
        let ago = clock::now().duration_since(ago).as_secs();
        assert!((59..=62).contains(&ago), "{ago}");
        for (parameters, error) in [
            (&[("tailLines", "x")][..], OptionsError::Undecodable),
            (&[("sinceTime", "yesterday")], OptionsError::Undecodable),
            (&[("tailLines", "-1")], OptionsError::Invalid),
            (&[("limitBytes", "0")], OptionsError::Invalid),
            (&[("sinceSeconds", "0")], OptionsError::Invalid),
            (
                &[("sinceSeconds", "1"), ("sinceTime", "2016-10-20T18:39:20Z")],
                OptionsError::Invalid,
            ),
            (&[("stream", "stdin")], OptionsError::Invalid),
            (
                &[("stream", "Stdout"), ("tailLines", "1")],
                OptionsError::Invalid,
            ),
        ] {
            assert_eq!(options(parameters), Err(error), "{parameters:?}");
        }
    }
}
