//! Options of the servers: addresses, TLS, access control, and enabled handlers.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use kubelet_http::roots::Roots;
use serde_json::Value;

use super::tls::parameters::TlsParameters;

/// The addresses to serve on.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Address of `/healthz` (`healthzBindAddress`, `healthzPort`).
    pub healthz: Option<SocketAddr>,
    /// Address of the read-only API, which has no authentication (`address`, `readOnlyPort`).
    pub read_only: Option<SocketAddr>,
    /// The secure port; not opened when unset (`enableServer`).
    pub secure: Option<SecureOptions>,
}

/// Options of the secure port.
#[derive(Clone, Debug)]
pub struct SecureOptions {
    /// Its address (`address`, `port`).
    pub address: SocketAddr,
    /// Name of this node, for its certificate and for access reviews.
    pub node_name: String,
    /// The kubelet's root directory (`--root-dir`).
    pub root_dir: PathBuf,
    /// Source of its certificate, unless the API server signs one.
    pub certificate: CertificateSource,
    /// TLS versions and cipher suites (`tlsMinVersion`, `tlsCipherSuites`).
    pub tls: TlsParameters,
    /// Authentication and authorization.
    pub access: AccessOptions,
    /// Enabled handlers.
    pub handlers: HandlerOptions,
    /// The program that reads the journal for `/logs/?query=` (`enableSystemLogQuery`).
    pub journal: Option<PathBuf>,
    /// Root certificates for a runtime whose streaming server uses TLS.
    pub streaming_roots: Roots,
    /// The configuration in effect, as served by `/configz`.
    pub configz: Value,
    /// The flags and their values, as served by `/flagz`.
    pub flagz: BTreeMap<String, String>,
}

/// Source of the secure port's certificate.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// Files (`tlsCertFile`, `tlsPrivateKeyFile`).
    Files {
        /// The certificate, followed by the intermediate certificates.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// A self-signed certificate, created once and kept in this directory (`--cert-dir`).
    SelfSigned(PathBuf),
}

/// Access control of the secure port.
#[derive(Clone, Debug, Default)]
pub struct AccessOptions {
    /// Authentication of callers.
    pub authentication: AuthenticationOptions,
    /// Authorization of callers.
    pub authorization: AuthorizationMode,
}

/// Authentication of callers.
#[derive(Clone, Debug, Default)]
pub struct AuthenticationOptions {
    /// Authorities of client certificates (`authentication.x509.clientCAFile`).
    pub client_ca_file: Option<PathBuf>,
    /// Whether the API server reviews bearer tokens (`authentication.webhook.enabled`).
    pub webhook: bool,
    /// How long reviewed tokens are cached (`authentication.webhook.cacheTTL`).
    pub cache_ttl: Duration,
    /// Whether requests without credentials are anonymous requests instead of being rejected
    /// (`authentication.anonymous.enabled`).
    pub anonymous: bool,
}

impl AuthenticationOptions {
    /// Whether any authentication method is enabled.
    pub const fn is_possible(&self) -> bool {
        self.client_ca_file.is_some() || self.webhook || self.anonymous
    }
}

/// Authorization of callers (`authorization.mode`).
#[derive(Clone, Copy, Debug, Default)]
pub enum AuthorizationMode {
    /// Allows everything.
    #[default]
    AlwaysAllow,
    /// Asks the API server.
    Webhook {
        /// How long an allowed request is cached (`authorization.webhook.cacheAuthorizedTTL`).
        authorized_ttl: Duration,
        /// How long a denied request is cached (`authorization.webhook.cacheUnauthorizedTTL`).
        unauthorized_ttl: Duration,
    },
}

/// The enabled handlers of the secure port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandlerOptions {
    /// Logs, commands, streams and configuration (`enableDebuggingHandlers`).
    pub debugging: bool,
    /// `/logs/` (`enableSystemLogHandler`).
    pub system_log: bool,
    /// `/debug/pprof/` (`enableProfilingHandler`).
    pub profiling: bool,
    /// `/debug/flags/v` (`enableDebugFlagsHandler`).
    pub debug_flags: bool,
    /// `/checkpoint/` (feature gate `ContainerCheckpoint`).
    pub checkpoint: bool,
    /// `/statusz` (feature gate `ComponentStatusz`).
    pub statusz: bool,
    /// `/flagz` (feature gate `ComponentFlagz`).
    pub flagz: bool,
}

impl Default for HandlerOptions {
    /// All handlers are enabled.
    fn default() -> Self {
        Self {
            debugging: true,
            system_log: true,
            profiling: true,
            debug_flags: true,
            checkpoint: true,
            statusz: true,
            flagz: true,
        }
    }
}
