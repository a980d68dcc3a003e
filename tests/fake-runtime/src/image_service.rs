//! The fake runtime's `ImageService`.

use cri_proto::runtime::v1::{self as cri, image_service_server::ImageService};
use tonic::{Request, Response, Status};

use super::{
    FakeRuntime, Verb,
    image_names::normalised,
    lists::{ResponseStream, chunks},
    world::World,
};

#[tonic::async_trait]
impl ImageService for FakeRuntime {
    async fn list_images(
        &self,
        request: Request<cri::ListImagesRequest>,
    ) -> Result<Response<cri::ListImagesResponse>, Status> {
        let filter = request.into_inner().filter;
        self.call(Verb::ListImages, |world| {
            Ok(cri::ListImagesResponse {
                images: list(world, filter),
            })
        })
        .await
    }

    type StreamImagesStream = ResponseStream<cri::StreamImagesResponse>;

    async fn stream_images(
        &self,
        request: Request<cri::StreamImagesRequest>,
    ) -> Result<Response<Self::StreamImagesStream>, Status> {
        let filter = request.into_inner().filter;
        self.call(Verb::StreamImages, |world| {
            Ok(chunks(&list(world, filter), |images| {
                cri::StreamImagesResponse { images }
            }))
        })
        .await
    }

    async fn image_status(
        &self,
        request: Request<cri::ImageStatusRequest>,
    ) -> Result<Response<cri::ImageStatusResponse>, Status> {
        let name = reference(request.into_inner().image)?;
        self.call(Verb::ImageStatus, |world| {
            Ok(cri::ImageStatusResponse {
                image: world.image(&name).cloned(),
                ..cri::ImageStatusResponse::default()
            })
        })
        .await
    }

    async fn pull_image(
        &self,
        request: Request<cri::PullImageRequest>,
    ) -> Result<Response<cri::PullImageResponse>, Status> {
        let request = request.into_inner();
        let name = reference(request.image.clone())?;
        self.call(Verb::PullImage, |world| {
            world.pulls.push(request);
            let user = world.pulls.last().and_then(|pull| pull.auth.as_ref());
            let user = user.map_or("", |auth| &auth.username);
            let whole = normalised(&name);
            if world.private.get(&whole).is_some_and(|owner| owner != user) {
                return Err(Status::unknown(format!("{user:?} may not pull {name}")));
            }
            if !world.pullable.contains(&whole) {
                return Err(Status::not_found(format!("no registry has {name}")));
            }
            Ok(cri::PullImageResponse {
                image_ref: world.pull_image(&name),
            })
        })
        .await
    }

    async fn remove_image(
        &self,
        request: Request<cri::RemoveImageRequest>,
    ) -> Result<Response<cri::RemoveImageResponse>, Status> {
        let name = reference(request.into_inner().image)?;
        self.call(Verb::RemoveImage, |world| {
            if let Some(id) = world.image(&name).map(|image| image.id.clone()) {
                // CRI does not specify this. CRI-O and Docker fail like this; containerd removes
                // the names and keeps the content that containers need.
                if let Some(user) = world.containers.values().find(|c| c.image_id == id) {
                    let message = format!("image {id} is used by container {}", user.id);
                    return Err(Status::failed_precondition(message));
                }
                world.images.remove(&id);
            }
            Ok(cri::RemoveImageResponse {})
        })
        .await
    }

    async fn image_fs_info(
        &self,
        _: Request<cri::ImageFsInfoRequest>,
    ) -> Result<Response<cri::ImageFsInfoResponse>, Status> {
        self.call(Verb::ImageFsInfo, |world| {
            let value = |value| Some(cri::UInt64Value { value });
            let usage = cri::FilesystemUsage {
                timestamp: world.now(),
                fs_id: Some(cri::FilesystemIdentifier {
                    mountpoint: "/".to_owned(),
                }),
                used_bytes: value(world.images.values().map(|image| image.size).sum()),
                inodes_used: value(world.images.len() as u64),
            };
            Ok(cri::ImageFsInfoResponse {
                image_filesystems: vec![usage.clone()],
                container_filesystems: vec![usage],
            })
        })
        .await
    }
}

fn reference(image: Option<cri::ImageSpec>) -> Result<String, Status> {
    match image {
        Some(spec) if !spec.image.is_empty() => Ok(spec.image),
        _ => Err(Status::invalid_argument("image.image is not set")),
    }
}

fn list(world: &World, filter: Option<cri::ImageFilter>) -> Vec<cri::Image> {
    match filter.and_then(|f| f.image).filter(|i| !i.image.is_empty()) {
        Some(spec) => world.image(&spec.image).cloned().into_iter().collect(),
        None => world.images.values().cloned().collect(),
    }
}
