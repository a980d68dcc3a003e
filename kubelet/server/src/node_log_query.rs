//! `/logs/?query=SERVICE`: logs of the node's services, from the journal, or from files below
//! `/var/log` if a service does not log to the journal (`enableSystemLogQuery`).

use std::{ffi::OsString, io, path::Path, process::Stdio, time::Duration};

use axum::{body::Body, http::StatusCode};
use futures::stream;
use jiff::{Timestamp, tz::TimeZone};
use tokio::{
    io::AsyncReadExt as _,
    net::unix::pipe,
    process::Command,
    time::{Instant, timeout, timeout_at},
};

const MAX_SERVICES: usize = 4;
const MAX_SERVICE_LENGTH: usize = 256;
const MAX_LINES: i64 = 100_000;
/// Bytes that are sent at once.
const CHUNK: usize = 16 << 10;
/// How long a query may take, as upstream.
const LIMIT: Duration = Duration::from_secs(30);
/// The units that the journal knows are at most this many bytes of text.
const MAX_UNITS: u64 = 4 << 20;

/// A query for logs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeLogQuery {
    pub(super) target: LogTarget,
    options: Options,
}

/// Whose log is wanted.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LogTarget {
    /// A file below `/var/log`.
    File(String),
    Services(Vec<String>),
}

impl Default for LogTarget {
    fn default() -> Self {
        Self::Services(Vec::new())
    }
}

/// Which lines are wanted. Only the journal can select them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Options {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    lines: Option<i64>,
    boot: Option<i64>,
    pattern: Option<String>,
}

/// An invalid query: status and reason.
pub(super) type Refusal = (StatusCode, String);

