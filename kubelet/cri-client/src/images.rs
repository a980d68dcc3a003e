//! Calls to the image service.

use cri_proto::runtime::v1::{
    AuthConfig, Image, ImageFsInfoRequest, ImageFsInfoResponse, ImageSpec, ImageStatusRequest,
    PodSandboxConfig, PullImageRequest, RemoveImageRequest,
};

use super::{CriClient, CriError, deadline::failed, gone_is_fine};

impl CriClient {
    /// The image with this name; `None` if the runtime does not have it.
    ///
    /// # Errors
    /// The call failed.
    pub async fn image_status(&self, image: ImageSpec) -> Result<Option<Image>, CriError> {
        let name = image.image.clone();
        let mut client = self.image.clone();
        let call = client.image_status(ImageStatusRequest {
            image: Some(image),
            verbose: false,
        });
        Ok(self.call("ImageStatus", &name, call).await?.image)
    }

    /// Removes an image; by its ID, with all its names. An image that no longer exists is not an
    /// error.
    ///
    /// # Errors
    /// The call failed; some runtimes refuse to remove an image that a container uses.
    pub async fn remove_image(&self, image: ImageSpec) -> Result<(), CriError> {
        let name = image.image.clone();
        let mut client = self.image.clone();
        let call = client.remove_image(RemoveImageRequest { image: Some(image) });
        gone_is_fine(self.call("RemoveImage", &name, call).await)
    }

    /// The file systems of images and writable layers, and what the runtime uses of them.
    ///
    /// # Errors
    /// The call failed.
    pub async fn image_fs_info(&self) -> Result<ImageFsInfoResponse, CriError> {
        let mut client = self.image.clone();
        let call = client.image_fs_info(ImageFsInfoRequest::default());
        self.call("ImageFsInfo", "", call).await
    }

    /// Pulls an image and returns its reference. The call has no deadline: the runtime gives up a
    /// pull that makes no progress.
    ///
    /// # Errors
    /// The call failed.
    pub async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String, CriError> {
        const VERB: &str = "PullImage";
        let name = image.image.clone();
        let mut client = self.image.clone();
        let call = client.pull_image(PullImageRequest {
            image: Some(image),
            auth,
            sandbox_config: Some(sandbox_config),
        });
        let call = Box::pin(call);
        let answer = async { call.await.map_err(|status| failed(VERB, &name, status)) };
        let answer = self.metrics.measure(VERB, answer).await?;
        Ok(answer.into_inner().image_ref)
    }
}
