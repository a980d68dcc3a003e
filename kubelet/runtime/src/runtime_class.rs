//! Runtime classes: the runtime handler of a pod, and its features.

use cri_proto::runtime::v1::RuntimeHandlerFeatures;
use k8s_openapi::api::core::v1::PodSpec;
use kubelet_api_client::objects::ObjectError;
use kubelet_cri_client::CriError;

use super::RuntimeManager;

/// Why the runtime handler of a pod could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeClassError {
    /// The runtime class does not exist.
    #[error(transparent)]
    NotFound(ObjectError),
    /// The runtime class could not be read.
    #[error("failed to lookup RuntimeClass {name}: {source}")]
    Lookup {
        /// Its name (`runtimeClassName`).
        name: String,
        /// The error.
        source: ObjectError,
    },
}

/// What the runtime reports of a handler.
#[derive(Clone, Copy, Debug)]
pub(super) enum HandlerFeatures {
    /// The runtime reports no handlers.
    NotReported,
    /// The runtime reports other handlers only.
    UnknownHandler,
    /// The features of the handler.
    Known(RuntimeHandlerFeatures),
}

impl RuntimeManager {
    /// The handler of the pod's runtime class; empty (the runtime's default) if it has none.
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

    /// The features of a handler. They are not cached, because the runtime may be upgraded.
    pub(super) async fn handler_features(
        &self,
        handler: &str,
    ) -> Result<HandlerFeatures, CriError> {
        let handlers = self.cri.status().await?.runtime_handlers;
        if handlers.is_empty() {
            return Ok(HandlerFeatures::NotReported);
        }
        let known = handlers.into_iter().find(|known| known.name == handler);
        Ok(known.map_or(HandlerFeatures::UnknownHandler, |known| {
            HandlerFeatures::Known(known.features.unwrap_or_default())
        }))
    }
}
