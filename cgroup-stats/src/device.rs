//! Names of block devices.

use std::{collections::HashMap, fs};

/// The paths of block devices by their numbers, each looked up once.
#[derive(Debug, Default)]
pub struct DeviceNames {
    known: HashMap<String, String>,
}

impl DeviceNames {
    /// The path of the device `major:minor`, or the numbers if it has none.
    pub fn path(&mut self, numbers: &str) -> &str {
        let known = self.known.entry(numbers.to_owned());
        known.or_insert_with(|| {
            let about = fs::read_to_string(format!("/sys/dev/block/{numbers}/uevent"));
            let about = about.unwrap_or_default();
            let name = about.lines().find_map(|line| line.strip_prefix("DEVNAME="));
            name.map_or(numbers.to_owned(), |name| format!("/dev/{name}"))
        })
    }
}
