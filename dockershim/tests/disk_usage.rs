//! Disk usage of images.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use cri_proto::runtime::v1::{ImageFsInfoRequest, image_service_server::ImageService as _};
use support::{FakeEngine, Hang, eventually, node::Node};
use tonic::Request;

/// A shim in sync that has listed the images.
async fn node(engine: &FakeEngine) -> Node {
    let node = Node::synced(engine).await;
    let listed = || node.shim.images.require_list().is_ok();
    eventually("the images are listed", listed).await;
    node
}

async fn used_by_images(node: &Node) -> u64 {
    let request = Request::new(ImageFsInfoRequest {});
    let info = node.service.image_fs_info(request).await.unwrap();
    let usage = info.into_inner().image_filesystems[0].used_bytes;
    usage.unwrap().value
}

#[tokio::test]
async fn layers_that_images_share_count_once() {
    let engine = FakeEngine::start();
    engine.add_image("e2e.local/app:1", false);
    engine.set_layers_size(1500);
    let node = node(&engine).await;
    assert_eq!(used_by_images(&node).await, 1500);
    for _ in 0..10 {
        assert_eq!(used_by_images(&node).await, 1500);
    }
    // The request is expensive, and nothing changed.
    assert_eq!(engine.calls("GET system"), 1);
}

#[tokio::test]
async fn images_are_told_of_while_the_engine_counts() {
    let engine = FakeEngine::start();
    engine.add_image("e2e.local/app:1", false);
    engine.set_layers_size(1500);
    engine.hang(Hang::DiskUsage, true);
    let node = node(&engine).await;
    // The sum of the images' sizes, with all layers of each.
    assert_eq!(used_by_images(&node).await, 2000);
    engine.hang(Hang::DiskUsage, false);
    let counted = async {
        while used_by_images(&node).await != 1500 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), counted)
        .await
        .unwrap();
}