impl NodeLogQuery {
    /// Parses the parameters of a URL; `None` if they are no query.
    ///
    /// # Errors
    /// The parameter that is invalid.
    pub(super) fn parse(parameters: &[(String, String)]) -> Result<Option<Self>, Refusal> {
        let given = |name: &'static str| {
            let values = parameters.iter().filter(move |(key, _)| key == name);
            values.map(|(_, value)| value.as_str())
        };
        if given("query").next().is_none() {
            return Ok(None);
        }
        let first = |name| given(name).next().filter(|value| !value.is_empty());
        let invalid = |name: &str, value: &str, why: &str| {
            let reason = format!("{name}: Invalid value: {value:?}: {why}");
            (StatusCode::BAD_REQUEST, reason)
        };
        let time = |name| {
            let time = first(name).map(|text| {
                let parsed = text.parse::<Timestamp>();
                parsed.map_err(|_| invalid(name, text, "invalid time format"))
            });
            time.transpose()
        };
        let number = |name| {
            let number = first(name).map(|text| {
                let parsed = text.parse::<i64>();
                parsed.map_err(|_| invalid(name, text, "must be a whole number"))
            });
            number.transpose()
        };
        let options = Options {
            since: time("sinceTime")?,
            until: time("untilTime")?,
            lines: number("tailLines")?,
            boot: number("boot")?,
            pattern: first("pattern").map(str::to_owned),
        };
        // A slash is a hint at a file.
        let wanted = given("query")
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let (files, services): (Vec<&str>, Vec<&str>) =
            wanted.partition(|name| name.contains(['/', '\\']));
        let refused = |reason: &str| Err((StatusCode::NOT_ACCEPTABLE, format!("query: {reason}")));
        let target = match (&files[..], &services[..]) {
            ([], []) => return Err(invalid("query", "", "query cannot be empty")),
            ([file], []) if options == Options::default() => {
                LogTarget::File(file.replace('\\', "/"))
            }
            ([_], []) => return refused("Forbidden: cannot specify file with options"),
            (_, []) => return refused("Too many: cannot specify more than one file"),
            ([], services) => {
                LogTarget::Services(services.iter().map(|name| (*name).to_owned()).collect())
            }
            _ => return refused("Forbidden: cannot specify a file and service"),
        };
        let query = Self { target, options };
        match query.fault() {
            Some(reason) => Err((StatusCode::NOT_ACCEPTABLE, reason)),
            None => Ok(Some(query)),
        }
    }

    fn fault(&self) -> Option<String> {
        let options = &self.options;
        if let LogTarget::Services(services) = &self.target {
            if services.len() > MAX_SERVICES {
                let count = services.len();
                return Some(format!(
                    "query: Too many: {count}: must have at most {MAX_SERVICES} items"
                ));
            }
            if let Some((name, why)) = services
                .iter()
                .find_map(|name| Some((name, unsafe_name(name)?)))
            {
                return Some(format!("query: Invalid value: {name:?}: {why}"));
            }
        }
        if options
            .since
            .zip(options.until)
            .is_some_and(|(since, until)| since > until)
        {
            return Some("untilTime: Invalid value: must be after `sinceTime`".to_owned());
        }
        if let Some(boot) = options.boot.filter(|boot| *boot > 0) {
            return Some(format!("boot: Invalid value: {boot}: must be less than 1"));
        }
        if let Some(lines) = options
            .lines
            .filter(|lines| !(0..=MAX_LINES).contains(lines))
        {
            return Some(format!(
                "tailLines: Invalid value: {lines}: must be between 0 and {MAX_LINES}, inclusive"
            ));
        }
        None
    }

    /// Whether the query selects lines.
    pub(super) fn has_options(&self) -> bool {
        self.options != Options::default()
    }

    /// The arguments of journalctl.
    fn arguments(&self, services: &[String]) -> Vec<OsString> {
        let Options {
            since,
            until,
            lines,
            boot,
            pattern,
        } = &self.options;
        let time = |time: &Timestamp| {
            let time = time.to_zoned(TimeZone::UTC);
            time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
        };
        let mut arguments = vec!["--utc".to_owned(), "--no-pager".to_owned()];
        arguments.extend(since.as_ref().map(|it| format!("--since={}", time(it))));
        arguments.extend(until.as_ref().map(|it| format!("--until={}", time(it))));
        arguments.extend(lines.map(|lines| format!("--lines={lines}")));
        arguments.extend(services.iter().map(|name| format!("--unit={name}")));
        if let Some(pattern) = pattern {
            arguments.push(format!("--grep={pattern}"));
            arguments.push("--case-sensitive=false".to_owned());
        }
        arguments.extend(boot.map(|boot| format!("--boot={boot}")));
        arguments.push("--output=short-precise".to_owned());
        arguments.into_iter().map(OsString::from).collect()
    }

    /// The journal of these services. The stream ends after [`LIMIT`], and so does the command if
    /// the client disconnects.
    pub(super) fn journal(&self, program: &Path, services: &[String]) -> io::Result<Body> {
        let (writer, reader) = pipe::pipe()?;
        let writer = writer.into_blocking_fd()?;
        let child = Command::new(program)
            .args(self.arguments(services))
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .kill_on_drop(true)
            .spawn()?;
        let deadline = Instant::now() + LIMIT;
        let stream = stream::unfold((reader, child), move |(mut reader, child)| async move {
            let mut chunk = vec![0; CHUNK];
            let read = timeout_at(deadline, reader.read(&mut chunk)).await.ok()?;
            match read {
                Ok(0) => None,
                Ok(length) => {
                    chunk.truncate(length);
                    Some((Ok(chunk), (reader, child)))
                }
                Err(error) => Some((Err(error), (reader, child))),
            }
        });
        Ok(Body::from_stream(stream))
    }
}

