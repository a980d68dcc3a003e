//! The source of each kind, in terms of its CSI driver.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, CSIPersistentVolumeSource,
    GCEPersistentDiskVolumeSource, PersistentVolume, SecretReference, Volume,
    VsphereVirtualDiskVolumeSource,
};

use super::{AWS, AZURE_DISK, AZURE_FILE, CINDER, GCE, PORTWORX, VSPHERE, source, topology::ZONES};

const READ_WRITE_ONCE: &str = "ReadWriteOnce";
const READ_WRITE_MANY: &str = "ReadWriteMany";
const READ_ONLY_MANY: &str = "ReadOnlyMany";
const PARTITION: &str = "partition";
/// Stands for a part of a Google disk's handle that nothing tells; its driver completes it.
const UNSPECIFIED: &str = "UNSPECIFIED";

/// A translated volume of a pod.
pub(super) struct Inline {
    /// Name of the persistent volume, the same for all pods with the disk.
    pub(super) name: String,
    pub(super) mode: &'static str,
    pub(super) source: CSIPersistentVolumeSource,
}

/// Translates a volume of a pod; `None` if it is of another kind.
pub(super) fn inline(volume: &Volume, namespace: &str) -> Result<Option<Inline>, String> {
    let mode = |read_only: Option<bool>| match read_only {
        Some(true) => READ_ONLY_MANY,
        _ => READ_WRITE_ONCE,
    };
    // As upstream: the name of the driver and that of the disk.
    let named = |mode: &'static str, disk: &str, source: CSIPersistentVolumeSource| Inline {
        name: format!("{}-{disk}", source.driver),
        mode,
        source,
    };
    Ok(Some(if let Some(disk) = &volume.aws_elastic_block_store {
        let source = aws(disk)?;
        named(READ_WRITE_ONCE, &source.volume_handle.clone(), source)
    } else if let Some(disk) = &volume.azure_disk {
        Inline {
            name: disk.disk_uri.clone(),
            mode: READ_WRITE_ONCE,
            source: azure_disk(disk)?,
        }
    } else if let Some(share) = &volume.azure_file {
        let share = AzureShare {
            resource_group: "",
            secret: &share.secret_name,
            secret_namespace: if namespace.is_empty() {
                "default"
            } else {
                namespace
            },
            share: &share.share_name,
            volume: &volume.name,
            read_only: share.read_only,
        };
        let source = azure_file(&share);
        Inline {
            name: source.volume_handle.clone(),
            mode: READ_WRITE_MANY,
            source,
        }
    } else if let Some(disk) = &volume.cinder {
        let mut source = source(CINDER, &disk.volume_id, disk.fs_type.as_ref());
        source.read_only = disk.read_only;
        named(READ_WRITE_ONCE, &disk.volume_id, source)
    } else if let Some(disk) = &volume.gce_persistent_disk {
        let source = gce(disk, google_handle("zones", UNSPECIFIED, disk));
        named(mode(disk.read_only), &disk.pd_name, source)
    } else if let Some(disk) = &volume.portworx_volume {
        let mut source = source(PORTWORX, &disk.volume_id, disk.fs_type.as_ref());
        source.read_only = disk.read_only;
        named(mode(disk.read_only), &disk.volume_id, source)
    } else if let Some(disk) = &volume.vsphere_volume {
        named(READ_WRITE_ONCE, &disk.volume_path, vsphere(disk))
    } else {
        return Ok(None);
    }))
}

