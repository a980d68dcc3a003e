//! Connections upgraded from HTTP for the streams of commands and containers. They bypass bollard,
//! whose reader guesses the format of terminal output.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{CONNECTION, CONTENT_TYPE, UPGRADE},
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use tokio::io::{BufReader, ReadHalf, WriteHalf};

use super::{CHANGE, Call, Cause, DialError, Engine, EngineError};

/// The read buffer's size.
const BUFFER: usize = 64 * 1024;
/// The size limit of an error response.
const LONGEST_REFUSAL: usize = 64 * 1024;

/// The process's output in the engine's format: see [`super::output`].
pub(super) type HijackedReader = BufReader<ReadHalf<TokioIo<Upgraded>>>;
/// The process's input; shutting it down ends the input.
pub(super) type HijackedWriter = WriteHalf<TokioIo<Upgraded>>;

/// The streams of a container to attach.
#[derive(Clone, Copy, Debug)]
pub struct AttachTo {
    /// Whether to attach stdin.
    pub stdin: bool,
    /// Whether to attach stdout.
    pub stdout: bool,
    /// Whether to attach stderr.
    pub stderr: bool,
}

/// The key sequence that detaches from a terminal, chosen because no user types it. With the
/// engine's default, which starts with Ctrl-P, the program would get each Ctrl-P only after the
/// next key.
pub(super) const DETACH_KEYS: &str = "ctrl-^,ctrl-@,ctrl-^,ctrl-@,ctrl-_,ctrl-^";

impl Engine {
    /// Starts an exec and returns its streams.
    ///
    /// # Errors
    /// Any [`Cause`].
    pub async fn start_exec(
        &self,
        exec: &str,
        tty: bool,
    ) -> Result<(HijackedReader, HijackedWriter), EngineError> {
        let call = self.call("run command", exec, CHANGE);
        let body = serde_json::json!({ "Detach": false, "Tty": tty });
        let path = format!("/exec/{exec}/start");
        call.limited(self.hijack(&call, &path, body.to_string()))
            .await
    }

    /// Attaches to the streams of a running container.
    ///
    /// # Errors
    /// Any [`Cause`]; `Conflict` if it is not running.
    pub async fn attach_container(
        &self,
        id: &str,
        to: AttachTo,
    ) -> Result<(HijackedReader, HijackedWriter), EngineError> {
        let call = self.call("attach to container", id, CHANGE);
        let flag = u8::from;
        let keys = DETACH_KEYS.replace('^', "%5E").replace('@', "%40");
        let path = format!(
            "/containers/{id}/attach?stream=1&stdin={}&stdout={}&stderr={}&detachKeys={keys}",
            flag(to.stdin),
            flag(to.stdout),
            flag(to.stderr),
        );
        call.limited(self.hijack(&call, &path, String::new())).await
    }

    async fn hijack(
        &self,
        call: &Call<'_>,
        path: &str,
        body: String,
    ) -> Result<(HijackedReader, HijackedWriter), Cause> {
        let connection = call.connection(self).map_err(|error| error.cause)?;
        let request = Request::post(connection.versioned(path))
            .header(CONTENT_TYPE, "application/json")
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "tcp")
            .body(Full::<Bytes>::from(body))
            .map_err(|error| Cause::Protocol(error.to_string()))?;
        let mut answer = connection.dialer.send(request).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(answer).await);
        }
        let upgraded = hyper::upgrade::on(&mut answer).await;
        let upgraded = upgraded.map_err(DialError::from)?;
        let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
        Ok((BufReader::with_capacity(BUFFER, reader), writer))
    }
}

pub(super) async fn refusal(answer: Response<Incoming>) -> Cause {
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), LONGEST_REFUSAL).collect();
    let body = match body.await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Cause::Unreachable(error.to_string()),
    };
    let told = serde_json::from_slice::<serde_json::Value>(&body).ok();
    let message = told.and_then(|told| Some(told.get("message")?.as_str()?.to_owned()));
    Cause::refused(
        status,
        message.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned()),
    )
}
