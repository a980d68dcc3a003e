use serde_json::{Value, json};

use super::*;

fn of_pod(source: Value) -> Result<Value, String> {
    let mut volume = source;
    volume["name"] = json!("v");
    let volume = serde_json::from_value(volume).unwrap();
    let translated = inline(&volume, "shop").map_err(|error| error.to_string())?;
    let mut translated = serde_json::to_value(translated.unwrap()).unwrap();
    Ok(json!({"metadata": translated["metadata"].take(), "spec": translated["spec"].take()}))
}

/// Translates a persistent volume; returns its spec.
fn of_cluster(metadata: Value, spec: Value) -> Result<Value, String> {
    let mut volume = json!({"metadata": metadata, "spec": spec});
    volume["metadata"]["name"] = json!("pv");
    let volume = serde_json::from_value(volume).unwrap();
    let translated = persistent(&volume)?.unwrap();
    assert_eq!(translated.metadata, volume.metadata);
    Ok(serde_json::to_value(translated.spec.unwrap()).unwrap())
}

#[test]
fn volumes_of_pods_are_translated() {
    let aws = |id: &str| json!({"awsElasticBlockStore": {"volumeID": id, "fsType": "ext4", "partition": 2, "readOnly": true}});
    let csi = json!({
        "driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "fsType": "ext4", "readOnly": true,
        "volumeAttributes": {"partition": "2"}
    });
    let wanted = json!({
        "metadata": {"name": "ebs.csi.aws.com-vol-1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "csi": csi}
    });
    for id in ["vol-1", "aws:///vol-1", "aws://eu-west-1a/vol-1"] {
        assert_eq!(of_pod(aws(id)).unwrap(), wanted, "{id}");
    }

    let azure = json!({"azureDisk": {
        "diskName": "d", "diskURI": "/subscriptions/s/disks/d", "kind": "managed",
        "cachingMode": "None", "fsType": "xfs"
    }});
    let csi = json!({
        "driver": "disk.csi.azure.com", "volumeHandle": "/subscriptions/s/disks/d",
        "fsType": "xfs",
        "volumeAttributes": {"kind": "Managed", "cachingmode": "None", "fstype": "xfs"}
    });
    let wanted = json!({
        "metadata": {"name": "/subscriptions/s/disks/d"},
        "spec": {"accessModes": ["ReadWriteOnce"], "csi": csi}
    });
    assert_eq!(of_pod(azure).unwrap(), wanted);

    let share = |secret: &str| json!({"azureFile": {"secretName": secret, "shareName": "s"}});
    let csi = |secret: &str| {
        json!({
            "driver": "file.csi.azure.com", "volumeHandle": "#acc#s#v#shop",
            "volumeAttributes": {"sharename": "s"},
            "nodeStageSecretRef": {"name": secret, "namespace": "shop"}
        })
    };
    for secret in ["acc", "azure-storage-account-acc-secret"] {
        let translated = of_pod(share(secret)).unwrap();
        assert_eq!(translated["metadata"]["name"], "#acc#s#v#shop");
        assert_eq!(translated["spec"]["accessModes"], json!(["ReadWriteMany"]));
        assert_eq!(translated["spec"]["csi"], csi(secret));
    }

    let cinder = json!({"cinder": {"volumeID": "id", "fsType": "ext4"}});
    let csi = json!({
        "driver": "cinder.csi.openstack.org", "volumeHandle": "id", "fsType": "ext4"
    });
    let wanted = json!({
        "metadata": {"name": "cinder.csi.openstack.org-id"},
        "spec": {"accessModes": ["ReadWriteOnce"], "csi": csi}
    });
    assert_eq!(of_pod(cinder).unwrap(), wanted);

    let google = json!({"gcePersistentDisk": {"pdName": "d", "readOnly": true}});
    let csi = json!({
        "driver": "pd.csi.storage.gke.io", "readOnly": true,
        "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
        "volumeAttributes": {"partition": ""}
    });
    let wanted = json!({
        "metadata": {"name": "pd.csi.storage.gke.io-d"},
        "spec": {"accessModes": ["ReadOnlyMany"], "csi": csi}
    });
    assert_eq!(of_pod(google).unwrap(), wanted);

    let portworx = json!({"portworxVolume": {"volumeID": "id"}});
    let wanted = json!({
        "metadata": {"name": "pxd.portworx.com-id"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "pxd.portworx.com", "volumeHandle": "id"}
        }
    });
    assert_eq!(of_pod(portworx).unwrap(), wanted);

    let vsphere =
        json!({"vsphereVolume": {"volumePath": "[ds] k/d.vmdk", "storagePolicyName": "gold"}});
    let csi = json!({
        "driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] k/d.vmdk",
        "volumeAttributes": {"storagepolicyname": "gold"}
    });
    let wanted = json!({
        "metadata": {"name": "csi.vsphere.vmware.com-[ds] k/d.vmdk"},
        "spec": {"accessModes": ["ReadWriteOnce"], "csi": csi}
    });
    assert_eq!(of_pod(vsphere).unwrap(), wanted);
}

