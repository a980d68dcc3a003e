//! A cgroup's block device I/O.

use crate::{cgroup::Cgroup, reader::KernelFileReader};

/// The I/O on one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// `major:minor`.
    pub device: String,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Read operations.
    pub reads: u64,
    /// Write operations.
    pub writes: u64,
}

impl KernelFileReader {
    /// The I/O by device.
    pub fn io(&mut self, cgroup: &Cgroup) -> Vec<DeviceIo> {
        let mut devices: Vec<DeviceIo> = Vec::new();
        let Some(v1) = cgroup.v1("blkio") else {
            if let Some(directory) = cgroup.unified() {
                let stat = self.text(directory, "io.stat").unwrap_or_default();
                devices.extend(stat.lines().filter_map(io_v2));
            }
            return devices;
        };
        for (file, counts_bytes) in [
            ("blkio.throttle.io_service_bytes_recursive", true),
            ("blkio.throttle.io_serviced_recursive", false),
        ] {
            for line in self.text(v1, file).unwrap_or_default().lines() {
                let mut words = line.split(' ');
                let (Some(device), Some(operation), Some(count)) =
                    (words.next(), words.next(), words.next())
                else {
                    continue;
                };
                let Ok(count) = count.parse() else { continue };
                let index = devices.iter().position(|known| known.device == device);
                let index = index.unwrap_or_else(|| {
                    devices.push(DeviceIo {
                        device: device.to_owned(),
                        ..DeviceIo::default()
                    });
                    devices.len() - 1
                });
                let io = &mut devices[index];
                match (operation, counts_bytes) {
                    ("Read", true) => io.read_bytes = count,
                    ("Read", false) => io.reads = count,
                    ("Write", true) => io.write_bytes = count,
                    ("Write", false) => io.writes = count,
                    _ => {}
                }
            }
        }
        devices
    }
}

/// Parses `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6`.
fn io_v2(line: &str) -> Option<DeviceIo> {
    let (device, values) = line.split_once(' ')?;
    let mut io = DeviceIo {
        device: device.to_owned(),
        ..DeviceIo::default()
    };
    for pair in values.split(' ') {
        let Some((key, value)) = pair.split_once('=') else {
            continue;
        };
        let Ok(value) = value.parse() else { continue };
        match key {
            "rbytes" => io.read_bytes = value,
            "wbytes" => io.write_bytes = value,
            "rios" => io.reads = value,
            "wios" => io.writes = value,
            _ => {}
        }
    }
    Some(io)
}
