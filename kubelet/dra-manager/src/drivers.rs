//! The drivers of the node.

use std::collections::BTreeMap;

use crate::{driver::Driver, error::DraError};

/// Drivers by name, in the order of their registration: while one is replaced, both may run.
#[derive(Debug, Default)]
pub(crate) struct Drivers(BTreeMap<String, Vec<Driver>>);

impl Drivers {
    /// Adds a driver.
    ///
    /// # Errors
    /// One with this name and socket is registered.
    pub(crate) fn add(&mut self, driver: Driver) -> Result<(), String> {
        let name = driver.name();
        let same_name = self.0.entry(name.to_owned()).or_default();
        if same_name.iter().any(|known| known.path() == driver.path()) {
            return Err(format!(
                "endpoint {} already registered for DRA driver plugin {name}",
                driver.path().display()
            ));
        }
        same_name.push(driver);
        Ok(())
    }

    pub(crate) fn remove(&mut self, name: &str, path: &std::path::Path) -> Option<Driver> {
        let same_name = self.0.get_mut(name)?;
        let at = same_name.iter().position(|known| known.path() == path)?;
        let removed = same_name.remove(at);
        if same_name.is_empty() {
            self.0.remove(name);
        }
        Some(removed)
    }

    /// The driver to call: the last one that is connected, or else the last one.
    pub(crate) fn get(&self, name: &str) -> Result<Driver, DraError> {
        let same_name = self.0.get(name).map(Vec::as_slice).unwrap_or_default();
        let connected = same_name.iter().rev().find(|driver| driver.is_connected());
        let chosen = connected.or(same_name.last()).cloned();
        chosen.ok_or_else(|| DraError::NoDriver(name.to_owned()))
    }

    /// Whether a driver can be called.
    pub(crate) fn is_usable(&self, name: &str) -> bool {
        let mut same_name = self.0.get(name).into_iter().flatten();
        same_name.any(Driver::is_connected)
    }
}