/// The source of a persistent volume; `None` if it is of another kind.
pub(super) fn persistent(
    volume: &PersistentVolume,
) -> Result<Option<CSIPersistentVolumeSource>, String> {
    let Some(spec) = &volume.spec else {
        return Ok(None);
    };
    let annotation = |name: &str| volume.metadata.annotations.as_ref()?.get(name);
    Ok(Some(if let Some(disk) = &spec.aws_elastic_block_store {
        aws(disk)?
    } else if let Some(disk) = &spec.azure_disk {
        azure_disk(disk)?
    } else if let Some(share) = &spec.azure_file {
        let claim = spec.claim_ref.as_ref();
        let claim = claim.and_then(|claim| claim.namespace.as_deref());
        let namespace = share.secret_namespace.as_deref().or(claim);
        let namespace = namespace.filter(|namespace| !namespace.is_empty());
        let group = annotation("kubernetes.io/azure-file-resource-group");
        azure_file(&AzureShare {
            resource_group: group.map_or("", String::as_str),
            secret: &share.secret_name,
            secret_namespace: namespace.ok_or(
                "spec.azureFile.secretNamespace: must be set, because the volume has no claim",
            )?,
            share: &share.share_name,
            volume: volume.metadata.name.as_deref().unwrap_or_default(),
            read_only: share.read_only,
        })
    } else if let Some(disk) = &spec.cinder {
        let mut source = source(CINDER, &disk.volume_id, disk.fs_type.as_ref());
        source.read_only = disk.read_only;
        source
    } else if let Some(disk) = &spec.gce_persistent_disk {
        gce(disk, google_handle_of(volume, disk)?)
    } else if let Some(disk) = &spec.portworx_volume {
        let mut source = source(PORTWORX, &disk.volume_id, disk.fs_type.as_ref());
        let name = annotation("openstorage.io/auth-secret-name");
        let namespace = annotation("openstorage.io/auth-secret-namespace");
        if let (Some(name), Some(namespace)) = (name, namespace) {
            let secret = SecretReference {
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
            };
            source.controller_publish_secret_ref = Some(secret.clone());
            source.node_stage_secret_ref = Some(secret.clone());
            source.node_publish_secret_ref = Some(secret.clone());
            source.controller_expand_secret_ref = Some(secret.clone());
            source.node_expand_secret_ref = Some(secret);
        }
        source
    } else if let Some(disk) = &spec.vsphere_volume {
        vsphere(disk)
    } else {
        return Ok(None);
    }))
}

fn attributes<const N: usize>(all: [(&str, &str); N]) -> Option<BTreeMap<String, String>> {
    let all = all.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Some(all.into())
}

fn aws(disk: &AWSElasticBlockStoreVolumeSource) -> Result<CSIPersistentVolumeSource, String> {
    let id = aws_disk(&disk.volume_id).ok_or_else(|| {
        let id = &disk.volume_id;
        format!("awsElasticBlockStore.volumeID: Invalid value: {id:?}: must be vol-ID or aws://ZONE/vol-ID")
    })?;
    let mut source = source(AWS, id, disk.fs_type.as_ref());
    source.read_only = disk.read_only;
    let partition = disk.partition.unwrap_or_default().to_string();
    source.volume_attributes = attributes([(PARTITION, &partition)]);
    Ok(source)
}

/// The id of a disk, which may be written as a URL with its zone.
fn aws_disk(id: &str) -> Option<&str> {
    let Some(url) = id.strip_prefix("aws://") else {
        return Some(id);
    };
    let (_, path) = url.split_once('/')?;
    let id = path.trim_matches('/');
    (id.starts_with("vol-") && !id.contains('/')).then_some(id)
}

fn azure_disk(disk: &AzureDiskVolumeSource) -> Result<CSIPersistentVolumeSource, String> {
    const MANAGED: &str = "Managed";
    let kind = disk.kind.as_deref();
    if let Some(kind) = kind.filter(|kind| !kind.eq_ignore_ascii_case(MANAGED)) {
        return Err(format!(
            "azureDisk.kind: Unsupported value: {kind:?}: supported values: {MANAGED:?}"
        ));
    }
    let mut source = source(AZURE_DISK, &disk.disk_uri, disk.fs_type.as_ref());
    source.read_only = disk.read_only;
    let mut attributes = BTreeMap::from([("kind".to_owned(), MANAGED.to_owned())]);
    let caching = disk.caching_mode.iter().filter(|mode| !mode.is_empty());
    attributes.extend(caching.map(|mode| ("cachingmode".to_owned(), mode.clone())));
    let fs_type = disk.fs_type.iter();
    attributes.extend(fs_type.map(|fs_type| ("fstype".to_owned(), fs_type.clone())));
    source.volume_attributes = Some(attributes);
    Ok(source)
}

