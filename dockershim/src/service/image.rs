//! `ImageService`.

use cri_proto::runtime::v1::{
    ImageFsInfoRequest, ImageFsInfoResponse, ImageStatusRequest, ImageStatusResponse,
    ListImagesRequest, ListImagesResponse, PullImageRequest, PullImageResponse, RemoveImageRequest,
    RemoveImageResponse, StreamImagesRequest, StreamImagesResponse,
    image_service_server::ImageService,
};
use tonic::{Request, Response, Status};

use super::{ResponseStream, Service, chunks::in_chunks};
use crate::image;

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ImageService for Service {
    async fn list_images(
        &self,
        request: Request<ListImagesRequest>,
    ) -> RpcResult<ListImagesResponse> {
        Ok(Response::new(image::list::list(
            &self.shim,
            request.into_inner(),
        )?))
    }

    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> RpcResult<ImageStatusResponse> {
        let status = image::status::status(&self.shim, request.into_inner()).await?;
        Ok(Response::new(status))
    }

    async fn pull_image(&self, request: Request<PullImageRequest>) -> RpcResult<PullImageResponse> {
        let pulled = image::pull::pull(&self.shim, request.into_inner()).await?;
        Ok(Response::new(pulled))
    }

    async fn remove_image(
        &self,
        request: Request<RemoveImageRequest>,
    ) -> RpcResult<RemoveImageResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let removal = async move { image::remove::remove(&shim, request).await };
        let removed = self.shim.complete("RemoveImage", removal).await?;
        Ok(Response::new(removed))
    }

    async fn image_fs_info(
        &self,
        _: Request<ImageFsInfoRequest>,
    ) -> RpcResult<ImageFsInfoResponse> {
        Ok(Response::new(image::fs_info::fs_info(&self.shim).await?))
    }

    type StreamImagesStream = ResponseStream<StreamImagesResponse>;

    async fn stream_images(
        &self,
        request: Request<StreamImagesRequest>,
    ) -> RpcResult<Self::StreamImagesStream> {
        let filter = request.into_inner().filter;
        let listed = image::list::list(&self.shim, ListImagesRequest { filter })?;
        let chunks = in_chunks(listed.images, |images| StreamImagesResponse { images });
        Ok(Response::new(chunks))
    }
}
