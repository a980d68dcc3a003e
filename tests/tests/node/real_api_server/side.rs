//! One of the two API servers, and its answers.

use anyhow::Result;
use e2e::control_plane::ControlPlane;
use hyper::{Method, Request};
use kube::{Client, client::Body};
use serde_json::Value;
use test_api_server::Caller;

/// An answer to a request.
pub(crate) struct Answer {
    /// A description of the request.
    pub what: &'static str,
    /// The HTTP status code.
    pub code: u16,
    /// An object, the events of a watch, or a text.
    pub body: Value,
}

/// The identity of the client.
#[derive(Clone, Copy)]
pub(crate) enum As {
    /// The cluster's administrator.
    Admin,
    /// The kubelet of the node `n1`.
    Node,
    /// A new node with its bootstrap token.
    Newcomer,
}

/// One of the two servers.
pub(crate) struct Side {
    /// Its control plane.
    pub plane: ControlPlane,
    /// Its answers, in order.
    pub answers: Vec<Answer>,
    admin: Client,
    node: Client,
    newcomer: Client,
}

impl Side {
    pub(crate) async fn of(plane: ControlPlane) -> Result<Self> {
        let client = async |caller| plane.client(plane.kubeconfig(&caller)?).await;
        Ok(Self {
            admin: client(Caller::admin()).await?,
            node: client(Caller::node("n1")).await?,
            newcomer: plane.client(plane.bootstrap_kubeconfig()).await?,
            answers: Vec::new(),
            plane,
        })
    }

    /// Sends a request without a body.
    pub(crate) async fn ask(
        &mut self,
        what: &'static str,
        caller: As,
        method: Method,
        path: &str,
    ) -> Result<Value> {
        let request = Request::builder().method(method).uri(path);
        self.answer(what, caller, request.body(Body::empty())?)
            .await
    }

    /// Sends a request with an object.
    pub(crate) async fn give(
        &mut self,
        what: &'static str,
        caller: As,
        method: Method,
        path: &str,
        object: &Value,
    ) -> Result<Value> {
        let kind = match method {
            Method::PATCH => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(Body::from(object.to_string().into_bytes()))?;
        self.answer(what, caller, request).await
    }

    /// Watches for three seconds.
    pub(crate) async fn watch(
        &mut self,
        what: &'static str,
        caller: As,
        path: &str,
        query: &str,
    ) -> Result<Vec<Value>> {
        let path = format!("{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds=3&{query}");
        let answer = self.ask(what, caller, Method::GET, &path).await?;
        // A single event has already been parsed as an object.
        let events = match &answer {
            Value::String(lines) => lines
                .lines()
                .map(serde_json::from_str)
                .collect::<Result<Vec<Value>, _>>()?,
            event => vec![event.clone()],
        };
        if let Some(answer) = self.answers.last_mut() {
            answer.body = Value::from(events.clone());
        }
        Ok(events)
    }

    async fn answer(
        &mut self,
        what: &'static str,
        caller: As,
        request: Request<Body>,
    ) -> Result<Value> {
        let client = match caller {
            As::Admin => &self.admin,
            As::Node => &self.node,
            As::Newcomer => &self.newcomer,
        };
        let (code, body) = self.plane.send(client, request).await?;
        self.answers.push(Answer {
            what,
            code,
            body: body.clone(),
        });
        Ok(body)
    }
}