/// A share of Azure's file service.
struct AzureShare<'a> {
    resource_group: &'a str,
    /// Name of the secret with the account's key.
    secret: &'a str,
    secret_namespace: &'a str,
    share: &'a str,
    /// Name of the volume.
    volume: &'a str,
    read_only: Option<bool>,
}

fn azure_file(share: &AzureShare<'_>) -> CSIPersistentVolumeSource {
    let account = share.secret.split_once("azure-storage-account-");
    let account = account.and_then(|(_, rest)| Some(rest.rsplit_once("-secret")?.0));
    let account = account.filter(|account| !account.is_empty());
    let handle = [
        share.resource_group,
        account.unwrap_or(share.secret),
        share.share,
        share.volume,
        share.secret_namespace,
    ];
    let mut source = source(AZURE_FILE, &handle.join("#"), None);
    source.read_only = share.read_only;
    source.volume_attributes = attributes([("sharename", share.share)]);
    source.node_stage_secret_ref = Some(SecretReference {
        name: Some(share.secret.to_owned()),
        namespace: Some(share.secret_namespace.to_owned()),
    });
    source
}

fn gce(disk: &GCEPersistentDiskVolumeSource, handle: String) -> CSIPersistentVolumeSource {
    let mut source = source(GCE, &handle, disk.fs_type.as_ref());
    source.read_only = disk.read_only;
    let partition = disk.partition.filter(|partition| *partition != 0);
    let partition = partition.map(|partition| partition.to_string());
    source.volume_attributes = attributes([(PARTITION, &partition.unwrap_or_default())]);
    source
}

/// The handle of a persistent volume's disk: its zone, or its region if it is in several zones.
fn google_handle_of(
    volume: &PersistentVolume,
    disk: &GCEPersistentDiskVolumeSource,
) -> Result<String, String> {
    let label = |name: &str| volume.metadata.labels.as_ref()?.get(name);
    let old = label("failure-domain.beta.kubernetes.io/zone").filter(|zone| !zone.is_empty());
    let label = old.or_else(|| label("topology.kubernetes.io/zone"));
    let zones: Vec<&str> = label.map_or("", String::as_str).split(ZONES).collect();
    match zones[..] {
        [] | [""] => Ok(google_handle("zones", UNSPECIFIED, disk)),
        [zone] => Ok(google_handle("zones", zone, disk)),
        [first, ..] => {
            let region = google_region(first);
            let one = zones.iter().all(|zone| google_region(zone) == region);
            let region = region.filter(|_| one).ok_or_else(|| {
                format!("metadata.labels: the zones {zones:?} are not those of one region")
            })?;
            Ok(google_handle("regions", region, disk))
        }
    }
}

fn google_handle(level: &str, place: &str, disk: &GCEPersistentDiskVolumeSource) -> String {
    let name = &disk.pd_name;
    format!("projects/{UNSPECIFIED}/{level}/{place}/disks/{name}")
}

/// The region of a zone (`LOCALE-REGION-ZONE`).
fn google_region(zone: &str) -> Option<&str> {
    let (region, _) = zone.rsplit_once('-')?;
    (region.matches('-').count() == 1).then_some(region)
}

fn vsphere(disk: &VsphereVirtualDiskVolumeSource) -> CSIPersistentVolumeSource {
    let mut source = source(VSPHERE, &disk.volume_path, disk.fs_type.as_ref());
    let policy = disk.storage_policy_name.as_deref();
    let policy = policy.filter(|policy| !policy.is_empty());
    source.volume_attributes = policy.and_then(|p| attributes([("storagepolicyname", p)]));
    source
}
