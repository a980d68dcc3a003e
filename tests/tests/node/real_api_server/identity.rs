//! Identity: certificates, and reviews of tokens and of access.

use anyhow::Result;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::Method;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};

use super::side::{As, Side};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// A CSR for the client certificate of the node `n1`, in base64.
pub(crate) fn certificate_request() -> Result<String> {
    let mut params = CertificateParams::default();
    let name = &mut params.distinguished_name;
    name.push(DnType::OrganizationName, "system:nodes");
    name.push(DnType::CommonName, "system:node:n1");
    let request = params.serialize_request(&KeyPair::generate()?)?;
    Ok(STANDARD.encode(request.pem()?))
}

pub(crate) async fn exchange(on: &mut Side, request: &str) -> Result<()> {
    sign(on, request).await?;
    review(on).await
}

async fn sign(on: &mut Side, request: &str) -> Result<()> {
    let object = |usages: &[&str]| {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": "one"},
            "spec": {"signerName": "kubernetes.io/kube-apiserver-client-kubelet", "request": request,
                "usages": usages, "expirationSeconds": 7200},
        })
    };
    let none = object(&[]);
    on.give(
        "a signing request for nothing",
        As::Newcomer,
        Method::POST,
        REQUESTS,
        &none,
    )
    .await?;
    let right = object(&["digital signature", "client auth"]);
    on.give(
        "a signing request",
        As::Newcomer,
        Method::POST,
        REQUESTS,
        &right,
    )
    .await?;
    on.give(
        "a signing request again",
        As::Newcomer,
        Method::POST,
        REQUESTS,
        &right,
    )
    .await?;
    let one = "fieldSelector=metadata.name%3Done&resourceVersion=0";
    let is_signed = |event: &Value| event["object"]["status"]["certificate"].is_string();
    // Controllers take a while.
    for _ in 0..20 {
        let events = on
            .watch("a signed request", As::Newcomer, REQUESTS, one)
            .await?;
        if events.iter().any(is_signed) {
            break;
        }
        on.answers.pop();
    }
    // The intermediate events differ, but the result must be the same.
    let path = format!("{REQUESTS}/one");
    on.answers.pop();
    on.ask("the signed request", As::Newcomer, Method::GET, &path)
        .await?;
    Ok(())
}

async fn review(on: &mut Side) -> Result<()> {
    let tokens = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": "unknown"}});
    on.give("an unknown token", As::Node, Method::POST, tokens, &review)
        .await?;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600}});
    let given = on
        .give(
            "an account's token",
            As::Admin,
            Method::POST,
            path,
            &request,
        )
        .await?;
    let mut known = review;
    known["spec"]["token"] = given["status"]["token"].clone();
    on.give("a known token", As::Node, Method::POST, tokens, &known)
        .await?;
    let access = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
    "spec": {"user": "kubernetes-admin", "groups": ["system:masters"], "resourceAttributes": {
        "verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": "n1"}}});
    on.give("an access", As::Node, Method::POST, access, &review)
        .await?;
    Ok(())
}
