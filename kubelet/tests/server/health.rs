//! Health, its metrics, and how they are sent.

use std::io::Read as _;

use flate2::read::GzDecoder;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{get, request, serve};

#[tokio::test]
async fn a_node_that_works_is_healthy() {
    let served = serve(Ok(())).await;
    for address in [&served.healthz, &served.read_only] {
        for path in [
            "/healthz",
            "/healthz/ping",
            "/healthz/log",
            "/healthz/syncloop",
            "/healthz/device-plugin",
        ] {
            assert_eq!(get(address, path).await, (200, "ok".to_owned()), "{path}");
        }
    }
    assert_eq!(
        get(&served.healthz, "/healthz?verbose").await,
        (
            200,
            "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n"
                .to_owned()
        )
    );
    assert_eq!(get(&served.healthz, "/healthz/nothing").await.0, 404);
    assert_eq!(
        get(&served.healthz, "/pods").await.0,
        404,
        "not on this port"
    );
}

#[tokio::test]
async fn a_node_that_hangs_says_why() {
    let served = serve(Err("the loop has not turned for 3m".to_owned())).await;
    let (status, body) = get(&served.healthz, "/healthz").await;
    assert_eq!(status, 500);
    assert_eq!(
        body,
        "[+]ping ok\n[+]log ok\n[-]syncloop failed: the loop has not turned for 3m\n[+]device-plugin ok\nhealthz check failed\n"
    );
    assert_eq!(get(&served.healthz, "/healthz/syncloop").await.0, 500);
    assert_eq!(
        get(&served.healthz, "/healthz?exclude=syncloop").await.0,
        200
    );
}

/// The samples of a page, without the comments and the start of the process.
fn samples(page: &str) -> Vec<&str> {
    let lines = page.lines();
    lines
        .filter(|line| !line.starts_with('#') && !line.starts_with("process_"))
        .collect()
}

#[tokio::test]
async fn results_of_health_checks_are_counted_until_they_are_reset() {
    let served = serve(Err("the loop has not turned for 3m".to_owned())).await;
    let slis = async || get(&served.read_only, "/metrics/slis").await.1;
    assert_eq!(samples(&slis().await), [""; 0]);
    for path in ["/healthz", "/healthz?exclude=log", "/healthz/syncloop"] {
        get(&served.healthz, path).await;
    }
    get(&served.read_only, "/healthz").await;
    assert_eq!(
        samples(&slis().await),
        [
            r#"kubernetes_healthcheck{name="device-plugin",type="healthz"} 1"#,
            r#"kubernetes_healthcheck{name="log",type="healthz"} 1"#,
            r#"kubernetes_healthcheck{name="ping",type="healthz"} 1"#,
            r#"kubernetes_healthcheck{name="syncloop",type="healthz"} 0"#,
            r#"kubernetes_healthchecks_total{name="device-plugin",status="success",type="healthz"} 3"#,
            r#"kubernetes_healthchecks_total{name="log",status="success",type="healthz"} 2"#,
            r#"kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 3"#,
            r#"kubernetes_healthchecks_total{name="syncloop",status="error",type="healthz"} 3"#,
        ]
    );
    let reset = request(&served.read_only, "DELETE", "/metrics/slis").await;
    assert_eq!(reset, (200, "metrics reset\n".to_owned()));
    assert_eq!(samples(&slis().await), [""; 0]);
}

/// The headers, in lower case, and the body of a page of metrics.
async fn page(address: &str, accept: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("GET /metrics/slis HTTP/1.1\r\nHost: node\r\n{accept}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let body = answer.split_off(end.unwrap() + 4);
    (String::from_utf8(answer).unwrap().to_lowercase(), body)
}

#[tokio::test]
async fn metrics_are_compressed_for_who_accepts_it() {
    let served = serve(Ok(())).await;
    get(&served.healthz, "/healthz").await;
    let (head, plain) = page(&served.read_only, "").await;
    assert!(!head.contains("content-encoding"), "{head}");
    assert!(head.contains("vary: accept-encoding"), "{head}");
    let (head, compressed) = page(&served.read_only, "Accept-Encoding: gzip\r\n").await;
    assert!(head.contains("content-encoding: gzip"), "{head}");
    let length = format!("content-length: {}\r\n", compressed.len());
    assert!(head.contains(&length), "{head}");
    assert!(compressed.len() < plain.len());
    let mut text = Vec::new();
    GzDecoder::new(&*compressed).read_to_end(&mut text).unwrap();
    assert_eq!(text, plain);
}
