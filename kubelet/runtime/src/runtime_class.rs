//! Runtime classes: which handler of the runtime a pod is run by, and what that can do.

use cri_proto::runtime::v1::RuntimeHandlerFeatures;
use k8s_openapi::api::core::v1::PodSpec;
use kubelet_api_client::objects::ObjectError;
use kubelet_cri_client::CriError;

use super::RuntimeManager;

/// Why it is not known what handler runs a pod.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeClassError {
    /// There is no such class.
    #[error(transparent)]
    NotFound(ObjectError),
    /// It may be there, and could not be read now.
    #[error("failed to lookup RuntimeClass {name}: {source}")]
    Lookup {
        /// Its name (`runtimeClassName`).
        name: String,
        /// Why not.
        source: ObjectError,
    },
}

/// What the runtime says of one of its handlers.
#[derive(Clone, Copy, Debug)]
pub(super) enum HandlerFeatures {
    /// It tells of none of its handlers.
    Untold,
    /// It tells of others.
    UnknownHandler,
    /// What it can do.
    Known(RuntimeHandlerFeatures),
}

impl RuntimeManager {
    /// The handler that the pod's class names; empty, the runtime's default, without one.
    ///
    /// # Errors
    /// See [`RuntimeClassError`].
    pub(super) async fn runtime_handler(
        &self,
        spec: &PodSpec,
    ) -> Result<String, RuntimeClassError> {
        let name = spec.runtime_class_name.as_deref().unwrap_or_default();
        if name.is_empty() {
            return Ok(String::new());
        }
        match self.objects.runtime_class(name).await {
            Ok(class) => Ok(class.handler.clone()),
            Err(error) if error.is_not_found() => Err(RuntimeClassError::NotFound(error)),
            Err(source) => Err(RuntimeClassError::Lookup {
                name: name.to_owned(),
                source,
            }),
        }
    }

    /// What a handler can do. The runtime is asked each time: it may have been replaced by
    /// one that can more.
    pub(super) async fn handler_features(
        &self,
        handler: &str,
    ) -> Result<HandlerFeatures, CriError> {
        let handlers = self.cri.status().await?.runtime_handlers;
        if handlers.is_empty() {
            return Ok(HandlerFeatures::Untold);
        }
        let known = handlers.into_iter().find(|known| known.name == handler);
        Ok(known.map_or(HandlerFeatures::UnknownHandler, |known| {
            HandlerFeatures::Known(known.features.unwrap_or_default())
        }))
    }
}