#[test]
fn what_has_no_equivalent_is_refused_with_its_field() {
    for (source, wanted) in [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://zone/disk-1"}}),
            "awsElasticBlockStore.volumeID: Invalid value: \"aws://zone/disk-1\"",
        ),
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": "u", "kind": "Dedicated"}}),
            "azureDisk.kind: Unsupported value: \"Dedicated\"",
        ),
        // It would be the directory above.
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": ".."}}),
            "cannot be called \"..\"",
        ),
    ] {
        let error = of_pod(source).unwrap_err();
        assert!(
            error.contains("volume \"v\"") && error.contains(wanted),
            "{error}"
        );
    }
    let share = json!({"azureFile": {"secretName": "acc", "shareName": "s"}});
    let error = of_cluster(json!({}), share).unwrap_err();
    assert!(
        error.starts_with("spec.azureFile.secretNamespace: "),
        "{error}"
    );
    let zones = json!({"labels": {"topology.kubernetes.io/zone": "us-east1-a__us-west1-a"}});
    let disk = json!({"gcePersistentDisk": {"pdName": "d"}});
    let error = of_cluster(zones, disk).unwrap_err();
    assert!(error.starts_with("metadata.labels: "), "{error}");

    let other: Volume = serde_json::from_value(json!({"name": "v", "emptyDir": {}})).unwrap();
    assert_eq!(inline(&other, "shop").unwrap(), None);
    let other = json!({"metadata": {"name": "pv"}, "spec": {"nfs": {"server": "s", "path": "/"}}});
    let other: PersistentVolume = serde_json::from_value(other).unwrap();
    assert_eq!(persistent(&other), Ok(None));
}

#[test]
fn persistent_volumes_keep_what_is_not_their_source() {
    let spec = json!({
        "awsElasticBlockStore": {"volumeID": "aws://z/vol-1"},
        "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"], "volumeMode": "Block"
    });
    let csi = json!({
        "driver": "ebs.csi.aws.com", "volumeHandle": "vol-1",
        "volumeAttributes": {"partition": "0"}
    });
    let wanted = json!({
        "csi": csi, "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"],
        "volumeMode": "Block"
    });
    assert_eq!(of_cluster(json!({}), spec).unwrap(), wanted);

    let metadata = json!({"annotations": {"kubernetes.io/azure-file-resource-group": "rg"}});
    let claim = json!({"namespace": "shop", "name": "c"});
    let share = json!({"secretName": "acc", "shareName": "s", "readOnly": true});
    let spec = json!({"azureFile": share, "claimRef": claim});
    let csi = of_cluster(metadata.clone(), spec).unwrap()["csi"].take();
    let wanted = json!({
        "driver": "file.csi.azure.com", "volumeHandle": "rg#acc#s#pv#shop", "readOnly": true,
        "volumeAttributes": {"sharename": "s"},
        "nodeStageSecretRef": {"name": "acc", "namespace": "shop"}
    });
    assert_eq!(csi, wanted);
    let mut spec = json!({"azureFile": share, "claimRef": claim});
    spec["azureFile"]["secretNamespace"] = json!("keys");
    let csi = of_cluster(metadata, spec).unwrap()["csi"].take();
    assert_eq!(csi["volumeHandle"], "rg#acc#s#pv#keys");

    let annotations = json!({"annotations": {
        "openstorage.io/auth-secret-name": "n", "openstorage.io/auth-secret-namespace": "ns"
    }});
    let disk = json!({"portworxVolume": {"volumeID": "id"}});
    let csi = of_cluster(annotations, disk).unwrap()["csi"].take();
    for step in [
        "nodeStage",
        "nodePublish",
        "nodeExpand",
        "controllerPublish",
        "controllerExpand",
    ] {
        let secret = &csi[format!("{step}SecretRef")];
        assert_eq!(*secret, json!({"name": "n", "namespace": "ns"}), "{step}");
    }
}

