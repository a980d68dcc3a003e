//! The client of one driver.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri_proto::dra::v1::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use kubelet_plugin_manager::{message::shortened, socket};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{
    Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel,
};
use tonic_prost::ProstCodec;

use crate::{
    claims::{ClaimDevice, PreparedClaim},
    error::DraError,
    metrics::Metrics,
};

/// The time limit of a call, as upstream.
const CALL_LIMIT: Duration = Duration::from_secs(45);
/// The longest answer for one claim, so that the state file stays readable.
const LONGEST: usize = 256 << 10;

/// The methods of a driver's service, in a version of it. Messages are the same in both.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Service {
    /// What drivers call it when they register.
    name: &'static str,
    prepare: &'static str,
    unprepare: &'static str,
}

const SERVICES: [Service; 2] = [
    Service {
        name: "v1.DRAPlugin",
        prepare: "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
        unprepare: "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
    },
    Service {
        name: "v1beta1.DRAPlugin",
        prepare: "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        unprepare: "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
    },
];

impl Service {
    /// The first version in a driver's list that this kubelet has.
    ///
    /// # Errors
    /// A message for the driver's author.
    pub(crate) fn choose(offered: &[String]) -> Result<&'static Self, String> {
        if offered.is_empty() {
            return Err(
                "empty list of supported gRPC services (aka supported versions)".to_owned(),
            );
        }
        let known = |offered: &String| SERVICES.iter().find(|service| service.name == *offered);
        offered.iter().find_map(known).ok_or_else(|| {
            let names: Vec<&str> = SERVICES.iter().map(|service| service.name).collect();
            format!(
                "none of services supported by the plugin ({offered:?}) are supported by the \
                 kubelet ({names:?})"
            )
        })
    }
}

/// A registered driver. Equal to itself alone: one that registers again is another one.
#[derive(Clone, Debug)]
pub(crate) struct Driver(Arc<Registered>);

#[derive(Debug)]
struct Registered {
    name: String,
    /// Its socket.
    path: PathBuf,
    service: &'static Service,
    /// None while there is no connection.
    channel: Mutex<Option<Channel>>,
    /// Cancelled when the driver is deregistered.
    ends: CancellationToken,
}

