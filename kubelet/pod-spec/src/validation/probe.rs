//! Rules of probes and lifecycle hooks.

use k8s_openapi::{
    api::core::v1::{
        Container, ExecAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::context::PodContext;
use crate::{
    field::{Faults, Path},
    names, stop_signal,
};

pub(super) fn validate(
    container: &Container,
    init: bool,
    pod: &PodContext<'_>,
    path: &Path,
    faults: &mut Faults,
) {
    let probes = [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    // A sidecar keeps running and may have probes and hooks like a regular container.
    if init && container.restart_policy.as_deref() != Some("Always") {
        let hooks = container.lifecycle.as_ref().map(|_| "lifecycle");
        for field in probes
            .iter()
            .filter_map(|(field, probe)| probe.as_ref().map(|_| *field))
            .chain(hooks)
        {
            faults.forbidden(
                &path.child(field),
                "may not be set for init containers without restartPolicy=Always",
            );
        }
        return;
    }
    for (field, probe) in probes {
        if let Some(probe) = probe {
            validate_probe(probe, field, &path.child(field), faults);
        }
    }
    if let Some(lifecycle) = &container.lifecycle {
        let path = path.child("lifecycle");
        for (field, handler) in [
            ("postStart", &lifecycle.post_start),
            ("preStop", &lifecycle.pre_stop),
        ] {
            if let Some(handler) = handler {
                validate_hook(
                    handler,
                    pod.termination_grace_period,
                    &path.child(field),
                    faults,
                );
            }
        }
        if let Some(name) = &lifecycle.stop_signal {
            let path = path.child("stopSignal");
            if !pod.names_os {
                let why = "may not be set for containers with empty `spec.os.name`";
                faults.forbidden(&path, why);
            } else if stop_signal::parse(name).is_none() {
                faults.invalid(&path, name, "must be the name of a signal, such as SIGTERM");
            }
        }
    }
}

fn validate_probe(probe: &Probe, field: &str, path: &Path, faults: &mut Faults) {
    let handlers = [
        ("exec", probe.exec.is_some()),
        ("httpGet", probe.http_get.is_some()),
        ("tcpSocket", probe.tcp_socket.is_some()),
        ("grpc", probe.grpc.is_some()),
    ];
    exactly_one(&handlers, path, faults);
    exec(probe.exec.as_ref(), path, faults);
    http_get(probe.http_get.as_ref(), path, faults);
    tcp_socket(probe.tcp_socket.as_ref(), path, faults);
    if let Some(grpc) = &probe.grpc {
        faults.port(&path.child("grpc").child("port"), grpc.port);
    }
    for (name, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        faults.non_negative(&path.child(name), i64::from(value.unwrap_or_default()));
    }
    if field != "readinessProbe"
        && let Some(threshold) = probe.success_threshold
        && threshold != 1
    {
        faults.invalid(&path.child("successThreshold"), threshold, "must be 1");
    }
    if let Some(seconds) = probe.termination_grace_period_seconds {
        let path = path.child("terminationGracePeriodSeconds");
        if field == "readinessProbe" {
            faults.invalid(&path, seconds, "must not be set for readinessProbes");
        } else if seconds <= 0 {
            faults.invalid(&path, seconds, "must be greater than 0");
        }
    }
}

fn validate_hook(
    handler: &LifecycleHandler,
    termination_grace_period: i64,
    path: &Path,
    faults: &mut Faults,
) {
    let handlers = [
        ("exec", handler.exec.is_some()),
        ("httpGet", handler.http_get.is_some()),
        ("tcpSocket", handler.tcp_socket.is_some()),
        ("sleep", handler.sleep.is_some()),
    ];
    exactly_one(&handlers, path, faults);
    exec(handler.exec.as_ref(), path, faults);
    http_get(handler.http_get.as_ref(), path, faults);
    tcp_socket(handler.tcp_socket.as_ref(), path, faults);
    if let Some(sleep) = &handler.sleep
        && !(0..=termination_grace_period).contains(&sleep.seconds)
    {
        faults.invalid(
            &path.child("sleep"),
            sleep.seconds,
            format_args!(
                "must be non-negative and not more than terminationGracePeriodSeconds ({termination_grace_period})"
            ),
        );
    }
}

fn exactly_one(handlers: &[(&str, bool)], path: &Path, faults: &mut Faults) {
    let mut given = handlers.iter().filter(|(_, given)| *given);
    if given.next().is_none() {
        faults.required(path, "must specify a handler type");
    }
    for (name, _) in given {
        faults.forbidden(
            &path.child(name),
            "may not specify more than 1 handler type",
        );
    }
}

fn exec(action: Option<&ExecAction>, path: &Path, faults: &mut Faults) {
    if let Some(action) = action
        && action.command.as_deref().unwrap_or_default().is_empty()
    {
        faults.required(&path.child("exec").child("command"), "");
    }
}

fn http_get(action: Option<&HTTPGetAction>, path: &Path, faults: &mut Faults) {
    let Some(action) = action else {
        return;
    };
    let path = path.child("httpGet");
    if action.path.as_deref().unwrap_or_default().is_empty() {
        faults.required(&path.child("path"), "");
    }
    port(&action.port, &path.child("port"), faults);
    faults.one_of(
        &path.child("scheme"),
        action.scheme.as_deref().unwrap_or_default(),
        &["HTTP", "HTTPS"],
    );
    for (index, header) in action.http_headers.iter().flatten().enumerate() {
        faults.text(
            &path.child("httpHeaders").index(index).child("name"),
            &header.name,
            header_name,
        );
    }
}

fn header_name(name: &str) -> names::Rule {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if !name.is_empty() && name.bytes().all(token) {
        Ok(())
    } else {
        Err(
            "a valid HTTP header must consist of alphanumeric characters, '-' or '_' (e.g. 'X-Header-Name')",
        )
    }
}

fn tcp_socket(action: Option<&TCPSocketAction>, path: &Path, faults: &mut Faults) {
    if let Some(action) = action {
        port(&action.port, &path.child("tcpSocket").child("port"), faults);
    }
}

fn port(port: &IntOrString, path: &Path, faults: &mut Faults) {
    match port {
        IntOrString::Int(number) => faults.port(path, *number),
        IntOrString::String(name) => faults.text(path, name, names::port_name),
    }
}
