//! Mounts and users as a container sees them.

use std::{fs, time::Duration};

use cri_proto::runtime::v1 as cri;
use e2e::{
    cri::{Cri, container, image_spec, sandbox},
    images::{self, BUSYBOX},
    node::Node,
};
use tonic::Code;

const SLEEP: &[&str] = &["sleep", "1000"];
const SOON: Duration = Duration::from_secs(60);

fn image_mount(path: &str, sub_path: &str) -> cri::Mount {
    cri::Mount {
        container_path: path.to_owned(),
        readonly: true,
        image: Some(image_spec(BUSYBOX)),
        image_sub_path: sub_path.to_owned(),
        ..Default::default()
    }
}

/// The output of a command in the container.
async fn output(cri: &mut Cri, id: &str, command: &[&str]) -> String {
    let done = cri.exec(id, command, 30).await.unwrap();
    let text = [done.stdout, done.stderr].concat();
    String::from_utf8(text).unwrap().trim().to_owned()
}

#[tokio::test]
async fn images_are_mounted_read_only_and_unmounted_with_their_last_container() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let pod = sandbox("images");
    let sandbox_id = cri.run(&pod).await.unwrap();
    let mut ids = Vec::new();
    for name in ["first", "second"] {
        let mut config = container(name, SLEEP);
        config.mounts = vec![image_mount("/whole", ""), image_mount("/bins", "bin")];
        let id = cri.create(&sandbox_id, config, &pod).await.unwrap();
        cri.start(&id).await.unwrap();
        ids.push(id);
    }
    let id = &ids[0];
    assert!(
        output(&mut cri, id, &["ls", "/whole/bin"])
            .await
            .contains("busybox")
    );
    assert!(
        output(&mut cri, id, &["ls", "/bins"])
            .await
            .contains("busybox")
    );
    let refused = output(&mut cri, id, &["touch", "/whole/x"]).await;
    assert!(refused.contains("Read-only"), "{refused}");

    let image = cri.image(BUSYBOX).await.unwrap().unwrap();
    let status = cri.status(id).await.unwrap();
    let mounted = status.mounts.iter().find(|m| m.container_path == "/bins");
    let mounted = mounted.unwrap();
    let spec = mounted.image.as_ref().unwrap();
    assert_eq!(
        (&spec.image, &spec.image_ref),
        (&BUSYBOX.to_owned(), &image.id)
    );
    assert_eq!(
        (mounted.image_sub_path.as_str(), mounted.readonly),
        ("bin", true)
    );

    // The mounts survive a restart of the shim.
    node.kill_shim().unwrap();
    node.start_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let below = node.path("shim/images").display().to_string();
    let mounts = || fs::read_to_string("/proc/self/mounts").unwrap();
    cri.remove(&ids[0]).await.unwrap();
    assert!(
        output(&mut cri, &ids[1], &["ls", "/bins"])
            .await
            .contains("busybox")
    );
    cri.remove(&ids[1]).await.unwrap();
    node.await_until("the image is unmounted", SOON, async |_| {
        Ok(!mounts().contains(&below))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_image_mount_that_cannot_be_is_refused_by_field() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let pod = sandbox("refused");
    let sandbox_id = cri.run(&pod).await.unwrap();
    let writable = cri::Mount {
        readonly: false,
        ..image_mount("/x", "")
    };
    for (mount, field) in [
        (writable, "mounts[0].readonly"),
        (image_mount("/x", "no/such"), "mounts[0].image_sub_path"),
        (image_mount("/x", "../up"), "mounts[0].image_sub_path"),
    ] {
        let mut config = container("main", SLEEP);
        config.mounts = vec![mount];
        let error = cri.create(&sandbox_id, config, &pod).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
        assert!(error.message().contains(field), "{error:?}");
    }
    let all = cri.containers(cri::ContainerFilter::default()).await;
    assert!(all.unwrap().is_empty());
    let below = node.path("shim/images").display().to_string();
    node.await_until("nothing stays mounted", SOON, async |_| {
        Ok(!fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .contains(&below))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_image_that_is_mounted_is_not_removed() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let data = "e2e.local/data:1";
    images::load(&node.docker().unwrap(), data, &["ENV KEY=value"])
        .await
        .unwrap();
    let pod = sandbox("data");
    let sandbox_id = cri.run(&pod).await.unwrap();
    let mut config = container("main", SLEEP);
    let mount = cri::Mount {
        image: Some(image_spec(data)),
        ..image_mount("/data", "")
    };
    config.mounts = vec![mount];
    node.await_until("the image is known", SOON, async |_| {
        let mut cri = Cri::of(&node).await?;
        Ok(cri.image(data).await?.is_some())
    })
    .await
    .unwrap();
    let id = cri.create(&sandbox_id, config, &pod).await.unwrap();
    let error = cri.remove_image(data).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error:?}");
    assert!(error.message().contains(&id), "{error:?}");
    cri.remove(&id).await.unwrap();
    cri.remove_image(data).await.unwrap();
}

#[tokio::test]
async fn a_container_runs_as_who_it_is_reported_to() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let pod = sandbox("identity");
    let sandbox_id = cri.run(&pod).await.unwrap();
    let mut config = container("main", SLEEP);
    config.linux = Some(cri::LinuxContainerConfig {
        security_context: Some(cri::LinuxContainerSecurityContext {
            run_as_user: Some(cri::Int64Value { value: 1000 }),
            run_as_group: Some(cri::Int64Value { value: 2000 }),
            supplemental_groups: vec![3000],
            supplemental_groups_policy: cri::SupplementalGroupsPolicy::Strict.into(),
            ..Default::default()
        }),
        ..Default::default()
    });
    let id = cri.create(&sandbox_id, config, &pod).await.unwrap();
    cri.start(&id).await.unwrap();
    for (flag, expected) in [("-u", "1000"), ("-g", "2000"), ("-G", "2000 3000")] {
        assert_eq!(output(&mut cri, &id, &["id", flag]).await, expected);
    }
    let user = cri.status(&id).await.unwrap().user.unwrap().linux.unwrap();
    assert_eq!(
        (user.uid, user.gid, user.supplemental_groups),
        (1000, 2000, vec![2000, 3000])
    );
    // No temporary container remains from determining the user.
    let containers = node.engine().client().unwrap();
    let options = bollard::query_parameters::ListContainersOptions {
        all: true,
        ..Default::default()
    };
    let all = containers.list_containers(Some(options)).await.unwrap();
    assert_eq!(all.len(), 2);
}

#[tokio::test]
async fn what_a_crash_of_the_engine_left_of_reading_an_image_is_removed() {
    let mut node = Node::with_shim().await.unwrap();
    let docker = node.docker().unwrap();
    let left = |mark: Option<&str>| bollard::models::ContainerCreateBody {
        image: Some(BUSYBOX.to_owned()),
        labels: Some([("io.kubernetes.docker.type".to_owned(), "scratch".to_owned())].into()),
        host_config: Some(bollard::models::HostConfig {
            container_id_file: mark.map(str::to_owned),
            ..Default::default()
        }),
        ..Default::default()
    };
    let options = None::<bollard::query_parameters::CreateContainerOptions>;
    let ours = left(Some("dockershim"));
    docker
        .create_container(options.clone(), ours)
        .await
        .unwrap();
    // An image with this label passes it to all its containers.
    let anybodys = docker.create_container(options, left(None)).await.unwrap();
    node.engine_mut().stop().unwrap();
    node.engine_mut().start_again().await.unwrap();
    node.await_until("it is removed", SOON, async |node| {
        let options = bollard::query_parameters::ListContainersOptions {
            all: true,
            ..Default::default()
        };
        let all = node.docker()?.list_containers(Some(options)).await?;
        let ids: Vec<_> = all.into_iter().filter_map(|found| found.id).collect();
        Ok(ids == [anybodys.id.as_str()])
    })
    .await
    .unwrap();
}
