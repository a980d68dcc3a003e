//! Calls on images.

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

/// Who pulls, in the engine's own form.
pub type Credentials = DockerCredentials;

impl Engine {
    /// Every tagged or top-level image.
    ///
    /// # Errors
    /// Any [`Cause`].
    pub async fn list_images(&self) -> Result<Vec<ImageSummary>, EngineError> {
        // An engine with many layers takes long, and nothing but the list waits for it.
        let call = self.call("list images", "of the engine", CHANGE);
        let docker = call.docker(self)?;
        call.run(docker.list_images(None::<ListImagesOptions>))
            .await
    }

    /// Everything about one image, by id or reference.
    ///
    /// # Errors
    /// Any [`Cause`]; `NotFound` when there is none.
    pub async fn inspect_image(&self, reference: &str) -> Result<ImageInspect, EngineError> {
        let call = self.call("inspect image", reference, READ);
        let docker = call.docker(self)?;
        call.run(docker.inspect_image(reference)).await
    }

    /// Pulls `repository` at `tag_or_digest`, for as long as the pull makes progress
    /// at least once per `progress`.
    ///
    /// # Errors
    /// Any [`Cause`]; what the registry refuses comes as [`Cause::Refused`].
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

    /// Removes one reference, and with the last one the image.
    ///
    /// # Errors
    /// Any [`Cause`]; `Conflict` when a container uses it.
    pub async fn remove_image(&self, reference: &str) -> Result<(), EngineError> {
        let call = self.call("remove image", reference, CHANGE);
        let docker = call.docker(self)?;
        call.run(docker.remove_image(reference, None::<RemoveImageOptions>, None))
            .await
            .map(drop)
    }
}
