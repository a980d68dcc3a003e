//! The disk usage of the engine's images. The request bypasses bollard, whose version makes the
//! engine measure everything else too.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Request;
use serde::Deserialize;

use super::{CHANGE, Cause, Engine, EngineError, hijack::refusal};

/// The size limit of the response, which has an entry for each image.
const LARGEST_ANSWER: usize = 16 << 20;

/// The fields of the response that are used.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Usage {
    /// Up to API 1.51.
    layers_size: Option<u64>,
    /// From API 1.52.
    image_usage: Option<ImageUsage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ImageUsage {
    total_size: Option<u64>,
}

impl Engine {
    /// The bytes of all image layers, with shared layers counted once. For API 1.42 and newer,
    /// because older engines also measure containers and volumes. May take long.
    ///
    /// # Errors
    /// Any [`Cause`].
    pub async fn layers_size(&self) -> Result<u64, EngineError> {
        let call = self.call("count the layers", "of the engine", CHANGE);
        let counted = call.limited(async {
            let connection = call.connection(self).map_err(|error| error.cause)?;
            let request = Request::get(connection.versioned("/system/df?type=image"))
                .body(Empty::<Bytes>::new())
                .map_err(|error| Cause::Protocol(error.to_string()))?;
            let answer = connection.dialer.send(request).await?;
            if !answer.status().is_success() {
                return Err(refusal(answer).await);
            }
            let body = Limited::new(answer.into_body(), LARGEST_ANSWER).collect();
            let body = body
                .await
                .map_err(|error| Cause::Protocol(error.to_string()))?;
            size_in(&body.to_bytes())
        });
        counted.await
    }
}

fn size_in(answer: &[u8]) -> Result<u64, Cause> {
    let usage: Usage =
        serde_json::from_slice(answer).map_err(|error| Cause::Protocol(error.to_string()))?;
    let of_images = usage.image_usage.and_then(|images| images.total_size);
    let size = usage.layers_size.or(of_images);
    size.ok_or_else(|| Cause::Protocol("the size of the layers is missing".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_where_each_api_has_it() {
        for answer in [
            r#"{"LayersSize":7,"Images":[{"Id":"sha256:aa","Size":9}],"Volumes":null}"#,
            r#"{"ImageUsage":{"ActiveCount":1,"TotalSize":7,"Items":[]}}"#,
            r#"{"LayersSize":7,"ImageUsage":{"TotalSize":9}}"#,
        ] {
            assert_eq!(size_in(answer.as_bytes()).unwrap(), 7, "{answer}");
        }
        for answer in ["{}", r#"{"LayersSize":-1}"#, r#"{"ImageUsage":{}}"#, ""] {
            assert!(size_in(answer.as_bytes()).is_err(), "{answer}");
        }
    }
}
