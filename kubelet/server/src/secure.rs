//! The secure port.

use std::{sync::Arc, time::Duration};

use axum::Router;
use cri_streaming::{bound::Bound, connections::ConnectionLimiter};
use kubelet_host::repeatable::blocking;
use kubelet_metrics::Collector;
use tokio::time;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    NodeView, ServerError,
    access::AccessControl,
    bounds::Gates,
    connection::{Limits, Service, secure_room},
    debugging,
    long_query::LongQueries,
    metrics::{HttpMetrics, ServerType},
    options::{CertificateSource, SecureOptions},
    reviews::Reviews,
    tls::{
        Tls,
        certificate::{CertificateFiles, ServingCertificate, SignedOrFiles},
        client_authority::ClientAuthority,
        self_signed,
    },
};

/// Interval of the checks for changed client authorities.
const AUTHORITY_PERIOD: Duration = Duration::from_secs(60);

/// The parts of the secure port that come from the API server; none on a standalone node.
#[derive(Clone, Debug, Default)]
pub struct ClusterDependencies {
    /// Reviews tokens and access.
    pub reviews: Option<Arc<dyn Reviews>>,
    /// The certificate that the API server signs (`serverTLSBootstrap`). It replaces a self-signed
    /// certificate, but not one from files.
    pub certificate: Option<Arc<dyn ServingCertificate>>,
    /// Collectors of the metrics that only a node in a cluster has.
    pub metrics: Vec<Arc<dyn Collector>>,
}

/// The secure port without its listener. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct SecurePort {
    options: Arc<SecureOptions>,
    tls: Arc<Tls>,
    access: Arc<AccessControl>,
    authority: Option<Arc<ClientAuthority>>,
    places: Arc<ConnectionLimiter>,
    gates: Gates,
}

impl SecurePort {
    /// Loads the certificate and the client authorities; creates a self-signed certificate if
    /// needed.
    pub(super) async fn new(
        options: &SecureOptions,
        cluster: ClusterDependencies,
    ) -> Result<Self, ServerError> {
        let options = Arc::new(options.clone());
        let ClusterDependencies {
            reviews,
            certificate: signed,
            metrics: _,
        } = cluster;
        let read = {
            let options = Arc::clone(&options);
            move || read(&options, signed)
        };
        let (certificate, authority) = match blocking(read).await {
            Ok(read) => read?,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        let node_name = &options.node_name;
        let access = AccessControl::new(&options.access, node_name, authority.clone(), reviews)?;
        let tls = Tls::new(certificate, authority.clone(), options.tls.clone());
        let room = secure_room();
        Ok(Self {
            options,
            tls: Arc::new(tls),
            access: Arc::new(access),
            authority,
            places: ConnectionLimiter::new("secure", room),
            gates: Gates::new("secure", room),
        })
    }

    /// The bounds on its clients.
    pub(super) fn bounds(&self) -> Vec<Arc<Bound>> {
        let mut bounds = Vec::from(self.places.bounds());
        bounds.extend(self.gates.bounds());
        bounds.extend(self.access.bounds());
        bounds
    }

    /// All routes: those of the read-only port, and the secure port's own.
    pub(super) fn routes<V: NodeView>(
        &self,
        view: V,
        read_only: Router,
        tasks: &TaskTracker,
        cancel: &CancellationToken,
    ) -> Router {
        read_only.merge(debugging::routes(
            view,
            &self.options,
            &self.gates,
            tasks,
            cancel,
        ))
    }

    /// The routes behind TLS and access control.
    pub(super) fn service(&self, routes: Router, metrics: Arc<HttpMetrics>) -> Service {
        Service {
            routes,
            limits: Limits::SECURE,
            places: Arc::clone(&self.places),
            counted: Some((metrics, ServerType::ReadWrite)),
            guard: Some((Arc::clone(&self.tls), Arc::clone(&self.access))),
            long_queries: Some(LongQueries::default()),
        }
    }

    /// Reloads changed client authorities until `cancel`, also while no new connection triggers it.
    pub(super) async fn watch_authority(self, cancel: CancellationToken) {
        let Some(authority) = self.authority else {
            return;
        };
        loop {
            let period = time::sleep(AUTHORITY_PERIOD);
            if cancel.run_until_cancelled(period).await.is_none() {
                return;
            }
            let authority = Arc::clone(&authority);
            // A panic is a bug, which the next check would show again.
            let _ = blocking(move || authority.refresh()).await;
        }
    }
}

type CertificateAndAuthority = (Arc<dyn ServingCertificate>, Option<Arc<ClientAuthority>>);

fn read(
    options: &SecureOptions,
    signed: Option<Arc<dyn ServingCertificate>>,
) -> Result<CertificateAndAuthority, ServerError> {
    let certificate: Arc<dyn ServingCertificate> = match (&options.certificate, signed) {
        (CertificateSource::Files { certificate, key }, Some(signed)) => Arc::new(SignedOrFiles {
            signed,
            files: CertificateFiles::load(certificate, key)?,
        }),
        (CertificateSource::Files { certificate, key }, None) => {
            Arc::new(CertificateFiles::load(certificate, key)?)
        }
        (CertificateSource::SelfSigned(_), Some(signed)) => signed,
        (CertificateSource::SelfSigned(dir), None) => {
            let [certificate, key] = self_signed::ensure(dir, &options.node_name)?;
            Arc::new(CertificateFiles::load(&certificate, &key)?)
        }
    };
    let authority = match &options.access.authentication.client_ca_file {
        Some(path) => Some(Arc::new(ClientAuthority::load(path)?)),
        None => None,
    };
    Ok((certificate, authority))
}
