//! `CheckpointContainer` on an engine that has no checkpoints.

use cri_proto::runtime::v1 as cri;
use e2e::{cri::Cri, node::Node};
use tonic::Code;

#[tokio::test]
async fn a_checkpoint_is_refused_by_what_is_missing() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("kept", &["sleep", "1000"]).await.unwrap();
    let mut runtime = cri.runtime.clone();
    let mut checkpoint = async |id: &str, location: String| {
        let request = cri::CheckpointContainerRequest {
            container_id: id.to_owned(),
            location,
            timeout: 10,
        };
        runtime.checkpoint_container(request).await.unwrap_err()
    };
    let location = node.path("kept.tar").display().to_string();
    let relative = checkpoint(&id, "kept.tar".to_owned()).await;
    assert_eq!(relative.code(), Code::InvalidArgument);
    assert!(relative.message().starts_with("location: "), "{relative:?}");
    let unknown = checkpoint("0123", location.clone()).await;
    assert_eq!(unknown.code(), Code::NotFound);
    // The engine of these tests runs without `experimental`.
    let off = checkpoint(&id, location.clone()).await;
    assert_eq!(off.code(), Code::FailedPrecondition);
    assert!(off.message().contains("\"experimental\": true"), "{off:?}");
    cri.stop(&id, 0).await.unwrap();
    let ended = checkpoint(&id, location).await;
    assert_eq!(ended.code(), Code::FailedPrecondition);
    assert!(ended.message().contains("CONTAINER_EXITED"), "{ended:?}");
    assert!(!node.path("kept.tar").exists());
    assert!(
        std::fs::read_dir(node.path("shim/dumps"))
            .unwrap()
            .next()
            .is_none()
    );
}
