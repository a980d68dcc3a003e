//! `cpuManagerPolicyOptions` of the static policy.

use std::collections::BTreeMap;

use kubelet_host::go_bool;

/// The options of the static policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StaticOptions {
    /// `full-pcpus-only`: containers do not share cores.
    pub full_cores: bool,
    /// `distribute-cpus-across-numa`
    pub across_numa_nodes: bool,
    /// `align-by-socket`
    pub align_by_socket: bool,
    /// `distribute-cpus-across-cores`
    pub across_cores: bool,
    /// `strict-cpu-reservation`: no container uses reserved CPUs.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`
    pub prefer_uncore_caches: bool,
}

/// The feature gates that the options need.
#[derive(Debug, Clone, Copy)]
pub struct OptionGates {
    /// `CPUManagerPolicyAlphaOptions`
    pub alpha: bool,
    /// `CPUManagerPolicyBetaOptions`
    pub beta: bool,
}

const ALPHA: [&str; 2] = ["align-by-socket", "distribute-cpus-across-cores"];
const BETA: [&str; 1] = ["distribute-cpus-across-numa"];
/// Pairs that contradict each other.
const CONFLICTS: [(&str, &str); 4] = [
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    (
        "distribute-cpus-across-numa",
        "distribute-cpus-across-cores",
    ),
    (
        "prefer-align-cpus-by-uncorecache",
        "distribute-cpus-across-cores",
    ),
    (
        "prefer-align-cpus-by-uncorecache",
        "distribute-cpus-across-numa",
    ),
];

impl StaticOptions {
    /// Parses the options.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub fn parse(options: &BTreeMap<String, String>, gates: OptionGates) -> Result<Self, String> {
        let mut parsed = Self::default();
        for (name, value) in options {
            let is_disabled = |gated: &[&str], gate: bool| gated.contains(&name.as_str()) && !gate;
            if is_disabled(&ALPHA, gates.alpha) {
                return Err(format!(
                    "{name}: requires the feature gate CPUManagerPolicyAlphaOptions"
                ));
            }
            if is_disabled(&BETA, gates.beta) {
                return Err(format!(
                    "{name}: requires the feature gate CPUManagerPolicyBetaOptions"
                ));
            }
            let option = parsed.option(name).ok_or_else(|| {
                format!("{name}: not an option of the static policy of the CPU manager")
            })?;
            *option = go_bool::parse(value)
                .ok_or_else(|| format!("{name}: {value:?} is neither true nor false"))?;
        }
        for (one, other) in CONFLICTS {
            let is_set = |option: Option<&mut bool>| option.is_some_and(|set| *set);
            if is_set(parsed.option(one)) && is_set(parsed.option(other)) {
                return Err(format!("{one}: excludes {other}"));
            }
        }
        Ok(parsed)
    }

    fn option(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "full-pcpus-only" => &mut self.full_cores,
            "distribute-cpus-across-numa" => &mut self.across_numa_nodes,
            "align-by-socket" => &mut self.align_by_socket,
            "distribute-cpus-across-cores" => &mut self.across_cores,
            "strict-cpu-reservation" => &mut self.strict_reservation,
            "prefer-align-cpus-by-uncorecache" => &mut self.prefer_uncore_caches,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATES: OptionGates = OptionGates {
        alpha: true,
        beta: true,
    };

    fn parse(options: &[(&str, &str)], gates: OptionGates) -> Result<StaticOptions, String> {
        let options = options.iter();
        let options = options.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        StaticOptions::parse(&options.collect(), gates)
    }

    #[test]
    fn each_option_is_set() {
        let parsed = parse(
            &[
                ("align-by-socket", "true"),
                ("full-pcpus-only", "1"),
                ("distribute-cpus-across-numa", "T"),
                ("distribute-cpus-across-cores", "false"),
                ("strict-cpu-reservation", "True"),
                ("prefer-align-cpus-by-uncorecache", "0"),
            ],
            GATES,
        );
        let expected = StaticOptions {
            full_cores: true,
            across_numa_nodes: true,
            align_by_socket: true,
            across_cores: false,
            strict_reservation: true,
            prefer_uncore_caches: false,
        };
        assert_eq!(parsed, Ok(expected));
        assert!(
            parse(&[("distribute-cpus-across-cores", "true")], GATES)
                .unwrap()
                .across_cores
        );
        assert!(
            parse(&[("prefer-align-cpus-by-uncorecache", "true")], GATES)
                .unwrap()
                .prefer_uncore_caches
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let beta_only = OptionGates {
            alpha: false,
            beta: true,
        };
        let none = OptionGates {
            alpha: false,
            beta: false,
        };
        for (options, gates, says) in [
            (&[("x", "true")][..], GATES, "x: not an option"),
            (&[("full-pcpus-only", "yes")], GATES, "\"yes\""),
            (
                &[("align-by-socket", "true")],
                beta_only,
                "CPUManagerPolicyAlphaOptions",
            ),
            (
                &[("distribute-cpus-across-numa", "true")],
                none,
                "CPUManagerPolicyBetaOptions",
            ),
            (
                &[
                    ("full-pcpus-only", "true"),
                    ("distribute-cpus-across-cores", "true"),
                ],
                GATES,
                "full-pcpus-only: excludes distribute-cpus-across-cores",
            ),
        ] {
            let error = parse(options, gates).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
