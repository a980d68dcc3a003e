//! The options of the kubelet's servers, from the configuration.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use kubelet_http::roots::Roots;
use kubelet_pod_spec::json;
use kubelet_server::{
    options::{
        AccessOptions, AuthenticationOptions, AuthorizationMode, CertificateSource, HandlerOptions,
        SecureOptions, ServerOptions,
    },
    tls::parameters::TlsParameters,
};
use serde_json::{Map, Value};

use super::{
    feature_gates::{CHECKPOINT, FLAGZ, STATUSZ, is_on},
    flags::Flags,
    flagz::flagz,
    kubelet_configuration::{API_VERSION, KIND, KubeletConfiguration},
    values::span,
};

/// The program that reads the journal, found in PATH.
const JOURNAL: &str = "journalctl";

/// The authorization mode, as a JSON pointer.
const MODE: &str = "/authorization/mode";

/// The faults in the fields of the servers.
pub(super) fn validate(config: &KubeletConfiguration) -> Vec<String> {
    let mut faults = tls(config).err().unwrap_or_default();
    let files = [
        ("tlsCertFile", &config.tls_cert_file),
        ("tlsPrivateKeyFile", &config.tls_private_key_file),
    ];
    for [(missing, path), (given, other)] in [files, [files[1], files[0]]] {
        if path.is_empty() && !other.is_empty() {
            faults.push(format!("{missing}: must be set because {given} is set"));
        }
    }
    faults
}

fn tls(config: &KubeletConfiguration) -> Result<TlsParameters, Vec<String>> {
    TlsParameters::parse(
        &config.tls_min_version,
        &config.tls_cipher_suites,
        &config.tls_curve_preferences,
    )
}

/// The configuration as given, and where it comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct GivenConfig<'a> {
    /// The configuration without defaults.
    pub(super) config: &'a Value,
    pub(super) flags: &'a Flags,
    pub(super) has_api_server: bool,
}

impl GivenConfig<'_> {
    /// Whether a field, as a JSON pointer, was set.
    fn is_set(self, field: &str) -> bool {
        self.config.pointer(field).is_some()
    }

    /// Whether it comes from a file, not from flags alone.
    const fn has_file(self) -> bool {
        self.flags.config.is_some() || self.flags.config_dir.is_some()
    }
}

/// The server options of a configuration with defaults. Without an API server webhooks are used
/// only if configured explicitly, and the servers then refuse to start. Webhook authorization is
/// also used if callers can authenticate and a file leaves the mode out.
pub(super) fn server_options(
    config: &KubeletConfiguration,
    given: GivenConfig<'_>,
    node_name: &str,
    [root_dir, cert_dir]: [&Path; 2],
) -> ServerOptions {
    let address = |address: &str, port: i32| {
        let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
        Some(SocketAddr::new(address.parse().ok()?, port))
    };
    let enabled = config.enable_server != Some(false);
    let configz = configz(config);
    let secure = address(&config.address, config.port).filter(|_| enabled);
    ServerOptions {
        healthz: address(
            &config.healthz_bind_address,
            config.healthz_port.unwrap_or_default(),
        ),
        read_only: address(&config.address, config.read_only_port),
        secure: secure.map(|address| SecureOptions {
            address,
            node_name: node_name.to_owned(),
            root_dir: root_dir.to_owned(),
            certificate: match config.tls_cert_file.as_str() {
                "" => CertificateSource::SelfSigned(cert_dir.to_owned()),
                certificate => CertificateSource::Files {
                    certificate: PathBuf::from(certificate),
                    key: PathBuf::from(&config.tls_private_key_file),
                },
            },
            tls: tls(config).unwrap_or_default(),
            access: access_options(config, given),
            handlers: HandlerOptions {
                debugging: config.enable_debugging_handlers != Some(false),
                system_log: config.enable_system_log_handler != Some(false),
                profiling: config.enable_profiling_handler != Some(false),
                debug_flags: config.enable_debug_flags_handler != Some(false),
                checkpoint: is_on(config, CHECKPOINT),
                statusz: is_on(config, STATUSZ),
                flagz: is_on(config, FLAGZ),
            },
            journal: (config.enable_system_log_query == Some(true)).then(|| JOURNAL.into()),
            streaming_roots: Roots::of_this_machine(),
            flagz: flagz(given.flags, &configz["kubeletconfig"]),
            configz,
        }),
    }
}

/// A warning if callers can authenticate and no authorization mode is set, so that every request is
/// allowed.
pub(super) fn warning(options: &ServerOptions, given: GivenConfig<'_>) -> Option<String> {
    let access = &options.secure.as_ref()?.access;
    let is_left_out = !given.is_set(MODE) && access.authentication.is_possible();
    let allows = matches!(access.authorization, AuthorizationMode::AlwaysAllow);
    (is_left_out && allows).then(|| {
        "authorization.mode (--authorization-mode) is not set, and defaults to AlwaysAllow \
         without a configuration file: every caller may do everything; set it if this is intended"
            .to_owned()
    })
}

