//! The CSI drivers that are registered with this kubelet.

use std::{collections::BTreeMap, fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use kubelet_metrics::{Collector, Exposition};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};

use super::{
    client::{CsiError, NodeClient},
    metrics::CsiMetrics,
};

/// How long a pod waits for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The drivers by name.
#[derive(Debug, Default)]
pub struct DriverStore {
    drivers: Mutex<BTreeMap<String, Driver>>,
    /// Questions how many volumes of a driver the node can have now.
    questions: Mutex<Vec<Question>>,
    asked: Notify,
    metrics: Arc<CsiMetrics>,
}

/// Asks how many volumes of a driver the node can have now.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) driver: String,
    _answer: oneshot::Sender<()>,
}

/// A driver. Drivers that have the same name differ in their versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Driver {
    /// Socket of its node service.
    pub(super) endpoint: PathBuf,
    /// The highest 1.x version of CSI that it supports.
    pub(super) version: Version,
}

impl DriverStore {
    /// A client of a driver, for one operation.
    pub(super) fn client(&self, name: &str) -> Result<NodeClient, CsiError> {
        match self.drivers.lock().get(name) {
            Some(driver) => Ok(self.client_of(name, driver)),
            None => Err(CsiError::NotRegistered(name.to_owned())),
        }
    }

    /// A client of a driver that need not be registered.
    pub(super) fn client_of(&self, name: &str, driver: &Driver) -> NodeClient {
        NodeClient::new(name, &driver.endpoint, Arc::clone(&self.metrics))
    }

    /// The names of all drivers.
    pub(super) fn names(&self) -> Vec<String> {
        self.drivers.lock().keys().cloned().collect()
    }

    /// Returns once a driver was asked again how many of its volumes the node can have, or that takes
    /// too long.
    pub(super) async fn ask_again(&self, name: &str) {
        let (answer, answered) = oneshot::channel();
        let question = Question {
            driver: name.to_owned(),
            _answer: answer,
        };
        self.questions.lock().push(question);
        self.asked.notify_one();
        let _ = timeout(ANSWER_LIMIT, answered).await;
    }

    /// Takes the questions. They are answered when they are dropped.
    pub(super) fn take_questions(&self) -> Vec<Question> {
        std::mem::take(&mut *self.questions.lock())
    }

    /// Returns once there is a question.
    pub(super) async fn has_questions(&self) {
        self.asked.notified().await;
    }

    pub(super) fn version(&self, name: &str) -> Option<Version> {
        self.drivers
            .lock()
            .get(name)
            .map(|driver| driver.version.clone())
    }

    /// Adds a driver, unless one of the same name is at least as new.
    ///
    /// # Errors
    /// The version of the existing driver.
    pub(super) fn put(&self, name: &str, driver: Driver) -> Result<(), Version> {
        let mut drivers = self.drivers.lock();
        match drivers.get(name) {
            Some(known) if known.version >= driver.version => Err(known.version.clone()),
            _ => {
                drivers.insert(name.to_owned(), driver);
                Ok(())
            }
        }
    }

    /// Removes a driver, unless another one of the same name has replaced it.
    pub(super) fn remove(&self, name: &str, driver: &Driver) {
        let mut drivers = self.drivers.lock();
        if drivers.get(name) == Some(driver) {
            drivers.remove(name);
        }
    }
}

impl Collector for DriverStore {
    /// Durations of calls to drivers.
    fn collect(&self, page: &mut Exposition) {
        self.metrics.collect(page);
    }
}

/// A version: numbers, the most significant first. Any suffix is ignored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(Vec<u32>);

impl Version {
    /// The highest of a driver's versions that this kubelet supports: 1.x.
    pub(super) fn newest_supported(versions: &[String]) -> Result<Self, String> {
        let mut newest = None;
        let mut unread = None;
        for version in versions {
            match version.parse::<Self>() {
                Ok(version) if version.major() <= 1 => newest = newest.max(Some(version)),
                Ok(_) => {}
                Err(error) => unread = Some(error),
            }
        }
        match newest {
            Some(version) if version.major() == 1 => Ok(version),
            Some(version) => Err(format!(
                "highest supported version reported is {version}, must be v1.x"
            )),
            None => Err(format!(
                "could not find a highest supported version from versions ({}) reported: {}",
                versions.join(" "),
                unread.unwrap_or_else(|| "none is v1.x".to_owned())
            )),
        }
    }

    fn major(&self) -> u32 {
        self.0.first().copied().unwrap_or_default()
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let trimmed = trimmed.strip_prefix('v').unwrap_or(trimmed);
        let end = trimmed.find(|c: char| c != '.' && !c.is_ascii_digit());
        let numbers = &trimmed[..end.unwrap_or(trimmed.len())];
        let numbers = numbers.strip_suffix('.').unwrap_or(numbers);
        let numbers: Result<Vec<u32>, _> = numbers.split('.').map(str::parse).collect();
        match numbers {
            Ok(numbers) if numbers.len() >= 2 => Ok(Self(numbers)),
            _ => Err(format!("could not parse {text:?} as version")),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(versions: &[&str]) -> Result<String, String> {
        let versions: Vec<String> = versions.iter().map(|v| (*v).to_owned()).collect();
        Version::newest_supported(&versions).map(|version| version.to_string())
    }

    #[test]
    fn the_newest_version_that_both_speak() {
        assert_eq!(newest(&["1.0.0", "v1.10.0", "1.2"]).unwrap(), "1.10.0");
        assert_eq!(newest(&["0.3", "1.0", "2.0"]).unwrap(), "1.0");
        assert_eq!(newest(&["x", "1.1.0-rc1"]).unwrap(), "1.1.0");
        for (versions, why) in [
            (&["0.3.0"][..], "must be v1.x"),
            (&["2.0.0"], "could not find"),
            (&["one"], "could not parse \"one\""),
            (&["1"], "could not parse \"1\""),
        ] {
            let error = newest(versions).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
