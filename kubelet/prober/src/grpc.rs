//! gRPC probes: the standard health service.

use std::{net::IpAddr, time::Duration};

use cri_proto::grpc::health::v1::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use go_duration::GoDuration;
use kubelet_host::version;
use tokio::time::Instant;
use tonic::{
    Code,
    transport::{Channel, Endpoint, Error},
};

use super::outcome::Outcome;

/// The delay between attempts to connect: the first, and the growth of each next one.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_FACTOR: f64 = 1.6;

/// Asks the health service on a port of a host about `service`; an empty name asks about the whole
/// server.
pub(super) async fn probe(host: &str, port: u16, service: &str, timeout: Duration) -> Outcome {
    let address = match host.parse() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        _ => format!("{host}:{port}"),
    };
    let within = seconds(timeout);
    let deadline = Instant::now() + timeout;
    let channel = match tokio::time::timeout_at(deadline, connect(&address)).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => {
            let message = format!("error: failed to connect service at {address:?}: {error}");
            return Outcome::Failure(message);
        }
        Err(_) => {
            let message = format!(
                "timeout: failed to connect service {address:?} within {within}: context deadline exceeded"
            );
            return Outcome::Failure(message);
        }
    };
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let mut client = HealthClient::new(channel);
    let answer = tokio::time::timeout_at(deadline, client.check(request)).await;
    let status = match answer {
        Ok(Ok(answer)) => answer.into_inner().status(),
        Ok(Err(status)) if status.code() == Code::Unimplemented => {
            return Outcome::Failure(format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                status.message()
            ));
        }
        Ok(Err(status)) if status.code() != Code::DeadlineExceeded => {
            return Outcome::Failure(format!(
                "error: health rpc probe failed: rpc error: code = {:?} desc = {}",
                status.code(),
                status.message()
            ));
        }
        _ => {
            let message = format!("timeout: health rpc did not complete within {within}");
            return Outcome::Failure(message);
        }
    };
    if status == ServingStatus::Serving {
        return Outcome::Success;
    }
    Outcome::Failure(format!(
        "service unhealthy (responded with {:?})",
        status.as_str_name()
    ))
}

/// Retries until a server listens. Fails only for an invalid address.
async fn connect(address: &str) -> Result<Channel, Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .user_agent(format!("kube-probe/{}", version::MAJOR_MINOR))?;
    let mut delay = RETRY_BASE;
    loop {
        if let Ok(channel) = endpoint.connect().await {
            return Ok(channel);
        }
        tokio::time::sleep(delay).await;
        delay = delay.mul_f64(RETRY_FACTOR);
    }
}

fn seconds(timeout: Duration) -> GoDuration {
    GoDuration::from_secs(i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use cri_proto::grpc::health::v1::{
        HealthCheckResponse,
        health_server::{Health, HealthServer},
    };
    use tokio::net::TcpListener;
    use tokio_util::task::AbortOnDropHandle;
    use tonic::{Request, Response, Status, service::Routes, transport::Server};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    struct Checks;

    #[tonic::async_trait]
    impl Health for Checks {
        async fn check(
            &self,
            request: Request<HealthCheckRequest>,
        ) -> Result<Response<HealthCheckResponse>, Status> {
            let agent = request.metadata().get("user-agent").cloned();
            let agent = agent.unwrap().to_str().unwrap().to_owned();
            assert!(agent.starts_with("kube-probe/1.36"), "{agent}");
            let status = match request.into_inner().service.as_str() {
                "" => ServingStatus::Serving,
                "ill" => ServingStatus::NotServing,
                "slow" => std::future::pending().await,
                other => return Err(Status::not_found(format!("no service {other}"))),
            };
            Ok(Response::new(HealthCheckResponse {
                status: status.into(),
            }))
        }
    }

    async fn serve(routes: Routes) -> (u16, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = async move {
            let router = Server::builder().add_routes(routes);
            router.serve_with_incoming(incoming).await.unwrap();
        };
        (port, AbortOnDropHandle::new(tokio::spawn(server)))
    }

    #[tokio::test]
    async fn the_health_service_is_believed() {
        let (port, _server) = serve(Routes::new(HealthServer::new(Checks))).await;
        let ask = async |service| probe("127.0.0.1", port, service, TIMEOUT).await;
        assert_eq!(ask("").await, Outcome::Success);
        assert_eq!(
            ask("ill").await,
            Outcome::Failure("service unhealthy (responded with \"NOT_SERVING\")".to_owned())
        );
        assert_eq!(
            ask("other").await,
            Outcome::Failure(
                "error: health rpc probe failed: rpc error: code = NotFound desc = no service other"
                    .to_owned()
            )
        );
        let slow = probe("127.0.0.1", port, "slow", Duration::from_secs(1)).await;
        assert_eq!(
            slow,
            Outcome::Failure("timeout: health rpc did not complete within 1s".to_owned())
        );
    }

    #[tokio::test]
    async fn a_server_without_it_is_told_from_none() {
        let (port, server) = serve(Routes::default()).await;
        let Outcome::Failure(message) = probe("127.0.0.1", port, "", TIMEOUT).await else {
            panic!("it succeeded");
        };
        assert!(
            message.starts_with("error: this server does not implement the grpc health protocol"),
            "{message}"
        );
        server.abort();
        let _ = server.await;
        let nobody = probe("127.0.0.1", port, "", Duration::from_secs(1)).await;
        assert_eq!(
            nobody,
            Outcome::Failure(format!(
                "timeout: failed to connect service \"127.0.0.1:{port}\" within 1s: context deadline exceeded"
            ))
        );
    }
}
