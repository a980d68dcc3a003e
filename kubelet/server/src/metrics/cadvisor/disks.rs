//! The metrics of disks: what cgroups read and wrote, and the file systems of the node.

use cgroup_stats::{DeviceIo, DiskStats};

use super::{
    families::{COUNTER, GAUGE},
    page::{Page, Value, details},
    rows::FileSystemRow,
};

/// Values of a cgroup's I/O, and of a disk of the node.
type OfIo = fn(&DeviceIo) -> u64;
type OfDisk = fn(&DiskStats) -> Value;

impl Page<'_> {
    pub(super) fn disk_io(&mut self) {
        let io: [(_, _, OfIo, Option<OfDisk>); 4] = [
            (
                "container_fs_reads_bytes_total",
                "Cumulative count of bytes read",
                |io| io.read_bytes,
                None,
            ),
            (
                "container_fs_reads_total",
                "Cumulative count of reads completed",
                |io| io.reads,
                Some(|disk| Value::Integer(disk.reads)),
            ),
            (
                "container_fs_writes_bytes_total",
                "Cumulative count of bytes written",
                |io| io.write_bytes,
                None,
            ),
            (
                "container_fs_writes_total",
                "Cumulative count of writes completed",
                |io| io.writes,
                Some(|disk| Value::Integer(disk.writes)),
            ),
        ];
        for (name, help, of_io, of_disk) in io {
            self.io((name, COUNTER, help), Some(of_io), of_disk);
        }
        let disks: [(_, _, _, OfDisk); 9] = [
            (
                "container_fs_sector_reads_total",
                COUNTER,
                "Cumulative count of sector reads completed",
                |disk| Value::Integer(disk.sectors_read),
            ),
            (
                "container_fs_reads_merged_total",
                COUNTER,
                "Cumulative count of reads merged",
                |disk| Value::Integer(disk.reads_merged),
            ),
            (
                "container_fs_read_seconds_total",
                COUNTER,
                "Cumulative count of seconds spent reading",
                |disk| Value::Milliseconds(disk.read_ms),
            ),
            (
                "container_fs_sector_writes_total",
                COUNTER,
                "Cumulative count of sector writes completed",
                |disk| Value::Integer(disk.sectors_written),
            ),
            (
                "container_fs_writes_merged_total",
                COUNTER,
                "Cumulative count of writes merged",
                |disk| Value::Integer(disk.writes_merged),
            ),
            (
                "container_fs_write_seconds_total",
                COUNTER,
                "Cumulative count of seconds spent writing",
                |disk| Value::Milliseconds(disk.write_ms),
            ),
            (
                "container_fs_io_current",
                GAUGE,
                "Number of I/Os currently in progress",
                |disk| Value::Integer(disk.in_progress),
            ),
            (
                "container_fs_io_time_seconds_total",
                COUNTER,
                "Cumulative count of seconds spent doing I/Os",
                |disk| Value::Milliseconds(disk.io_ms),
            ),
            (
                "container_fs_io_time_weighted_seconds_total",
                COUNTER,
                "Cumulative weighted I/O time in seconds",
                |disk| Value::Milliseconds(disk.weighted_io_ms),
            ),
        ];
        for (name, kind, help, of_disk) in disks {
            self.io((name, kind, help), None, Some(of_disk));
        }
        self.device_usage();
    }

    fn io(
        &mut self,
        names: (&'static str, &'static str, &'static str),
        of_io: Option<OfIo>,
        of_disk: Option<OfDisk>,
    ) {
        self.family(names, |row, family| {
            if let Some(value) = of_io {
                for (device, io) in details(row).iter().flat_map(|it| &it.io) {
                    family.add(row, &[("device", device)], Value::Integer(value(io)));
                }
            }
            if let Some(value) = of_disk {
                for found in &row.file_systems {
                    if let (Some(device), Some(disk)) = (&found.file_system.device, found.disk) {
                        family.add(row, &[("device", device)], value(disk));
                    }
                }
            }
        });
    }

    fn device_usage(&mut self) {
        let names = (
            "container_blkio_device_usage_total",
            COUNTER,
            "Blkio Device bytes usage",
        );
        self.family(names, |row, family| {
            for (device, io) in details(row).iter().flat_map(|it| &it.io) {
                let (major, minor) = io.device.split_once(':').unwrap_or_default();
                for (operation, bytes) in [("Read", io.read_bytes), ("Write", io.write_bytes)] {
                    let labels = [
                        ("device", device.as_str()),
                        ("major", major),
                        ("minor", minor),
                        ("operation", operation),
                    ];
                    family.add(row, &labels, Value::Integer(bytes));
                }
            }
        });
    }

    pub(super) fn file_systems(&mut self) {
        for (name, help, value) in [
            (
                "container_fs_usage_bytes",
                "Number of bytes that are consumed by the container on this filesystem.",
                (|it| it.used) as fn(&FileSystemRow<'_>) -> Option<u64>,
            ),
            (
                "container_fs_limit_bytes",
                "Number of bytes that can be consumed by the container on this filesystem.",
                |it| it.file_system.capacity,
            ),
            ("container_fs_inodes_total", "Number of Inodes", |it| {
                it.inodes
            }),
            (
                "container_fs_inodes_free",
                "Number of available Inodes",
                |it| it.inodes_free,
            ),
        ] {
            self.family((name, GAUGE, help), |row, family| {
                for found in &row.file_systems {
                    if let Some(device) = &found.file_system.device
                        && let Some(value) = value(found)
                    {
                        family.add(row, &[("device", device)], Value::Integer(value));
                    }
                }
            });
        }
    }
}
