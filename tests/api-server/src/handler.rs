//! The handling of a request: recording, interception, authorization and response.

use std::{io, sync::Arc};

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Frame},
    header::{ACCEPT, CONTENT_TYPE},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    Server, Verdict,
    deletion::DeleteOptions,
    discovery,
    errors::ApiError,
    http::{ResponseBody, answer, failure, header, read, success, whole},
    metrics, node_authorizer, node_proxy, openapi,
    patch::Patch,
    policy::Attributes,
    protobuf,
    request::{Caller, Query, Record, Target},
    tables::Form,
};

impl Server {
    /// Answers a request. An error breaks the connection.
    pub(super) async fn handle<B>(
        self: &Arc<Self>,
        request: Request<B>,
        caller: Caller,
    ) -> io::Result<Response<ResponseBody>>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        self.check_available()?;
        let query = Query::of(request.uri());
        let path = request.uri().path().to_owned();
        let target = Target::parse(&path).map(|target| self.served(target?));
        let record = record(&request, &path, target.as_ref(), &query, &caller);
        self.records.lock().push(record.clone());
        let interceptor = self.settings.lock().interceptor.clone();
        let broken = || io::Error::new(io::ErrorKind::ConnectionReset, "connection broken");
        let verdict = interceptor.map_or(Verdict::Pass, |decide| decide(&record));
        let is_lost = matches!(verdict, Verdict::Lose);
        match verdict {
            Verdict::Pass | Verdict::Lose => {}
            Verdict::Delay(time) => sleep(time).await,
            Verdict::Refuse(error) => return Ok(failure(&error)),
            Verdict::Break => return Err(broken()),
        }
        self.check_available()?;
        let answer = match self.authorize(&record, target.as_ref(), &query, &caller) {
            Err(error) => {
                self.refusals.lock().push(error.message.clone());
                Err(error)
            }
            Ok(()) => match target {
                Some(Ok(target)) => self.resource(request, target, &query, &caller).await,
                Some(Err(error)) => Err(error),
                None => self.other_path(&path, &header(request.headers(), "accept")),
            },
        };
        if is_lost {
            return Err(broken());
        }
        Ok(answer.unwrap_or_else(|error| failure(&error)))
    }

    fn authorize(
        &self,
        record: &Record,
        target: Option<&Result<Target, ApiError>>,
        query: &Query,
        caller: &Caller,
    ) -> Result<(), ApiError> {
        let mut attributes = Attributes {
            verb: record.verb.to_owned(),
            ..Attributes::default()
        };
        let target = target.and_then(|target| target.as_ref().ok());
        match target {
            Some(target) => {
                attributes.group = target.resource.group.to_owned();
                attributes.resource = target.resource.plural.to_owned();
                attributes.subresource.clone_from(&target.subresource);
                attributes.namespace = target.namespace_text().to_owned();
                attributes.name = record.name.clone();
            }
            None => attributes.path.clone_from(&record.path),
        }
        let policy = self.settings.lock().policy.clone();
        let mut reason = String::new();
        if policy.allows(caller, &attributes) {
            let node = node_authorizer::node_of(caller).filter(|_| policy.authorizes_nodes());
            let (Some(node), Some(target)) = (node, target) else {
                return Ok(());
            };
            let storage = self.storage.lock();
            let verb = record.verb;
            match node_authorizer::authorize(&storage, node, verb, target, query) {
                Ok(()) => return Ok(()),
                Err(why) => reason = format!(": {why}"),
            }
        }
        let Some(target) = target else {
            return Err(ApiError::new(
                403,
                "Forbidden",
                format!(
                    "forbidden: User {:?} cannot {} path {:?}",
                    caller.user, attributes.verb, attributes.path
                ),
            ));
        };
        let scope = match &target.namespace {
            Some(namespace) => format!("in the namespace {namespace:?}"),
            None => "at the cluster scope".to_owned(),
        };
        let why = format!(
            "User {:?} cannot {} resource {:?} in API group {:?} {scope}{reason}",
            caller.user,
            attributes.verb,
            target.counted(),
            target.resource.group
        );
        Err(ApiError::forbidden(target.resource, &attributes.name, &why))
    }

    /// The target, if the server serves its resource.
    fn served(&self, target: Target) -> Result<Target, ApiError> {
        let settings = self.settings.lock();
        if settings.served.contains(&target.resource) {
            Ok(target)
        } else {
            Err(ApiError::no_such_path())
        }
    }

    /// Answers paths that are not those of resources.
    fn other_path(&self, path: &str, accept: &str) -> Result<Response<ResponseBody>, ApiError> {
        if matches!(path, "/healthz" | "/livez" | "/readyz") {
            return Ok(Response::new(whole("ok")));
        }
        let served = self.settings.lock().served.clone();
        if let Some(all) = discovery::aggregated(&served, path, accept) {
            let body = whole(all.to_string());
            return answer(StatusCode::OK, discovery::AGGREGATED, body);
        }
        let found = discovery::answer(&served, path);
        let found = found.or_else(|| openapi::answer(&served, path));
        let found = found.ok_or_else(ApiError::no_such_path)?;
        Ok(success(StatusCode::OK, &found))
    }

    async fn resource<B>(
        self: &Arc<Self>,
        request: Request<B>,
        target: Target,
        query: &Query,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, ApiError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        if node_proxy::is_kubelet_s(&target) {
            return self.hand_on(request, &target, query).await;
        }
        let verb = target.verb(request.method(), query);
        let (parts, body) = request.into_parts();
        let form = Form::of(&header(&parts.headers, ACCEPT.as_str()), query);
        let now = self.clock.now();
        if target.resource.group == metrics::GROUP {
            if !matches!(verb, "get" | "list") {
                return Err(ApiError::method_not_allowed());
            }
            let told = self.metrics(&target, query).await?;
            return Ok(success(StatusCode::OK, &told));
        }
        if verb == "watch" {
            let server = Arc::clone(self);
            let show = form.watched(target.resource, move || server.clock.now());
            let events = self.watch(&target, query, show)?;
            let body = StreamBody::new(events.map(|event| event.map(Frame::data)));
            return answer(StatusCode::OK, "application/json", body.boxed_unsync());
        }
        let content_type = header(&parts.headers, CONTENT_TYPE.as_str());
        let bytes = read(body).await?;
        let created = StatusCode::CREATED;
        let (status, object) = match (verb, target.subresource.as_str()) {
            ("get", "" | "status" | "resize" | "ephemeralcontainers" | "approval") => {
                let object = self.get(&target)?;
                (StatusCode::OK, form.one(target.resource, object, now))
            }
            ("list", "") => {
                let list = self.list(&target, query)?;
                (StatusCode::OK, form.many(target.resource, list, now))
            }
            ("create", subresource) => {
                let object = parse(&content_type, &bytes)?;
                (
                    created,
                    self.post(&target, subresource, object, query, caller)?,
                )
            }
            ("update", _) => {
                let object = parse(&content_type, &bytes)?;
                (StatusCode::OK, self.update(&target, object, query, caller)?)
            }
            ("patch", _) => {
                let patch = Patch::parse(&content_type, &bytes)?;
                let (object, new) = self.patch(&target, &patch, query, caller)?;
                (if new { created } else { StatusCode::OK }, object)
            }
            ("delete", "") => {
                let options = DeleteOptions::read(&optional(&bytes)?, query);
                (StatusCode::OK, self.delete(&target, &options)?)
            }
            ("deletecollection", "") => {
                let options = DeleteOptions::read(&optional(&bytes)?, query);
                (
                    StatusCode::OK,
                    self.delete_collection(&target, query, &options)?,
                )
            }
            _ => return Err(ApiError::method_not_allowed()),
        };
        Ok(success(status, &object))
    }

    /// `POST`: creates an object, answers a review, or runs the operation of a subresource.
    fn post(
        &self,
        target: &Target,
        subresource: &str,
        object: Value,
        query: &Query,
        caller: &Caller,
    ) -> Result<Value, ApiError> {
        match subresource {
            "" if target.resource.answered_only => self.review(target, object, caller),
            "" if target.name.is_none() => self.create(target, object, query, caller),
            "binding" => self.bind(target, &object),
            "token" => self.request_token(target, object),
            "eviction" => {
                if object["metadata"]["name"] != json!(target.name) {
                    return Err(ApiError::bad_request(
                        "name in URL does not match name in Eviction object",
                    ));
                }
                let options = DeleteOptions::read(&object["deleteOptions"], query);
                self.delete(target, &options)?;
                Ok(json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
                }))
            }
            _ => Err(ApiError::method_not_allowed()),
        }
    }
}

