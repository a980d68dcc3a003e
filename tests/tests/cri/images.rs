//! Images through `dockershim`: pulls from a registry by tag, by digest and with basic
//! authentication, and their lists, status and removal.

use cri_proto::runtime::v1 as cri;
use e2e::{
    cri::{Cri, sandbox},
    images::{self, BUSYBOX},
    node::Node,
    registry::{PASSWORD, Registry, USER},
};
use tonic::Code;

/// A registry with one image that the engine does not have.
async fn registry(node: &Node, port: u16, auth: bool) -> (Registry, String) {
    let dir = node.path(&format!("registry-{port}"));
    let registry = Registry::start(node.namespace(), &dir, port, auth)
        .await
        .unwrap();
    let image = registry.image("team/app:1");
    let docker = node.docker().unwrap();
    let instructions = ["USER 1000:1000", "CMD [\"sleep\", \"1000\"]"];
    images::load(&docker, "e2e.local/app:1", &instructions)
        .await
        .unwrap();
    let credentials = auth.then(|| registry.credentials());
    images::push(&docker, "e2e.local/app:1", &image, credentials)
        .await
        .unwrap();
    let mut cri = Cri::of(node).await.unwrap();
    cri.remove_image("e2e.local/app:1").await.unwrap();
    assert!(cri.image(&image).await.unwrap().is_none());
    (registry, image)
}

#[tokio::test]
async fn an_image_is_pulled_by_tag_and_by_digest() {
    let node = Node::with_shim().await.unwrap();
    let (_registry, image) = registry(&node, 5000, false).await;
    let mut cri = Cri::of(&node).await.unwrap();
    let id = cri.pull(&image, None).await.unwrap();
    let pulled = cri.image(&image).await.unwrap().unwrap();
    assert_eq!(pulled.id, id);
    assert_eq!(pulled.repo_tags, [image.as_str()]);
    assert_eq!(pulled.uid.unwrap().value, 1000);
    assert!(pulled.size > 0);
    let digest = pulled.repo_digests[0].clone();

    cri.remove_image(&id).await.unwrap();
    assert!(cri.image(&image).await.unwrap().is_none());
    assert_eq!(cri.pull(&digest, None).await.unwrap(), id);
    for name in [&digest, &id] {
        assert_eq!(cri.image(name).await.unwrap().unwrap().id, id, "{name}");
    }
    // Removing a missing image is no error.
    cri.remove_image(&digest).await.unwrap();
    cri.remove_image(&digest).await.unwrap();
    assert!(cri.image(&id).await.unwrap().is_none());
}

#[tokio::test]
async fn a_private_image_needs_its_credentials() {
    let node = Node::with_shim().await.unwrap();
    let (registry, image) = registry(&node, 5001, true).await;
    let mut cri = Cri::of(&node).await.unwrap();
    let credentials = |password: &str| {
        Some(cri::AuthConfig {
            username: USER.to_owned(),
            password: password.to_owned(),
            server_address: registry.image("").trim_end_matches('/').to_owned(),
            ..Default::default()
        })
    };
    for auth in [None, credentials("wrong")] {
        let refused = cri.pull(&image, auth).await.unwrap_err();
        assert!(
            matches!(
                refused.code(),
                Code::Unauthenticated | Code::PermissionDenied
            ),
            "{refused:?}"
        );
    }
    cri.pull(&image, credentials(PASSWORD)).await.unwrap();
    assert!(cri.image(&image).await.unwrap().is_some());
}

#[tokio::test]
async fn a_private_sandbox_image_is_pulled_with_the_nodes_credentials() {
    let mut node = Node::with_shim().await.unwrap();
    let (registry, image) = registry(&node, 5003, true).await;
    node.stop_shim().await.unwrap();
    let flag = format!("--pod-infra-container-image={image}");
    node.start_shim_with(&[&flag]).await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let refused = cri.run(&sandbox("pod")).await.unwrap_err();
    assert!(refused.message().contains(&image), "{refused:?}");

    // The first password is old, the second one new.
    let address = registry.image("").trim_end_matches('/').to_owned();
    let user = |password: &str| serde_json::json!({"username": USER, "password": password});
    let config = serde_json::json!({"auths": {
        format!("{address}/team"): user("old"),
        address: user(PASSWORD),
    }});
    let directory = node.path("shim");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
    cri.run(&sandbox("pod")).await.unwrap();
    assert!(cri.image(&image).await.unwrap().is_some());
}

#[tokio::test]
async fn a_pull_of_what_is_not_there_says_so() {
    let node = Node::with_shim().await.unwrap();
    let (registry, _) = registry(&node, 5002, false).await;
    let mut cri = Cri::of(&node).await.unwrap();
    let absent = registry.image("team/absent:1");
    let error = cri.pull(&absent, None).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error:?}");
    assert!(error.message().contains("team/absent"), "{error:?}");
    let error = cri.pull("Not A Reference", None).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
}

#[tokio::test]
async fn removing_an_image_takes_all_its_tags_and_lists_follow() {
    let node = Node::with_shim().await.unwrap();
    let docker = node.docker().unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    images::load(&docker, "e2e.local/two:1", &["LABEL two=tags"])
        .await
        .unwrap();
    let second = bollard::query_parameters::TagImageOptionsBuilder::new()
        .repo("e2e.local/two")
        .tag("2")
        .build();
    docker
        .tag_image("e2e.local/two:1", Some(second))
        .await
        .unwrap();
    node.await_until(
        "both tags are listed",
        std::time::Duration::from_secs(10),
        async |_| {
            let image = cri.clone().image("e2e.local/two:2").await?;
            Ok(image.is_some_and(|i| i.repo_tags == ["e2e.local/two:1", "e2e.local/two:2"]))
        },
    )
    .await
    .unwrap();
    cri.remove_image("e2e.local/two:2").await.unwrap();
    let listed = cri
        .images
        .list_images(cri::ListImagesRequest::default())
        .await
        .unwrap()
        .into_inner()
        .images;
    let tags: Vec<_> = listed.iter().flat_map(|i| &i.repo_tags).collect();
    assert!(tags.iter().any(|tag| *tag == BUSYBOX), "{tags:?}");
    assert!(!tags.iter().any(|tag| tag.contains("two")), "{tags:?}");
}

#[tokio::test]
async fn who_removes_the_same_image_at_once_succeeds() {
    let node = Node::with_shim().await.unwrap();
    let docker = node.docker().unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    for round in 0..5 {
        let name = format!("e2e.local/once:{round}");
        images::load(&docker, &name, &[]).await.unwrap();
        node.await_until(
            "it is listed",
            std::time::Duration::from_secs(10),
            async |_| Ok(cri.clone().image(&name).await?.is_some()),
        )
        .await
        .unwrap();
        let removals = (0..8).map(|_| {
            let (mut cri, name) = (cri.clone(), name.clone());
            async move { cri.remove_image(&name).await }
        });
        for removed in futures::future::join_all(removals).await {
            removed.unwrap();
        }
        assert_eq!(cri.image(&name).await.unwrap(), None);
    }
}
