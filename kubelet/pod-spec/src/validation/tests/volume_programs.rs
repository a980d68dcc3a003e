//! Fields of volumes that are passed to programs.

use super::*;

#[test]
fn what_nfs_volumes_give_to_programs() {
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = json!("v");
        faults(&[("/spec/volumes/-", volume)])
    };
    let nfs = |server: &str, path: &str| volume(json!({"nfs": {"server": server, "path": path}}));
    assert_eq!(nfs("nfs.example", "/data"), Vec::<String>::new());
    one(
        nfs("-T/x", "/data"),
        "spec.volumes[1].nfs.server: Invalid value: \"-T/x\": must not begin with '-'",
    );
    one(
        nfs("", "/data"),
        "spec.volumes[1].nfs.server: Required value",
    );
    one(
        nfs("nfs.example", "data"),
        "spec.volumes[1].nfs.path: Invalid value: \"data\": must be an absolute path",
    );
    one(
        nfs("nfs.example", "/a\tb"),
        "spec.volumes[1].nfs.path: Invalid value: \"/a\\tb\": must not contain white space or control characters",
    );
}

#[test]
fn what_flex_volumes_give_to_drivers() {
    let flex = |source: Value| {
        let volume = json!({"name": "v", "flexVolume": source});
        faults(&[("/spec/volumes/-", volume)])
    };
    let options = json!({"share": "s", "example.com/x": "y", "notkubernetes.io/x": "y"});
    let valid = json!({"driver": "example.com/cifs", "options": options});
    assert_eq!(flex(valid), Vec::<String>::new());
    one(
        flex(json!({"driver": ""})),
        "spec.volumes[1].flexVolume.driver: Required value",
    );
    let [hostile] = &flex(json!({"driver": "example.com/../cifs"}))[..] else {
        panic!("one fault");
    };
    let path = "spec.volumes[1].flexVolume.driver: Invalid value: \"example.com/../cifs\": ";
    assert!(hostile.starts_with(path), "{hostile}");
    for key in ["kubernetes.io/secret/x", "a.K8s.io/x", "k8s.io"] {
        one(
            flex(json!({"driver": "d", "options": {key: "x"}})),
            &format!(
                "spec.volumes[1].flexVolume.options[{key}]: Invalid value: {key:?}: kubernetes.io and k8s.io namespaces are reserved"
            ),
        );
    }
}
