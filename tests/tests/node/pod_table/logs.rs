//! Container logs and how they are read.

use super::row::{Row, contains, row};

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row(
            "logs",
            "kubelet logs: all, the end, with times",
            "containers: [{name: c, image: IMAGE, command: [sh, -c, 'echo one; echo two >&2; sleep 1; echo three; sleep 1000']}]",
        )
        .log("c", contains("three\n"))
        .until("the log is printed", |subject| {
            let all = subject.kubelet_logs(&[])?;
            let end = subject.kubelet_logs(&["--tail", "1"])?;
            let times = subject.kubelet_logs(&["--timestamps", "--tail", "1"])?;
            let stamped = times.split_once('Z').is_some_and(|(at, line)| {
                at.starts_with("20") && line == " three\n"
            });
            Ok(all.contains("one\n") && all.contains("two\n") && end == "three\n" && stamped)
        }),
        row(
            "logs-previous",
            "kubelet logs --previous: the run before",
            "restartPolicy: OnFailure
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'if [ -e /s/once ]; then echo second; sleep 1000; fi; touch /s/once; echo first; exit 1']
  volumeMounts: [{name: s, mountPath: /s}]
volumes: [{name: s, emptyDir: {}}]",
        )
        .container("c", "/restartCount", 1)
        .log("c", "second\n")
        .until("both runs are printed", |subject| {
            let previous = subject.kubelet_logs(&["--previous"])?;
            Ok(previous == "first\n" && subject.kubelet_logs(&[])? == "second\n")
        }),
        row(
            "logs-follow",
            "kubelet logs -f ends with the container",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, 'for i in 1 2 3 4; do echo $i; sleep 1; done']}]",
        )
        .log("c", contains("1\n"))
        .until("all lines are printed", |subject| {
            Ok(subject.kubelet_logs(&["-f"])? == "1\n2\n3\n4\n")
        }),
        row(
            "logs-rotate",
            "a log past its size is rotated, and stays readable",
            "containers: [{name: c, image: IMAGE, command: [sh, -c, 'i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; [ $((i % 500)) -eq 0 ] && sleep 1; done; while :; do echo end; sleep 1; done']}]",
        )
        .until("there is a rotated file", |subject| {
            let dir = subject.log_dir().join("c");
            let files = std::fs::read_dir(dir).into_iter().flatten();
            Ok(files.count() >= 2)
        })
        .until("the end can be read", |subject| {
            Ok(subject.kubelet_logs(&["--tail", "1"])? == "end\n")
        }),
    ]
}
