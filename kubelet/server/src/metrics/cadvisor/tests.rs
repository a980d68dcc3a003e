//! Series that depend on the kernel and the node: rules and dashboards read them by these names.

use std::{collections::HashMap, sync::Arc};

use cgroup_stats::{DeviceIo, DiskStats};
use k8s_openapi::api::core::v1::Pod;
use kubelet_metrics::{Exposition, Labels};
use kubelet_stats::{
    ContainerStats, Details, FileSystem, ImageFileSystems, MemoryUsage, NodeStats, NodeUsage,
    PodStats, SoftLimit, Tasks, Usage, WritableLayer,
};

use super::{
    families,
    rows::{self, Row},
};

fn row<'a>(labels: &[(&str, &str)], usage: &'a Usage) -> Row<'a> {
    Row {
        labels: Labels::new(labels),
        at: 0,
        started_at: 0,
        usage: Some(usage),
        interfaces: &[],
        file_systems: Vec::new(),
    }
}

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
    let labels = [("container", "c"), ("namespace", "ns"), ("pod", "p")];
    let row = row(&labels, &usage);
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

#[test]
fn only_what_is_measured_has_a_time() {
    let usage = Usage {
        memory: Some(MemoryUsage::default()),
        details: Some(Arc::default()),
        ..Usage::default()
    };
    let row = Row {
        at: 5_000_000_000,
        started_at: 3_000_000_000,
        ..row(&[("pod", "p")], &usage)
    };
    let mut page = Exposition::default();
    families::write(&[row], &mut page);
    let page = page.into_text();
    for line in [
        "container_last_seen{pod=\"p\"} 5 5000\n",
        "container_start_time_seconds{pod=\"p\"} 3\n",
        "container_spec_memory_limit_bytes{pod=\"p\"} 0\n",
    ] {
        assert!(
            page.contains(&format!("\n{line}")),
            "{line} is not in {page}"
        );
    }
}

#[test]
fn file_systems_of_the_node_have_the_io_of_their_disks() {
    let disk = DiskStats {
        reads: 1,
        read_ms: 1500,
        in_progress: 2,
        ..DiskStats::default()
    };
    let file_system = FileSystem {
        inodes: Some(100),
        inodes_free: Some(60),
        device: Some("/dev/sda".to_owned()),
        ..FileSystem::default()
    };
    let container = ContainerStats {
        id: "c1".to_owned(),
        name: "c".to_owned(),
        image: String::new(),
        started_at: 0,
        cgroup: "/c1".to_owned(),
        usage: Usage {
            details: Some(Arc::new(Details {
                tasks: Tasks {
                    max_open_files: Some(SoftLimit::Unlimited),
                    ..Tasks::default()
                },
                ..Details::default()
            })),
            ..Usage::default()
        },
        writable_layer: Some(WritableLayer {
            inodes_used: Some(7),
            ..WritableLayer::default()
        }),
    };
    let pod = PodStats {
        pod: Arc::new(Pod::default()),
        sandbox_id: String::new(),
        started_at: 0,
        cgroup: "/p".to_owned(),
        usage: Usage::default(),
        interfaces_at: 0,
        interfaces: Vec::new(),
        processes: None,
        containers: vec![container],
    };
    let stats = NodeStats {
        node: NodeUsage {
            disks: HashMap::from([("/dev/sda".to_owned(), disk)]),
            ..NodeUsage::default()
        },
        file_system: file_system.clone(),
        images: Some(ImageFileSystems {
            images: file_system.clone(),
            containers: file_system,
        }),
        pods: vec![pod],
        ..NodeStats::default()
    };
    let mut page = Exposition::default();
    families::write(&rows::of(&stats), &mut page);
    let page = page.into_text();
    let series = |name: &str| {
        let lines = page.lines().filter_map(|line| line.strip_prefix(name));
        let found = lines.filter_map(|line| {
            let id = line.split_once("id=\"")?.1.split('"').next()?;
            Some((id, line.rsplit(' ').next()?))
        });
        found.collect::<Vec<_>>()
    };
    for (name, value) in [
        ("container_fs_reads_total{", "1"),
        ("container_fs_read_seconds_total{", "1.5"),
        ("container_fs_io_current{", "2"),
        ("container_fs_writes_merged_total{", "0"),
        ("container_fs_inodes_free{", "60"),
    ] {
        assert_eq!(series(name), [("/", value)], "{name}");
    }
    // A container has no file system of its own: it has the inodes that it uses.
    let inodes = series("container_fs_inodes_total{");
    assert_eq!(inodes, [("/", "100"), ("/c1", "7")]);
    assert_eq!(series("container_ulimits_soft{"), [("/c1", "-1")]);
}