fn access_options(config: &KubeletConfiguration, given: GivenConfig<'_>) -> AccessOptions {
    let is_asked_for = |field: &str| given.has_api_server || given.is_set(field);
    let (authentication, authorization) = (&config.authentication, &config.authorization);
    let ca_file = authentication.x509.client_ca_file.as_str();
    let authentication = AuthenticationOptions {
        client_ca_file: (!ca_file.is_empty()).then(|| PathBuf::from(ca_file)),
        webhook: authentication.webhook.enabled == Some(true)
            && is_asked_for("/authentication/webhook/enabled"),
        cache_ttl: span(authentication.webhook.cache_ttl),
        anonymous: authentication.anonymous.enabled == Some(true),
    };
    let serves_callers = given.has_file() && authentication.is_possible();
    AccessOptions {
        authentication,
        authorization: match authorization.mode.as_str() {
            "Webhook" if is_asked_for(MODE) || serves_callers => AuthorizationMode::Webhook {
                authorized_ttl: span(authorization.webhook.cache_authorized_ttl),
                unauthorized_ttl: span(authorization.webhook.cache_unauthorized_ttl),
            },
            _ => AuthorizationMode::AlwaysAllow,
        },
    }
}

/// The configuration as `/configz` shows it: without unset fields and secrets.
fn configz(config: &KubeletConfiguration) -> Value {
    let mut shown = config.clone();
    for values in shown.static_pod_url_header.values_mut() {
        *values = vec!["<masked>".to_owned()];
    }
    API_VERSION.clone_into(&mut shown.api_version);
    KIND.clone_into(&mut shown.kind);
    let mut value = json::to_value(&shown).unwrap_or(Value::Null);
    prune(&mut value);
    Value::Object(Map::from_iter([("kubeletconfig".to_owned(), value)]))
}

/// Removes unset fields, as upstream.
fn prune(value: &mut Value) {
    let Value::Object(fields) = value else {
        return;
    };
    fields.values_mut().for_each(prune);
    fields.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{flags::ShownValue, kubelet_defaults::set_defaults};

    fn options(given: &Value, has_api_server: bool) -> SecureOptions {
        let mut config = serde_json::from_value(given.clone()).unwrap();
        set_defaults(&mut config);
        let dirs = [Path::new("/root"), Path::new("/pki")];
        let field = |path| ShownValue::Field(path);
        let shown = [
            ("max-pods", field("maxPods")),
            ("cluster-dns", field("clusterDNS")),
            ("manifest-url-header", field("staticPodURLHeader")),
            (
                "node-labels",
                ShownValue::CommandLine(json!({"a": "b", "c": ""})),
            ),
            ("config", ShownValue::CommandLine(Value::Null)),
        ];
        let flags = Flags {
            config: Some("/etc/kubelet.yaml".into()),
            shown: shown.into(),
            ..Flags::default()
        };
        let given = GivenConfig {
            config: given,
            flags: &flags,
            has_api_server,
        };
        let options = server_options(&config, given, "node", dirs);
        options.secure.unwrap()
    }

    #[test]
    fn webhooks_without_an_api_server_are_used_only_when_asked_for() {
        let access = |given: &Value, has_api_server| {
            let access = options(given, has_api_server).access;
            let webhook = matches!(access.authorization, AuthorizationMode::Webhook { .. });
            (access.authentication.webhook, webhook)
        };
        assert_eq!(
            access(&json!({}), true),
            (true, true),
            "upstream's defaults"
        );
        assert_eq!(access(&json!({}), false), (false, false));
        let given = json!({
            "authentication": {"webhook": {"enabled": true}},
            "authorization": {"mode": "Webhook"},
        });
        assert_eq!(
            access(&given, false),
            (true, true),
            "and refused where it is built"
        );
    }

    #[test]
    fn the_configuration_is_shown_as_it_is_in_effect_and_without_secrets() {
        let given = json!({
            "maxPods": 7, "clusterDNS": ["192.0.2.1", "192.0.2.2"],
            "staticPodURLHeader": {"Authorization": ["secret"]},
        });
        let options = options(&given, true);
        let flags = [
            ("cluster-dns", "192.0.2.1,192.0.2.2"),
            ("config", ""),
            ("manifest-url-header", "Authorization=<masked>"),
            ("max-pods", "7"),
            ("node-labels", "a=b,c="),
        ];
        let flags = flags.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(options.flagz, flags.into());
        let shown = options.configz;
        let config = &shown["kubeletconfig"];
        assert_eq!(config["maxPods"], 7);
        assert_eq!(config["syncFrequency"], "1m0s");
        assert_eq!(config["authorization"]["mode"], "Webhook");
        assert_eq!(config["staticPodURLHeader"]["Authorization"][0], "<masked>");
        assert_eq!(config.get("staticPodURL"), None);
        assert_eq!(config["apiVersion"], "kubelet.config.k8s.io/v1beta1");
        assert_eq!(config["kind"], "KubeletConfiguration");
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let config = serde_json::from_value(json!({"tlsCertFile": "/a.crt"})).unwrap();
        let faults = validate(&config);
        assert_eq!(
            faults,
            ["tlsPrivateKeyFile: must be set because tlsCertFile is set"]
        );
    }
}
