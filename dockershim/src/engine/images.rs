//! Engine calls for images.

use std::time::Duration;

use bollard::{
    auth::DockerCredentials,
    body_full,
    models::{ImageInspect, ImageSummary},
    query_parameters::{
        CreateImageOptions, ImportImageOptions, ListImagesOptions, RemoveImageOptions,
    },
};
use bytes::Bytes;
use futures::StreamExt as _;

use super::{CHANGE, Cause, Engine, EngineError, READ};

/// Registry credentials in the engine's format.
pub type Credentials = DockerCredentials;

impl Engine {
    /// Lists all tagged or top-level images.
    ///
    /// # Errors
    /// Any [`Cause`].
    pub async fn list_images(&self) -> Result<Vec<ImageSummary>, EngineError> {
        // Takes long with many layers, and only the image list waits for it.
        let call = self.call("list images", "of the engine", CHANGE);
        let docker = call.docker(self)?;
        call.run(docker.list_images(None::<ListImagesOptions>))
            .await
    }

    /// Inspects an image by id or reference.
    ///
    /// # Errors
    /// Any [`Cause`]; `NotFound` if there is no such image.
    pub async fn inspect_image(&self, reference: &str) -> Result<ImageInspect, EngineError> {
        let call = self.call("inspect image", reference, READ);
        let docker = call.docker(self)?;
        call.run(docker.inspect_image(reference)).await
    }

    /// Pulls `repository` at `tag_or_digest`. The pull may take any time, but must make progress at
    /// least once per `progress`.
    ///
    /// # Errors
    /// Any [`Cause`]; the registry's errors are [`Cause::Refused`].
    pub async fn pull_image(
        &self,
        repository: &str,
        tag_or_digest: &str,
        credentials: Option<Credentials>,
        progress: Duration,
    ) -> Result<(), EngineError> {
        let call = self.call("pull image", repository, progress);
        let docker = call.docker(self)?;
        let options = CreateImageOptions {
            from_image: Some(repository.to_owned()),
            tag: Some(tag_or_digest.to_owned()),
            ..Default::default()
        };
        let mut stream = Box::pin(docker.create_image(Some(options), None, credentials));
        call.observed(async {
            loop {
                match tokio::time::timeout(progress, stream.next()).await {
                    Ok(Some(Ok(_))) => {}
                    Ok(Some(Err(error))) => return Err(error.into()),
                    Ok(None) => return Ok(()),
                    Err(_) => return Err(Cause::Deadline(progress)),
                }
            }
        })
        .await
    }

    /// Loads a `docker save` archive.
    ///
    /// # Errors
    /// Any [`Cause`].
    pub async fn load_image(&self, name: &str, archive: Bytes) -> Result<(), EngineError> {
        let call = self.call("load image", name, CHANGE);
        let docker = call.docker(self)?;
        let options = ImportImageOptions {
            quiet: true,
            ..Default::default()
        };
        call.run(async {
            let mut stream = Box::pin(docker.import_image(options, body_full(archive), None));
            while let Some(item) = stream.next().await {
                item?;
            }
            Ok(())
        })
        .await
    }

    /// Removes a reference, and the image with its last one.
    ///
    /// # Errors
    /// Any [`Cause`]; `Conflict` if a container uses the image.
    pub async fn remove_image(&self, reference: &str) -> Result<(), EngineError> {
        let call = self.call("remove image", reference, CHANGE);
        let docker = call.docker(self)?;
        call.run(docker.remove_image(reference, None::<RemoveImageOptions>, None))
            .await
            .map(drop)
    }
}
