//! I/O of whole disks and partitions, `Documentation/admin-guide/iostats.rst`.

use std::collections::HashMap;

/// The counters of a block device since the machine was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Reads.
    pub reads: u64,
    /// Reads that were merged with another one.
    pub reads_merged: u64,
    /// Sectors of 512 bytes that were read.
    pub sectors_read: u64,
    /// The time of all reads, in milliseconds.
    pub read_ms: u64,
    /// Writes.
    pub writes: u64,
    /// Writes that were merged with another one.
    pub writes_merged: u64,
    /// Sectors of 512 bytes that were written.
    pub sectors_written: u64,
    /// The time of all writes, in milliseconds.
    pub write_ms: u64,
    /// Reads and writes in progress.
    pub in_progress: u64,
    /// The time with I/O in progress, in milliseconds.
    pub io_ms: u64,
    /// The same, times the number in progress.
    pub weighted_io_ms: u64,
}

/// Parses `/proc/diskstats`: the devices that were used since the start, by their path.
pub fn disks(table: &str) -> HashMap<String, DiskStats> {
    let disks = table.lines().filter_map(disk);
    disks
        .filter(|(_, stats)| *stats != DiskStats::default())
        .collect()
}

/// Parses `<major> <minor> <name>`, followed by the counters.
fn disk(line: &str) -> Option<(String, DiskStats)> {
    let mut fields = line.split_ascii_whitespace().skip(2);
    let name = fields.next()?;
    let mut next = || fields.next()?.parse().ok();
    let stats = DiskStats {
        reads: next()?,
        reads_merged: next()?,
        sectors_read: next()?,
        read_ms: next()?,
        writes: next()?,
        writes_merged: next()?,
        sectors_written: next()?,
        write_ms: next()?,
        in_progress: next()?,
        io_ms: next()?,
        weighted_io_ms: next()?,
    };
    Some((format!("/dev/{name}"), stats))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_that_were_used_are_found_by_their_path() {
        let found = disks(
            "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n \
             253       1 dm-1 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n \
             259       0 nvme0n1 1 2 3\n",
        );
        let expected = DiskStats {
            reads: 1,
            reads_merged: 2,
            sectors_read: 3,
            read_ms: 4,
            writes: 5,
            writes_merged: 6,
            sectors_written: 7,
            write_ms: 8,
            in_progress: 9,
            io_ms: 10,
            weighted_io_ms: 11,
        };
        assert_eq!(found, HashMap::from([("/dev/dm-1".to_owned(), expected)]));
    }
}
