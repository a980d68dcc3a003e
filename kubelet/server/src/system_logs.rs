//! `/logs/`: the files below `/var/log`. Neither paths nor symlinks lead out of it. With `?query=`,
//! the logs of services.

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use axum::{
    Router,
    body::Body,
    extract::Query,
    http::{HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::{StreamExt as _, stream};
use kubelet_host::repeatable::blocking;
use rustix::fs::{Mode, OFlags};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

use super::{
    node_log_query::{LogTarget, NodeLogQuery, journal_units, log_files},
    response::error,
};

const BASE: &str = "/logs/";
/// Maximum number of names in a listing; the rest is omitted.
const LISTED: usize = 10_000;

/// The target of a path.
enum OpenedPath {
    File(File, u64),
    /// Names of the entries; directories end with a slash.
    Directory(Vec<String>),
}

/// The files below `root`. `journal` is the program that reads the journal; without one, queries are
/// not answered.
pub(super) fn routes(root: PathBuf, journal: Option<PathBuf>) -> Router {
    let answer = get(
        move |uri: Uri, Query(parameters): Query<Vec<(String, String)>>| async move {
            let journal = journal.as_deref();
            let query = journal.map(|_| NodeLogQuery::parse(&parameters));
            match query.transpose().map(Option::flatten) {
                Ok(None) => answer(root, uri.path()).await,
                Ok(Some(_)) if !matches!(uri.path(), "/logs" | BASE) => {
                    error(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode")
                }
                Ok(Some(query)) => match &query.target {
                    LogTarget::File(path) => answer(root, &format!("{BASE}{path}")).await,
                    LogTarget::Services(services) => {
                        let journal = journal.unwrap_or(Path::new(""));
                        service_logs(root, journal, &query, services).await
                    }
                },
                Err((status, reason)) => error(status, reason),
            }
        },
    );
    Router::new()
        .route("/logs", answer.clone())
        .route(BASE, answer.clone())
        .route("/logs/{*path}", answer)
}

/// The logs of services: from the journal, or from their files.
async fn service_logs(
    root: PathBuf,
    journal: &Path,
    query: &NodeLogQuery,
    services: &[String],
) -> Response {
    let units = journal_units(journal).await;
    let in_journal = |name: &&String| units.contains(&format!("{name}.service"));
    let others: Vec<&String> = services.iter().filter(|name| !in_journal(name)).collect();
    let text = HeaderValue::from_static("text/plain;charset=UTF-8");
    let plain = |body: Body| ([(header::CONTENT_TYPE, text)], body).into_response();
    if others.is_empty() {
        return match query.journal(journal, services) {
            Ok(body) => plain(body),
            Err(_) => plain("\nerror: journal output not available\n".into()),
        };
    }
    if query.has_options() {
        return plain(Body::from(format!(
            "\noptions present and query resolved to log files for {others:?}\ntry without specifying \
             options\n"
        )));
    }
    let names: Vec<String> = others.into_iter().cloned().collect();
    let opened = blocking(move || {
        let open = |name: &String| {
            let paths = log_files(name).into_iter();
            let mut files = paths.filter_map(|path| open(&root, Path::new(&path)).ok());
            let file = files.find_map(|opened| match opened {
                OpenedPath::File(file, size) => Some((file, size)),
                OpenedPath::Directory(_) => None,
            });
            file.ok_or_else(|| format!("\nlog not found for {name}\n"))
        };
        names.iter().map(open).collect::<Vec<_>>()
    })
    .await;
    let parts = opened
        .unwrap_or_default()
        .into_iter()
        .map(|opened| match opened {
            Ok((file, size)) => {
                let content = tokio::fs::File::from_std(file).take(size);
                ReaderStream::new(content).left_stream()
            }
            Err(reason) => stream::iter([Ok(reason.into())]).right_stream(),
        });
    plain(Body::from_stream(stream::iter(parts).flatten()))
}

async fn answer(root: PathBuf, request_path: &str) -> Response {
    let path = request_path.strip_prefix(BASE).unwrap_or_default();
    let Some(decoded) = decode(path) else {
        return error(StatusCode::BAD_REQUEST, "invalid URL path");
    };
    let opened = blocking(move || open(&root, &decoded)).await;
    match opened.map_err(io::Error::other).flatten() {
        Ok(OpenedPath::Directory(_)) if !request_path.ends_with('/') => {
            let name = request_path.rsplit('/').next().unwrap_or_default();
            match HeaderValue::from_str(&format!("{name}/")) {
                Ok(to) => (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, to)]).into_response(),
                Err(_) => error(StatusCode::NOT_FOUND, "404 page not found"),
            }
        }
        Ok(OpenedPath::Directory(names)) => listing(&names),
        Ok(OpenedPath::File(file, size)) => {
            // The announced length must match, even if the file grows meanwhile.
            let content = tokio::fs::File::from_std(file).take(size);
            let headers = [
                (header::CONTENT_TYPE, content_type(path)),
                (header::CONTENT_LENGTH, HeaderValue::from(size)),
            ];
            (headers, Body::from_stream(ReaderStream::new(content))).into_response()
        }
        Err(fault) if fault.kind() == io::ErrorKind::PermissionDenied => {
            error(StatusCode::FORBIDDEN, "403 Forbidden")
        }
        Err(_) => error(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

/// Decodes a URL path; `None` if it is malformed, or contains `..` or NUL.
fn decode(path: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    let text = String::from_utf8(bytes).ok()?;
    let is_plain = |part: &str| part != ".." && !part.contains('\0');
    text.split('/')
        .all(is_plain)
        .then(|| PathBuf::from(text.trim_start_matches('/')))
}

/// Opens `path` below `root`. Symlinks are followed, but must stay below `root`. The check is on
/// the opened file, so that it cannot be raced.
fn open(root: &Path, path: &Path) -> io::Result<OpenedPath> {
    let root = fs::canonicalize(root)?;
    let named = rustix::fs::open(
        root.join(path),
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let by_number = PathBuf::from(format!("/proc/self/fd/{}", named.as_raw_fd()));
    if !fs::read_link(&by_number)?.starts_with(&root) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let metadata = fs::metadata(&by_number)?;
    if metadata.is_dir() {
        return list(&by_number).map(OpenedPath::Directory);
    }
    if !metadata.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let file = File::open(&by_number)?;
    let size = file.metadata()?.len();
    Ok(OpenedPath::File(file, size))
}

fn list(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)?.take(LISTED) {
        let entry = entry?;
        let mut name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            name.push('/');
        }
        names.push(name);
    }
    names.sort_unstable();
    Ok(names)
}

/// In the format of Go's file server, which clients parse.
fn listing(names: &[String]) -> Response {
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n"
            .to_owned();
    for name in names {
        let (target, shown) = (url_path(name), html(name));
        page += &format!("<a href=\"{target}\">{shown}</a>\n");
    }
    page += "</pre>\n";
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    ([(header::CONTENT_TYPE, html)], page).into_response()
}

fn html(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&#34;")
        .replace('\'', "&#39;")
}

fn url_path(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/$+,".contains(&byte);
    let mut path = String::new();
    for byte in name.bytes() {
        if plain(byte) {
            path.push(char::from(byte));
        } else {
            path += &format!("%{byte:02X}");
        }
    }
    path
}

fn content_type(path: &str) -> HeaderValue {
    let compressed = [".gz", ".xz", ".bz2", ".zst", ".journal"];
    HeaderValue::from_static(if compressed.iter().any(|ending| path.ends_with(ending)) {
        "application/octet-stream"
    } else {
        "text/plain; charset=utf-8"
    })
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn there_is_no_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("log");
        fs::create_dir_all(root.join("pods")).unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        fs::write(root.join("pods/0.log"), "a line\n").unwrap();
        symlink(root.join("pods/0.log"), root.join("inside.log")).unwrap();
        symlink("../secret", root.join("relative")).unwrap();
        symlink(dir.path(), root.join("up")).unwrap();
        symlink("/dev/zero", root.join("device")).unwrap();

        let read = |path: &str| match open(&root, &decode(path)?).ok()? {
            OpenedPath::File(mut file, _) => {
                let mut text = String::new();
                file.read_to_string(&mut text).ok()?;
                Some(text)
            }
            OpenedPath::Directory(names) => Some(names.join(" ")),
        };
        let line = Some("a line\n".to_owned());
        assert_eq!(read("pods/0.log"), line);
        assert_eq!(read("inside.log"), line, "a link that stays below");
        assert_eq!(read("%70ods//0.log"), line);
        assert_eq!(read("pods"), Some("0.log".to_owned()));
        assert_eq!(
            read(""),
            Some("device inside.log pods/ relative up".to_owned())
        );
        for out in [
            "../secret",
            "%2e%2e/secret",
            "pods/..%2f../secret",
            "relative",
            "up/secret",
            "device",
            "/etc/passwd",
            "pods/%00",
            "pods/%zz",
        ] {
            assert_eq!(read(out), None, "{out}");
        }
    }

    #[test]
    fn names_are_written_for_a_browser() {
        assert_eq!(url_path("a b/%"), "a%20b/%25");
        assert_eq!(html("<a&b>"), "&lt;a&amp;b&gt;");
    }
}
