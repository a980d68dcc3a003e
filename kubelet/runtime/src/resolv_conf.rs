//! Tells by an event of the node when its `resolv.conf` exceeds the limits of resolvers: pods that
//! use it, with or without the cluster's domains, would get a part of it.

use std::time::Duration;

use kubelet_api_client::events::{EventRecorder, Subject, reason};
use tokio::time;
use tokio_util::sync::CancellationToken;

use crate::dns::{self, DnsOptions, MAX_DOMAIN, MAX_SEARCH_CHARS, MAX_SEARCHES};

/// Between two looks at the file.
const PERIOD: Duration = Duration::from_secs(30);
/// Search domains of a pod that come from the cluster's domain.
const CLUSTER_SEARCHES: usize = 3;

/// Records what is wrong with the file, once until that changes, until cancelled.
pub(crate) async fn watch(options: &DnsOptions, events: &EventRecorder, cancel: CancellationToken) {
    if options.resolv_conf.is_none() {
        return;
    }
    let watch = async {
        let mut told = None;
        loop {
            let fault = fault(options).await;
            if fault != told
                && let Some(fault) = &fault
            {
                let reason = reason::CHECK_LIMITS_FOR_RESOLV_CONF;
                events.warning(Subject::Node, reason, fault);
            }
            told = fault;
            time::sleep(PERIOD).await;
        }
    };
    cancel.run_until_cancelled(watch).await;
}

/// What is wrong with the file, in upstream's words.
async fn fault(options: &DnsOptions) -> Option<String> {
    let path = options.resolv_conf.as_deref()?;
    let searches = match dns::read(path).await {
        Ok(config) => config.searches,
        Err(error) => return Some(error.to_string()),
    };
    let limit = match options.cluster_domain.as_str() {
        "" => MAX_SEARCHES,
        _ => MAX_SEARCHES - CLUSTER_SEARCHES,
    };
    let path = path.display();
    let has_long = searches.iter().any(|search| search.len() > MAX_DOMAIN);
    if searches.len() > limit {
        Some(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {limit} \
             domains!"
        ))
    } else if has_long {
        Some(format!(
            "Resolv.conf file \"{path}\" contains a search path which length is more than allowed \
             {MAX_DOMAIN} chars!"
        ))
    } else if searches.join(" ").len() > MAX_SEARCH_CHARS {
        Some(format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed \
             {MAX_SEARCH_CHARS} chars!"
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn options(path: &Path, cluster_domain: &str) -> DnsOptions {
        DnsOptions {
            resolv_conf: Some(path.to_owned()),
            cluster_domain: cluster_domain.to_owned(),
            ..DnsOptions::default()
        }
    }

    fn searches(count: usize, length: usize) -> String {
        let domains: Vec<_> = (0..count).map(|i| format!("{i:0length$}")).collect();
        format!("nameserver 192.0.2.1\nsearch {}\n", domains.join(" "))
    }

    #[tokio::test]
    async fn limits_of_resolvers_and_of_the_clusters_domain_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let shown = path.display();
        for (text, domain, fault_found) in [
            (searches(29, 9), "cluster.local", None),
            (searches(32, 9), "", None),
            (searches(8, 253), "", None),
            (
                searches(30, 9),
                "cluster.local",
                Some(format!(
                    "Resolv.conf file '{shown}' contains search line consisting of more than 29 \
                     domains!"
                )),
            ),
            (
                searches(33, 9),
                "",
                Some(format!(
                    "Resolv.conf file '{shown}' contains search line consisting of more than 32 \
                     domains!"
                )),
            ),
            (
                searches(1, 254),
                "",
                Some(format!(
                    "Resolv.conf file \"{shown}\" contains a search path which length is more \
                     than allowed 253 chars!"
                )),
            ),
            (
                searches(9, 253),
                "",
                Some(format!(
                    "Resolv.conf file '{shown}' contains search line which length is more than \
                     allowed 2048 chars!"
                )),
            ),
            (
                "nameserver\n".to_owned(),
                "",
                Some(format!("{path:?}: a nameserver line has no address")),
            ),
        ] {
            fs::write(&path, &text).unwrap();
            assert_eq!(fault(&options(&path, domain)).await, fault_found, "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fault_is_told_once_until_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let (events, mut told) = EventRecorder::new("node");
        let options = options(&path, "");
        let cancel = CancellationToken::new();
        fs::write(&path, searches(33, 9)).unwrap();
        let change = async {
            for text in [searches(2, 9), searches(33, 9)] {
                time::sleep(3 * PERIOD).await;
                fs::write(&path, text).unwrap();
            }
            time::sleep(3 * PERIOD).await;
            cancel.cancel();
        };
        tokio::join!(watch(&options, &events, cancel.clone()), change);
        let mut reasons = Vec::new();
        while let Ok(event) = told.try_recv() {
            reasons.push(event.reason.unwrap());
        }
        assert_eq!(reasons, ["CheckLimitsForResolvConf"; 2]);
    }
}