fn record<B>(
    request: &Request<B>,
    path: &str,
    target: Option<&Result<Target, ApiError>>,
    query: &Query,
    caller: &Caller,
) -> Record {
    let target = target.and_then(|target| target.as_ref().ok());
    let verb = match target {
        Some(target) => target.verb(request.method(), query),
        None => match *request.method() {
            Method::GET => "get",
            Method::POST => "post",
            Method::PUT => "put",
            Method::DELETE => "delete",
            _ => "",
        },
    };
    Record {
        verb,
        group: target.map_or("", |target| target.resource.group).to_owned(),
        resource: target.map(Target::counted).unwrap_or_default(),
        namespace: target
            .map(Target::namespace_text)
            .unwrap_or_default()
            .to_owned(),
        name: target
            .and_then(|target| target.name.clone())
            .unwrap_or_default(),
        path: path.to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        user: caller.user.clone(),
        at: Instant::now(),
    }
}

fn parse(content_type: &str, bytes: &[u8]) -> Result<Value, ApiError> {
    if protobuf::is_protobuf(bytes) {
        return protobuf::read(bytes);
    }
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    if !matches!(kind, "" | "application/json") {
        return Err(ApiError::unsupported_media_type(kind));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::bad_request(format!(
            "couldn't get version/kind; json parse error: {error}"
        ))
    })
}

fn optional(bytes: &[u8]) -> Result<Value, ApiError> {
    if bytes.is_empty() {
        Ok(Value::Null)
    } else {
        parse("", bytes)
    }
}
