//! The API server behind a proxy, which alone can resolve its name.

use std::io;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::TcpStream,
    sync::mpsc,
};

use super::*;

const NAME: &str = "api.test";

/// A proxy that connects each client to `server`, after `handshake`. Returns its address and what it
/// is asked.
async fn proxy_to<F>(
    server: SocketAddr,
    handshake: fn(TcpStream) -> F,
) -> (SocketAddr, mpsc::UnboundedReceiver<String>)
where
    F: Future<Output = io::Result<(TcpStream, String)>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, asked) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let seen = seen.clone();
            tokio::spawn(async move {
                let (mut stream, request) = handshake(stream).await.unwrap();
                seen.send(request).unwrap();
                let mut server = TcpStream::connect(server).await.unwrap();
                let _ = copy_bidirectional(&mut stream, &mut server).await;
            });
        }
    });
    (address, asked)
}

async fn head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).to_lowercase())
}

async fn http(mut stream: TcpStream) -> io::Result<(TcpStream, String)> {
    let head = head(&mut stream).await?;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    Ok((stream, head))
}

/// SOCKS 5 (RFC 1928) with user and password (RFC 1929).
async fn socks(mut stream: TcpStream) -> io::Result<(TcpStream, String)> {
    let mut methods = [0; 3];
    stream.read_exact(&mut methods).await?;
    assert_eq!(methods, [5, 1, 2]);
    stream.write_all(&[5, 2]).await?;
    let mut fields = vec![stream.read_u8().await?.to_string()];
    for _ in 0..2 {
        let length = stream.read_u8().await?;
        let mut field = vec![0; usize::from(length)];
        stream.read_exact(&mut field).await?;
        fields.push(String::from_utf8_lossy(&field).into_owned());
    }
    stream.write_all(&[1, 0]).await?;
    let mut command = [0; 5];
    stream.read_exact(&mut command).await?;
    assert_eq!(command[..4], [5, 1, 0, 3], "connect to a name");
    let mut name = vec![0; usize::from(command[4])];
    stream.read_exact(&mut name).await?;
    let port = stream.read_u16().await?;
    fields.push(format!("{}:{port}", String::from_utf8_lossy(&name)));
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    Ok((stream, fields.join(" ")))
}

/// The bearer token that the API server gets through the proxy of a kubeconfig.
async fn token_through(authority: &Authority, server: SocketAddr, proxy: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("https://{NAME}:{}", server.port());
    let cluster = format!(", proxy-url: '{proxy}'");
    let text = kubeconfig(authority, &url, &cluster, "token: secret");
    let server = ApiServer::new(&access(&dir, &text).unwrap()).unwrap();
    who_am_i(&server.client(None)).await.pop().unwrap()
}

#[tokio::test]
async fn an_http_proxy_connects_to_the_api_server() {
    let authority = Authority::new();
    let server = serve(&authority, NAME).await;
    let (proxy, mut asked) = proxy_to(server, http).await;
    let url = format!("http://user:p%40ss@{proxy}");
    let token = token_through(&authority, server, &url).await;
    assert_eq!(token, "Bearer secret");
    let asked = asked.recv().await.unwrap();
    let line = format!("connect {NAME}:{} http/1.1\r\n", server.port());
    assert!(asked.starts_with(&line), "{asked}");
    let credentials = BASE64.encode("user:p@ss").to_lowercase();
    let header = format!("proxy-authorization: basic {credentials}\r\n");
    assert!(asked.contains(&header), "{asked}");
    assert!(!asked.contains("secret"), "{asked}");
}

#[tokio::test]
async fn a_socks_proxy_connects_to_the_api_server() {
    let authority = Authority::new();
    let server = serve(&authority, NAME).await;
    let (proxy, mut asked) = proxy_to(server, socks).await;
    let url = format!("socks5://user:p%40ss@{proxy}");
    let token = token_through(&authority, server, &url).await;
    assert_eq!(token, "Bearer secret");
    let asked = asked.recv().await.unwrap();
    assert_eq!(asked, format!("1 user p@ss {NAME}:{}", server.port()));
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_in_the_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            head(&mut stream).await.unwrap();
            let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
            stream.write_all(refusal).await.unwrap();
        }
    });
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let cluster = format!(", proxy-url: 'http://user:hidden@{proxy}'");
    let text = kubeconfig(&authority, &format!("https://{NAME}"), &cluster, "");
    let server = ApiServer::new(&access(&dir, &text).unwrap()).unwrap();
    let request = Request::get("/whoami").body(Vec::new()).unwrap();
    let error = server.client(None).request_text(request).await.unwrap_err();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    let part = format!("proxy http://{proxy}/: tunnel error: proxy authorization required");
    assert!(text.contains(&part), "{text}");
    assert!(!text.contains("hidden"), "{text}");
}
