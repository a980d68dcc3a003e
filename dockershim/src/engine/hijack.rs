//! Connections that the engine hands over after HTTP, for the streams of commands and
//! containers. Made without bollard, whose reader guesses at what a terminal says.

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

/// Between the engine and whoever takes the output.
const BUFFER: usize = 64 * 1024;
/// What of a refusal is read.
const LONGEST_REFUSAL: usize = 64 * 1024;

/// What a process writes, as the engine sends it: see [`super::output`].
pub type HijackedReader = BufReader<ReadHalf<TokioIo<Upgraded>>>;
/// What a process reads. Shut down, it is the end of its input.
pub type HijackedWriter = WriteHalf<TokioIo<Upgraded>>;

/// Which streams of a container are joined.
#[derive(Clone, Copy, Debug)]
pub struct AttachTo {
    /// Its input.
    pub stdin: bool,
    /// Its output.
    pub stdout: bool,
    /// Its error output.
    pub stderr: bool,
}

/// Keys that detach from a terminal. The engine's own, ctrl-P first, would keep every
/// ctrl-P from the program until the next key; these nobody presses.
pub(super) const DETACH_KEYS: &str = "ctrl-^,ctrl-@,ctrl-^,ctrl-@,ctrl-_,ctrl-^";

impl Engine {
    /// Starts a prepared command and takes over its streams.
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

    /// Joins the streams of a running container.
    ///
    /// # Errors
    /// Any [`Cause`]; `Conflict` when it does not run.
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