impl PartialEq for Driver {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Driver {
    pub(crate) fn new(
        name: &str,
        path: &Path,
        service: &'static Service,
        ends: CancellationToken,
    ) -> Self {
        Self(Arc::new(Registered {
            name: name.to_owned(),
            path: path.to_owned(),
            service,
            channel: Mutex::new(None),
            ends,
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    pub(crate) fn end(&self) {
        self.0.ends.cancel();
    }

    /// The result of `work`; `None` if the driver is deregistered first.
    pub(crate) async fn until_end<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.0.ends.run_until_cancelled(work).await
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.0.channel.lock().is_some()
    }

    pub(crate) fn set_channel(&self, channel: Option<Channel>) {
        *self.0.channel.lock() = channel;
    }

    /// Asks the driver to prepare claims. Returns the devices of each, by the claim's UID.
    pub(crate) async fn prepare(
        &self,
        claims: &[PreparedClaim],
        metrics: &Metrics,
    ) -> Result<BTreeMap<String, Vec<ClaimDevice>>, DraError> {
        let request = NodePrepareResourcesRequest {
            claims: claims.iter().map(wire).collect(),
        };
        let method = "NodePrepareResources";
        let path = self.0.service.prepare;
        let answer: NodePrepareResourcesResponse =
            self.call(method, path, request, metrics).await?;
        let answers = answer.claims.into_iter().map(|(uid, answer)| {
            let message = answer.error.clone();
            (uid, (message, answer))
        });
        let mut devices = BTreeMap::new();
        for (uid, answer) in self.of_claims(method, claims, answers)? {
            devices.insert(uid, self.devices(answer)?);
        }
        Ok(devices)
    }

    /// Asks the driver to undo that.
    pub(crate) async fn unprepare(
        &self,
        claims: &[PreparedClaim],
        metrics: &Metrics,
    ) -> Result<(), DraError> {
        let request = NodeUnprepareResourcesRequest {
            claims: claims.iter().map(wire).collect(),
        };
        let method = "NodeUnprepareResources";
        let path = self.0.service.unprepare;
        let answer: NodeUnprepareResourcesResponse =
            self.call(method, path, request, metrics).await?;
        let answers = answer.claims.into_iter();
        let answers = answers.map(|(uid, answer)| (uid, (answer.error, ())));
        self.of_claims(method, claims, answers).map(drop)
    }

    /// The answers for each claim, by its UID: one for each and no others, and none is an error.
    fn of_claims<T>(
        &self,
        method: &'static str,
        claims: &[PreparedClaim],
        answers: impl Iterator<Item = (String, (String, T))>,
    ) -> Result<Vec<(String, T)>, DraError> {
        let mut good = Vec::new();
        for (uid, (message, answer)) in answers {
            let Some(claim) = claims.iter().find(|claim| claim.uid == uid) else {
                let rule = format!("claims: {uid:?} is no UID of a claim in the request");
                return Err(self.invalid(method, rule));
            };
            if !message.is_empty() {
                return Err(DraError::Claim {
                    claim: claim.key.name.clone(),
                    method,
                    message: shortened(message),
                });
            }
            good.push((uid, answer));
        }
        match claims.len() - good.len() {
            0 => Ok(good),
            count => Err(DraError::Skipped { method, count }),
        }
    }

    /// The devices of one claim.
    fn devices(&self, answer: NodePrepareResourceResponse) -> Result<Vec<ClaimDevice>, DraError> {
        use tonic_prost::prost::Message as _;

        let invalid = |rule| self.invalid("NodePrepareResources", rule);
        let length = answer.encoded_len();
        if length > LONGEST {
            let rule =
                format!("claims: one takes {length} bytes, and at most {LONGEST} are possible");
            return Err(invalid(rule));
        }
        for (index, device) in answer.devices.iter().enumerate() {
            for (field, value) in [
                ("pool_name", &device.pool_name),
                ("device_name", &device.device_name),
            ] {
                if value.is_empty() {
                    return Err(invalid(format!("devices[{index}].{field}: is empty")));
                }
            }
            for (number, id) in device.cdi_device_ids.iter().enumerate() {
                let parts = id.split_once('=').and_then(|(kind, name)| {
                    let (vendor, class) = kind.split_once('/')?;
                    Some([vendor, class, name])
                });
                if parts.is_none_or(|parts| parts.contains(&"")) {
                    return Err(invalid(format!(
                        "devices[{index}].cdi_device_ids[{number}]: {id:?} is no name of a CDI \
                         device (vendor/class=name)"
                    )));
                }
            }
        }
        let devices = answer.devices.into_iter().map(|device| ClaimDevice {
            pool: device.pool_name,
            name: device.device_name,
            share_id: device.share_id,
            requests: device.request_names,
            cdi: device.cdi_device_ids,
        });
        Ok(devices.collect())
    }

    fn invalid(&self, method: &'static str, rule: String) -> DraError {
        DraError::Answer {
            driver: self.0.name.clone(),
            method,
            rule: shortened(rule),
        }
    }

    async fn call<Q, A>(
        &self,
        method: &'static str,
        path: &'static str,
        request: Q,
        metrics: &Metrics,
    ) -> Result<A, DraError>
    where
        Q: tonic_prost::prost::Message + 'static,
        A: tonic_prost::prost::Message + Default + 'static,
    {
        let connected = self.0.channel.lock().clone();
        let channel = connected.unwrap_or_else(|| socket::channel(&self.0.path));
        let call = async {
            let mut grpc = Grpc::new(channel);
            let ready = grpc.ready().await;
            ready.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec = ProstCodec::<Q, A>::default();
            let path = PathAndQuery::from_static(path);
            grpc.unary(Request::new(request), path, codec).await
        };
        let begun = Instant::now();
        let answer = timeout(CALL_LIMIT, call).await;
        let code = match &answer {
            Ok(Ok(_)) => Code::Ok,
            Ok(Err(status)) => status.code(),
            Err(_) => Code::DeadlineExceeded,
        };
        metrics.called(&self.0.name, path, code, begun.elapsed());
        let driver = self.0.name.clone();
        match answer {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(DraError::Call {
                driver,
                method,
                message: shortened(status.message().to_owned()),
            }),
            Err(_) => Err(DraError::Deadline {
                driver,
                method,
                limit: CALL_LIMIT,
            }),
        }
    }
}

fn wire(claim: &PreparedClaim) -> Claim {
    Claim {
        namespace: claim.key.namespace.clone(),
        uid: claim.uid.clone(),
        name: claim.key.name.clone(),
    }
}
