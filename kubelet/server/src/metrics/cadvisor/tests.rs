//! Series that depend on the kernel and the node: rules and dashboards read them by these names.

use std::sync::Arc;

use cgroup_stats::DeviceIo;
use kubelet_metrics::{Exposition, Labels};
use kubelet_stats::{Details, Usage};

use super::{families, rows::Row};

#[test]
fn block_io_has_a_series_per_device() {
    let io = DeviceIo {
        device: "8:0".to_owned(),
        read_bytes: 1,
        write_bytes: 2,
        reads: 3,
        writes: 4,
    };
    let usage = Usage {
        details: Some(Arc::new(Details {
            io: vec![("/dev/sda".to_owned(), io)],
            ..Details::default()
        })),
        ..Usage::default()
    };
    let row = Row {
        labels: Labels::new(&[("container", "c"), ("namespace", "ns"), ("pod", "p")]),
        at: 0,
        started_at: 0,
        usage: Some(&usage),
        interfaces: &[],
        file_systems: Vec::new(),
    };
    let mut page = Exposition::default();
    families::write(&[row], &mut page);
    let page = page.into_text();
    for (series, value) in [
        ("container_fs_reads_bytes_total", 1),
        ("container_fs_writes_bytes_total", 2),
        ("container_fs_reads_total", 3),
        ("container_fs_writes_total", 4),
    ] {
        let labels = "container=\"c\",namespace=\"ns\",pod=\"p\",device=\"/dev/sda\"";
        let line = format!("\n{series}{{{labels}}} {value}\n");
        assert!(page.contains(&line), "{line} is not in {page}");
    }
}