/// The units that the journal knows; none if there is no journal.
pub(super) async fn journal_units(program: &Path) -> String {
    let command = Command::new(program)
        .args(["--field", "_SYSTEMD_UNIT"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let Ok(mut command) = command else {
        return String::new();
    };
    let mut units = Vec::new();
    if let Some(output) = command.stdout.take() {
        let read = async { output.take(MAX_UNITS).read_to_end(&mut units).await };
        // What was read until then counts.
        let _ = timeout(LIMIT, read).await;
    }
    String::from_utf8_lossy(&units).into_owned()
}

/// The paths below `/var/log` where a service's log may be.
pub(super) fn log_files(service: &str) -> [String; 3] {
    [
        service.to_owned(),
        format!("{service}.log"),
        format!("{service}/{service}.log"),
    ]
}

/// Why a name is no service's.
fn unsafe_name(name: &str) -> Option<&'static str> {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    if name.len() > MAX_SERVICE_LENGTH {
        return Some("length must be at most 256");
    }
    (!name.chars().all(is_safe)).then_some("input contains unsupported characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(parameters: &[(&str, &str)]) -> Result<Option<NodeLogQuery>, Refusal> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        NodeLogQuery::parse(&parameters.iter().map(owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_query_becomes_a_command() {
        assert_eq!(parse(&[("x", "y")]), Ok(None));
        let query = parse(&[
            ("query", "kubelet"),
            ("query", "docker.socket"),
            ("sinceTime", "2026-01-02T03:04:05+01:00"),
            ("tailLines", "7"),
            ("boot", "-1"),
            ("pattern", "a b|c"),
        ]);
        let query = query.unwrap().unwrap();
        let LogTarget::Services(services) = &query.target else {
            panic!("{query:?}");
        };
        assert_eq!(
            query.arguments(services),
            [
                "--utc",
                "--no-pager",
                "--since=2026-01-02 02:04:05 UTC",
                "--lines=7",
                "--unit=kubelet",
                "--unit=docker.socket",
                "--grep=a b|c",
                "--case-sensitive=false",
                "--boot=-1",
                "--output=short-precise",
            ]
        );
        let file = parse(&[("query", "\\pods\\0.log")]).unwrap().unwrap();
        assert_eq!(file.target, LogTarget::File("/pods/0.log".to_owned()));
    }

    #[test]
    fn what_is_invalid_is_named() {
        let name = "x".repeat(257);
        for (parameters, status, reason) in [
            (&[("query", " ")][..], 400, "query: Invalid value"),
            (
                &[("query", "a b")],
                406,
                "query: Invalid value: \"a b\": input contains",
            ),
            (
                &[("query", "--root=x")],
                406,
                "query: Invalid value: \"--root=x\"",
            ),
            (&[("query", &name)], 406, "query: Invalid value"),
            (
                &[("query", "a/b"), ("query", "c")],
                406,
                "query: Forbidden: cannot specify a file and",
            ),
            (
                &[("query", "a/b"), ("query", "c/d")],
                406,
                "query: Too many",
            ),
            (
                &[("query", "a/b"), ("tailLines", "1")],
                406,
                "query: Forbidden: cannot specify file with",
            ),
            (
                &[
                    ("query", "a"),
                    ("query", "b"),
                    ("query", "c"),
                    ("query", "d"),
                    ("query", "e"),
                ],
                406,
                "query: Too many: 5",
            ),
            (
                &[("query", "a"), ("sinceTime", "today")],
                400,
                "sinceTime: Invalid value: \"today\"",
            ),
            (
                &[("query", "a"), ("tailLines", "x")],
                400,
                "tailLines: Invalid value: \"x\"",
            ),
            (
                &[("query", "a"), ("tailLines", "-1")],
                406,
                "tailLines: Invalid value: -1",
            ),
            (
                &[("query", "a"), ("boot", "1")],
                406,
                "boot: Invalid value: 1",
            ),
            (
                &[
                    ("query", "a"),
                    ("sinceTime", "2026-01-02T00:00:00Z"),
                    ("untilTime", "2026-01-01T00:00:00Z"),
                ],
                406,
                "untilTime: Invalid value",
            ),
        ] {
            let (found, why) = parse(parameters).unwrap_err();
            assert_eq!(found.as_u16(), status, "{parameters:?}");
            assert!(why.starts_with(reason), "{why}");
        }
    }
}
