//! Options of the servers: addresses, TLS, who is let in, and which handlers there are.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use kubelet_http::roots::Roots;
use serde_json::Value;

use super::tls::parameters::TlsParameters;

/// Which addresses are served.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// `/healthz` (`healthzBindAddress`, `healthzPort`).
    pub healthz: Option<SocketAddr>,
    /// What upstream serves without authentication (`address`, `readOnlyPort`).
    pub read_only: Option<SocketAddr>,
    /// The secure port; not opened when unset (`enableServer`).
    pub secure: Option<SecureOptions>,
}

/// The secure port.
#[derive(Clone, Debug)]
pub struct SecureOptions {
    /// Where (`address`, `port`).
    pub address: SocketAddr,
    /// Name of this node: in its certificate, and in questions about access to it.
    pub node_name: String,
    /// The kubelet's own files (`--root-dir`).
    pub root_dir: PathBuf,
    /// Its certificate, unless the API server signs one.
    pub certificate: CertificateSource,
    /// Versions and cipher suites (`tlsMinVersion`, `tlsCipherSuites`).
    pub tls: TlsParameters,
    /// Who is let in.
    pub access: AccessOptions,
    /// What is served.
    pub handlers: HandlerOptions,
    /// Who vouches for a runtime that streams over TLS.
    pub streaming_roots: Roots,
    /// The configuration in effect, as `/configz` shows it.
    pub configz: Value,
}

/// Where the certificate of the secure port comes from.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// From these files (`tlsCertFile`, `tlsPrivateKeyFile`).
    Files {
        /// The certificate, and those between it and its authority.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// Made once, and kept in this directory (`--cert-dir`).
    SelfSigned(PathBuf),
}

/// Who is let in to the secure port.
#[derive(Clone, Debug, Default)]
pub struct AccessOptions {
    /// How callers show who they are.
    pub authentication: AuthenticationOptions,
    /// What they may do.
    pub authorization: AuthorizationMode,
}

/// How callers show who they are.
#[derive(Clone, Debug, Default)]
pub struct AuthenticationOptions {
    /// Authorities of client certificates (`authentication.x509.clientCAFile`).
    pub client_ca_file: Option<PathBuf>,
    /// Bearer tokens are reviewed by the API server (`authentication.webhook.enabled`).
    pub webhook: bool,
    /// How long reviewed tokens are remembered (`authentication.webhook.cacheTTL`).
    pub cache_ttl: Duration,
    /// Who shows nothing is let in as nobody in particular
    /// (`authentication.anonymous.enabled`).
    pub anonymous: bool,
}

impl AuthenticationOptions {
    /// Whether anybody at all can be let in.
    pub const fn is_possible(&self) -> bool {
        self.client_ca_file.is_some() || self.webhook || self.anonymous
    }
}

/// What callers may do (`authorization.mode`).
#[derive(Clone, Copy, Debug, Default)]
pub enum AuthorizationMode {
    /// Everything.
    #[default]
    AlwaysAllow,
    /// What the API server says.
    Webhook {
        /// How long yes is remembered (`authorization.webhook.cacheAuthorizedTTL`).
        authorized_ttl: Duration,
        /// How long no is remembered (`authorization.webhook.cacheUnauthorizedTTL`).
        unauthorized_ttl: Duration,
    },
}

/// Which handlers there are on the secure port.
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
}

impl Default for HandlerOptions {
    /// All of them.
    fn default() -> Self {
        Self {
            debugging: true,
            system_log: true,
            profiling: true,
            debug_flags: true,
        }
    }
}
