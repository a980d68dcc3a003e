//! A process with too many open files. It is the only test of its process, whose limit it lowers.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{fs::File, future::poll_fn, os::unix::net::UnixStream, pin::pin, time::Duration};

use cri_proto::server::Incoming;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    net::UnixListener,
    time::{sleep, timeout},
};
use tonic::codegen::tokio_stream::Stream as _;

/// The clock runs only while there is nothing to do.
#[tokio::test(start_paused = true)]
async fn clients_wait_until_files_are_closed_and_the_server_does_not_spin() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("grpc.sock");
    let mut incoming = pin!(Incoming::from(UnixListener::bind(&socket).unwrap()));
    let _client = UnixStream::connect(&socket).unwrap();
    let limit = Rlimit {
        current: Some(64),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();

    let hour = Duration::from_secs(3600);
    let accepted = poll_fn(|context| incoming.as_mut().poll_next(context));
    assert!(timeout(hour, accepted).await.is_err());
    drop(files);
    sleep(Duration::from_secs(1)).await;
    let accepted = poll_fn(|context| incoming.as_mut().poll_next(context));
    assert!(accepted.await.unwrap().is_ok());
}
