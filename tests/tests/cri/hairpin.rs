//! `--hairpin-mode` on the engine's bridge.

use e2e::{
    cri::{Cri, sandbox},
    node::Node,
};

#[tokio::test]
async fn the_hairpin_mode_sets_the_engines_bridge() {
    // One file per port of the engine's bridge, and one of the bridge itself.
    const PORTS: &str = "cat /sys/class/net/docker0/brif/*/hairpin_mode";
    const BRIDGE: &str = "cat /sys/class/net/docker0/flags";
    let mut node = Node::with_shim().await.unwrap();
    let look = |node: &Node, file: &str| {
        let script = format!("mount -t sysfs none /sys && {file}");
        let seen = node.in_net(&["unshare", "--mount", "--", "sh", "-c", &script]);
        String::from_utf8(seen.unwrap().stdout).unwrap()
    };
    let is_promiscuous = |flags: &str| {
        let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16);
        flags.unwrap() & 0x100 != 0
    };
    let mut cri = Cri::of(&node).await.unwrap();
    cri.run(&sandbox("plain")).await.unwrap();
    let plain = look(&node, PORTS);
    assert_eq!(plain, "0\n");

    node.stop_shim().await.unwrap();
    node.start_shim_beside_the_engine(&["--hairpin-mode", "hairpin-veth"])
        .await
        .unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let pod = cri.run(&sandbox("veth")).await.unwrap();
    let mut ports: Vec<_> = look(&node, PORTS).lines().map(str::to_owned).collect();
    ports.sort();
    assert_eq!(ports, ["0", "1"], "{}", node.shim_log());
    cri.remove_pod(&pod).await.unwrap();
    assert!(!is_promiscuous(&look(&node, BRIDGE)));

    node.stop_shim().await.unwrap();
    node.start_shim_beside_the_engine(&["--hairpin-mode", "promiscuous-bridge"])
        .await
        .unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    cri.run(&sandbox("bridge")).await.unwrap();
    assert!(is_promiscuous(&look(&node, BRIDGE)), "{}", node.shim_log());
    assert_eq!(look(&node, PORTS), "0\n0\n");

    // The mode `hairpin-veth` has no effect here; the log says so once.
    node.stop_shim().await.unwrap();
    node.start_shim_with(&["--hairpin-mode", "hairpin-veth"])
        .await
        .unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    for pod in ["one", "two"] {
        cri.run(&sandbox(pod)).await.unwrap();
    }
    let log = node.shim_log();
    let warnings = log.matches("--hairpin-mode=hairpin-veth has no effect");
    assert_eq!(warnings.count(), 1, "{log}");
}
