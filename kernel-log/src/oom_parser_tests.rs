//! Records of several kernels, and hostile names in them.

use proptest::prelude::*;

use crate::oom_parser::{OomKill, OomParser};

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

const fn node(process: &str, pid: u32) -> OomKill<'_> {
    OomKill::Node { process, pid }
}

/// The kills of messages that the kernel wrote.
fn kills(messages: &str) -> Vec<String> {
    let mut parser = OomParser::default();
    let kill = |message: &str| {
        let line = format!("6,145957,54154334015,-,caller=T7;{}", message.trim());
        parser.kill(&line).map(|kill| format!("{kill:?}"))
    };
    messages.trim().lines().filter_map(kill).collect()
}

fn all(kills: &[OomKill<'_>]) -> Vec<String> {
    kills.iter().map(|kill| format!("{kill:?}")).collect()
}

#[test]
fn a_limit_of_a_container_since_linux_5() {
    for pod in [
        "/kubepods/burstable/pod1-2/",
        "/system/kubepods/pod1-2/",
        "/kubepods.slice/kubepods-pod1_2.slice/cri-containerd-",
    ] {
        let found = kills(&format!(
            "tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=992
             CPU: 1 UID: 0 PID: 7 Comm: tail Not tainted 6.18.44 #1 PREEMPT
             Memory cgroup stats for {pod}{ID}:
             Tasks state (memory values in pages):
             oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={ID},mems_allowed=0,\
             oom_memcg={pod}{ID},task_memcg={pod}{ID},task=tail,pid=7,uid=0
             Memory cgroup out of memory: Killed process 7 (tail) total-vm:34012kB, \
             anon-rss:32560kB, file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:108kB oom_score_adj:992"
        ));
        assert_eq!(found, all(&[OomKill::Container(ID)]), "{pod}");
    }
}

#[test]
fn a_limit_of_a_pod_or_all_pods() {
    for limited in ["/kubepods", "/kubepods/pod1"] {
        let found = kills(&format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,\
             oom_memcg={limited},task_memcg=/kubepods/pod1/{ID}/below,task=a,pid=7,uid=0"
        ));
        assert_eq!(found, all(&[OomKill::Container(ID)]));
    }
}

#[test]
fn an_oom_of_the_node_since_linux_5() {
    for cpuset in ["/", ID] {
        let found = kills(&format!(
            "kswapd invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0
             oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset={cpuset},mems_allowed=0,\
             global_oom,task_memcg=/docker/{ID},task=java,pid=41,uid=1000
             Out of memory: Killed process 41 (java) total-vm:8kB, anon-rss:4kB, file-rss:0kB, \
             shmem-rss:0kB, UID:1000 pgtables:80kB oom_score_adj:0"
        ));
        let expected = [OomKill::Container(ID), node("java", 41)];
        assert_eq!(found, all(&expected), "{cpuset}");
    }
    // Not in a container.
    let found = kills(
        "oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=0,cpuset=/,mems_allowed=0,global_oom,\
         task_memcg=/system.slice/ssh.service,task=sshd,pid=9,uid=0
         Out of memory (oom_kill_allocating_task): Killed process 9 (sshd) total-vm:8kB",
    );
    assert_eq!(found, all(&[node("sshd", 9)]));
}

#[test]
fn processes_that_are_killed_together_are_one_kill_of_the_node() {
    let found = kills(&format!(
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
         task_memcg=/docker/{ID},task=a,pid=1,uid=0
         Out of memory: Killed process 1 (a) total-vm:8kB
         Tasks in /docker/{ID} are going to be killed due to memory.oom.group set
         Out of memory: Killed process 2 (b) total-vm:8kB
         Out of memory: Killed process 3 (c) total-vm:8kB
         oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
         task_memcg=/user.slice,task=d,pid=4,uid=0
         Out of memory: Killed process 4 (d) total-vm:8kB"
    ));
    let expected = [OomKill::Container(ID), node("a", 1), node("d", 4)];
    assert_eq!(found, all(&expected));
}

#[test]
fn kills_up_to_linux_4() {
    let found = kills(&format!(
        "ruby invoked oom-killer: gfp_mask=0x14000c0(GFP_KERNEL), nodemask=(null)
         ruby cpuset={ID} mems_allowed=0
         Task in /docker/{ID} killed as a result of limit of /docker/{ID}
         memory: usage 32768kB, limit 32768kB, failcnt 91
         Memory cgroup out of memory: Kill process 13536 (ruby) score 1001 or sacrifice child
         Killed process 13536 (ruby) total-vm:61kB, anon-rss:32kB, file-rss:4kB, shmem-rss:0kB"
    ));
    assert_eq!(found, all(&[OomKill::Container(ID)]));
    // The victim is the child. Red Hat's kernels add the user.
    for amounts in [" total-vm:1kB, anon-rss:1kB", ", UID 99, total-vm:1kB"] {
        let found = kills(&format!(
            "badsysprogram invoked oom-killer: gfp_mask=0x280da, order=0, oom_score_adj=0
             Out of memory: Kill process 30 (parent) score 919 or sacrifice child
             Killed process 31 (child){amounts}
             Killed process 32 (unrelated) total-vm:1kB"
        ));
        assert_eq!(found, all(&[node("child", 31)]));
    }
}

