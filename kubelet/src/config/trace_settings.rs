//! The configuration of traces.

use kubelet_traces::ExportOptions;

use super::{faults::Faults, kubelet_configuration::KubeletConfiguration};

/// The collector on this machine, as in upstream.
const DEFAULT_ENDPOINT: &str = "localhost:4317";
const MILLION: i32 = 1_000_000;

/// The export of traces; none without `tracing`.
pub(super) fn export(config: &KubeletConfiguration) -> Option<ExportOptions> {
    let tracing = config.tracing.as_ref()?;
    let endpoint = tracing.endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT);
    let rate = tracing.sampling_rate_per_million.unwrap_or_default();
    Some(ExportOptions {
        endpoint: endpoint.to_owned(),
        sampling_rate_per_million: u32::try_from(rate).unwrap_or_default(),
    })
}

pub(super) fn validate(config: &KubeletConfiguration, faults: &mut Faults) {
    let Some(tracing) = &config.tracing else {
        return;
    };
    let rate = tracing.sampling_rate_per_million;
    faults.range("tracing.samplingRatePerMillion", rate, (0, MILLION));
    let endpoint = tracing.endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT);
    let scheme = endpoint.split_once("://").map(|(scheme, _)| scheme);
    let is_abstract = endpoint.starts_with("unix-abstract:");
    // Another name server than the machine's.
    let names_server = endpoint
        .strip_prefix("dns://")
        .is_some_and(|rest| rest.find('/').is_some_and(|at| at > 0));
    if is_abstract || names_server || !matches!(scheme, None | Some("dns" | "unix")) {
        let rule = "must be a host and port, or a socket, such as unix:///run/otlp.sock";
        faults.add("tracing.endpoint", format_args!("{endpoint:?}"), rule);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::kubelet_configuration::Tracing;

    fn faults(endpoint: Option<&str>, rate: Option<i32>) -> Vec<String> {
        let config = KubeletConfiguration {
            tracing: Some(Tracing {
                endpoint: endpoint.map(str::to_owned),
                sampling_rate_per_million: rate,
            }),
            ..KubeletConfiguration::default()
        };
        let mut faults = Faults::default();
        validate(&config, &mut faults);
        let options = export(&config).unwrap();
        assert_eq!(options.endpoint, endpoint.unwrap_or(DEFAULT_ENDPOINT));
        faults.into_list()
    }

    #[test]
    fn endpoints_and_rates_are_those_of_upstream() {
        for (endpoint, rate) in [
            (None, None),
            (Some("collector.example:4317"), Some(0)),
            (Some("192.0.2.1:4317"), Some(MILLION)),
            (Some("unix:///run/otlp.sock"), Some(1)),
            (Some("dns:///collector.example:4317"), None),
        ] {
            assert_eq!(faults(endpoint, rate), [""; 0], "{endpoint:?}");
        }
        for (endpoint, rate, field) in [
            (Some("http://collector.example"), None, "tracing.endpoint: "),
            (Some("unix-abstract:otlp"), None, "tracing.endpoint: "),
            (
                Some("dns://192.0.2.1/collector:4317"),
                None,
                "tracing.endpoint: ",
            ),
            (None, Some(-1), "tracing.samplingRatePerMillion: "),
            (None, Some(MILLION + 1), "tracing.samplingRatePerMillion: "),
        ] {
            let faults = faults(endpoint, rate);
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].starts_with(field), "{faults:?}");
        }
        assert_eq!(export(&KubeletConfiguration::default()), None);
    }
}
