//! Approval of the serving certificates of kubelets. The Kubernetes controllers approve client
//! certificates only, so a real cluster needs another approver.

use std::time::Duration;

use anyhow::Result;
use hyper::Request;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::send;

/// The polling interval for certificate signing requests.
const EVERY: Duration = Duration::from_millis(300);

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// Approves every pending request. Never returns.
pub(super) async fn approve(client: Client) {
    loop {
        // Errors are ignored: there is nothing to approve while the server is down.
        let _ = approve_waiting(&client).await;
        sleep(EVERY).await;
    }
}

async fn approve_waiting(client: &Client) -> Result<()> {
    let list = Request::get(REQUESTS).body(Body::empty())?;
    let (_, mut list) = send(client.clone(), list).await?;
    let waits = |request: &Value| {
        request["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
            && request["status"]["conditions"].is_null()
    };
    let Value::Array(requests) = list["items"].take() else {
        return Ok(());
    };
    for mut request in requests.into_iter().filter(waits) {
        let name = request["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{REQUESTS}/{name}/approval");
        request["status"]["conditions"] = json!([{
            "type": "Approved", "status": "True", "reason": "AdministratorApproved",
            "message": "A kubelet of this cluster.",
        }]);
        let approval = Request::put(path)
            .header("content-type", "application/json")
            .body(Body::from(request.to_string().into_bytes()))?;
        send(client.clone(), approval).await?;
    }
    Ok(())
}