#[test]
fn google_disks_are_found_by_their_zones() {
    let handle = |labels: Value| {
        let disk = json!({"gcePersistentDisk": {"pdName": "d", "partition": 1}});
        let spec = of_cluster(json!({"labels": labels}), disk).unwrap();
        assert_eq!(spec["csi"]["volumeAttributes"], json!({"partition": "1"}));
        spec["csi"]["volumeHandle"].as_str().unwrap().to_owned()
    };
    let new = "topology.kubernetes.io/zone";
    let old = "failure-domain.beta.kubernetes.io/zone";
    let one = "projects/UNSPECIFIED/zones/us-east1-b/disks/d";
    assert_eq!(handle(json!({new: "us-east1-b"})), one);
    assert_eq!(handle(json!({old: "us-east1-b", new: "us-east1-c"})), one);
    assert_eq!(
        handle(json!({new: "us-east1-b__us-east1-c"})),
        "projects/UNSPECIFIED/regions/us-east1/disks/d"
    );
    assert_eq!(
        handle(json!({})),
        "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"
    );

    for (modes, wanted) in [
        (json!(["ReadWriteMany"]), "ReadWriteOnce"),
        (json!(["ReadOnlyMany"]), "ReadOnlyMany"),
        (json!(["ReadWriteOnce", "ReadOnlyMany"]), "ReadWriteOnce"),
    ] {
        let spec = json!({"gcePersistentDisk": {"pdName": "d"}, "accessModes": modes});
        let spec = of_cluster(json!({}), spec).unwrap();
        assert_eq!(spec["accessModes"], json!([wanted]));
    }
}

#[test]
fn topology_is_that_of_the_driver() {
    let affinity =
        |all: Value| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": all}]}});
    let is_in = |key: &str, values: Value| json!({"key": key, "operator": "In", "values": values});
    let translated = |labels: Value, old: Value, source: Value| {
        let mut spec = source;
        if old != Value::Null {
            spec["nodeAffinity"] = affinity(old);
        }
        of_cluster(json!({"labels": labels}), spec).unwrap()["nodeAffinity"].take()
    };
    let (zone, region) = (
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
    );
    let old_zone = "failure-domain.beta.kubernetes.io/zone";
    let old_region = "failure-domain.beta.kubernetes.io/region";
    let aws = json!({"awsElasticBlockStore": {"volumeID": "vol-1"}});
    let cinder = json!({"cinder": {"volumeID": "id"}});
    let vsphere = json!({"vsphereVolume": {"volumePath": "p"}});
    let azure = json!({"azureDisk": {"diskName": "d", "diskURI": "u"}});
    let key = "topology.ebs.csi.aws.com/zone";

    // The node affinity takes precedence over the labels.
    let found = translated(
        json!({zone: "b"}),
        json!([is_in(zone, json!(["a"]))]),
        aws.clone(),
    );
    assert_eq!(found, affinity(json!([is_in(key, json!(["a"]))])));
    let found = translated(json!({zone: "b__a__ "}), Value::Null, aws.clone());
    assert_eq!(found, affinity(json!([is_in(key, json!(["a", "b"]))])));
    let others = json!([is_in("disk", json!(["ssd"]))]);
    let found = translated(json!({zone: "a"}), others, aws.clone());
    let wanted = json!([is_in("disk", json!(["ssd"])), is_in(key, json!(["a"]))]);
    assert_eq!(found, affinity(wanted));
    // Nodes have only the newer label of their region.
    let old = json!([
        is_in(old_zone, json!(["a"])),
        is_in(old_region, json!(["r"]))
    ]);
    let found = translated(json!({}), old.clone(), aws.clone());
    let wanted = json!([is_in(key, json!(["a"])), is_in(region, json!(["r"]))]);
    assert_eq!(found, affinity(wanted));
    assert_eq!(translated(json!({}), Value::Null, aws), Value::Null);

    let found = translated(json!({old_zone: "a"}), Value::Null, cinder);
    let key = "topology.cinder.csi.openstack.org/zone";
    assert_eq!(found, affinity(json!([is_in(key, json!(["a"]))])));
    let found = translated(json!({zone: "a", region: "r"}), Value::Null, vsphere);
    let wanted = json!([
        is_in("topology.csi.vmware.com/zone", json!(["a"])),
        is_in("topology.csi.vmware.com/region", json!(["r"]))
    ]);
    assert_eq!(found, affinity(wanted));
    let found = translated(json!({zone: "a"}), old.clone(), azure);
    assert_eq!(found, affinity(old));
}