#[test]
fn names_of_processes_are_complete() {
    for name in [
        "",
        "a b",
        "a) total-vm:1kB",
        "a) (b",
        "a, pid=1,uid=0",
        "\\x0aa\\x5c\\x22",
        "oom_memcg=/",
    ] {
        let found = kills(&format!(
            "Out of memory: Killed process 8 ({name}) total-vm:8kB, anon-rss:4kB, UID:0 pgtables:8kB"
        ));
        assert_eq!(found, all(&[node(name, 8)]));
    }
}

#[test]
fn nothing_else_is_a_kill() {
    let summary = format!(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,\
         oom_memcg=/docker/{ID},task_memcg=/docker/{ID},task=a,pid=7,uid=0"
    );
    let node = "Out of memory: Killed process 8 (a) total-vm:8kB";
    for message in [&summary, node, &format!("Task in /docker/{ID} killed")] {
        let kill = |line: &str| OomParser::default().kill(line).is_some();
        assert!(kill(&format!("6,1,2,-;{message}")), "{message}");
        for line in [
            // Written by a process.
            format!("14,1,2,-;{message}"),
            format!("x,1,2,-;{message}"),
            // Fragments.
            format!("6,1,2,c;{message}"),
            format!("6,1,2,+;{message}"),
            // No record.
            format!("6,1,2;{message}"),
            message.to_owned(),
            format!(" DEVICE=6,1,2,-;{message}"),
            // Another message.
            format!("6,1,2,-;docker0: {message}"),
        ] {
            assert!(!kill(&line), "{line}");
        }
    }
    for message in [
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0".to_owned(),
        format!("oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/docker/{ID}"),
        format!("oom-kill:constraint=CONSTRAINT_MEMCG,task=/docker/{ID},pid=1"),
        format!("Memory cgroup out of memory: Killed process 7 ({ID}) total-vm:8kB"),
        "Killed process 7 (a) total-vm:8kB".to_owned(),
        "Out of memory: Killed process x (a) total-vm:8kB".to_owned(),
    ] {
        assert_eq!(kills(&message), [] as [String; 0], "{message}");
    }
}

/// Names that imitate the fields of the kernel. Those of cgroups have no slash.
fn hostile_name() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        ",oom_memcg=",
        ",task_memcg=",
        ",global_oom",
        ",cpuset=",
        ",mems_allowed=0",
        ",task=a,pid=1,uid=0",
        " killed as a result of limit of ",
        "docker",
        OTHER,
        "a",
        " ",
        ",",
    ]);
    prop::collection::vec(parts, 1..4).prop_map(|parts| parts.concat())
}

fn hostile_path() -> impl Strategy<Value = String> {
    prop::collection::vec(hostile_name(), 0..4)
        .prop_map(|names| names.iter().map(|name| format!("/{name}")).collect())
}

proptest! {
    #[test]
    fn no_name_forges_a_victim(
        cpuset in hostile_name(),
        limited in hostile_path(),
        below in hostile_path(),
        process in ".{0,15}",
        is_global in any::<bool>(),
        is_ours_limited in any::<bool>(),
    ) {
        let process = process.escape_debug();
        let own = format!("/docker/{ID}");
        let limited = if is_ours_limited { format!("{own}{limited}") } else { "/docker".to_owned() };
        let victim = if is_ours_limited { format!("{limited}{below}") } else { format!("{own}{below}") };
        let cause = if is_global {
            ",global_oom".to_owned()
        } else {
            format!(",oom_memcg={limited}")
        };
        for message in [
            format!(
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset={cpuset},\
                 mems_allowed=0{cause},task_memcg={victim},task={process},pid=7,uid=0"
            ),
            format!("Task in {victim} killed as a result of limit of {limited}"),
        ] {
            prop_assert_eq!(kills(&message), all(&[OomKill::Container(ID)]), "{}", message);
        }
    }

    #[test]
    fn any_record_is_read_without_panic(
        text in "[0-9]{1,2},1,2,-;(oom-kill:constraint=|Out of memory: Kill(ed)? process |Task in ).{0,80}"
    ) {
        let _ = OomParser::default().kill(&text);
    }
}
