use std::time::Duration;

use cri_proto::runtime::v1::{
    ContainerConfig, ContainerMetadata, ExecSyncResponse, ImageSpec, PodSandboxConfig,
    PodSandboxMetadata,
};
use fake_runtime::FakeRuntime;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::CriClient;

fn truncator() -> Truncator {
    let bound = Arc::new(Bound::new("runtime", "exec_output", KEPT));
    TruncatedBody::new(Body::empty(), bound).truncator
}

/// A message with its header.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// A response after the cut that comes in pieces of `piece` bytes.
fn cut(response: &[u8], piece: usize) -> Result<Vec<u8>, Status> {
    let mut truncator = truncator();
    let mut cut = Vec::new();
    for piece in response.chunks(piece) {
        cut.extend_from_slice(&truncator.take(Bytes::copy_from_slice(piece))?);
        assert!(truncator.message.len() <= MAX_CUT);
    }
    Ok(cut)
}

fn decoded(response: &[u8]) -> ExecSyncResponse {
    let length = u32::from_be_bytes(response[1..HEAD].try_into().unwrap());
    assert_eq!(usize::try_from(length).unwrap(), response.len() - HEAD);
    ExecSyncResponse::decode(&response[HEAD..]).unwrap()
}

proptest! {
    #[test]
    fn answers_are_the_same_but_for_their_length(
        stdout in 0..3 * KEPT,
        stderr in 0..3 * KEPT,
        exit_code: i32,
        piece in 1..5 * KEPT,
    ) {
        let answer = ExecSyncResponse {
            stdout: vec![b'o'; stdout],
            stderr: vec![b'e'; stderr],
            exit_code,
        };
        let cut = decoded(&cut(&framed(&answer.encode_to_vec()), piece).unwrap());
        let expected = ExecSyncResponse {
            stdout: vec![b'o'; stdout.min(KEPT)],
            stderr: vec![b'e'; stderr.min(KEPT)],
            exit_code,
        };
        prop_assert!(cut == expected);
    }

    #[test]
    fn nonsense_is_an_error_or_nothing(response: Vec<u8>, piece in 1..64_usize) {
        let _ = cut(&response, piece);
        let _ = cut(&framed(&response), piece);
    }
}

#[test]
fn what_nobody_knows_is_left_out_and_does_no_harm() {
    let answer = ExecSyncResponse {
        stdout: b"out".to_vec(),
        stderr: Vec::new(),
        exit_code: -1,
    };
    let mut message = answer.encode_to_vec();
    // Fields that may be added later: a number, four bytes, eight bytes and a text.
    message.extend([0x98, 0x06, 0xac, 0x02]);
    message.extend([0xa5, 0x06, 1, 2, 3, 4]);
    message.extend([0xa9, 0x06, 1, 2, 3, 4, 5, 6, 7, 8]);
    message.extend([0xb2, 0x06, 2, b'n', b'o']);
    for piece in 1..message.len() {
        assert_eq!(decoded(&cut(&framed(&message), piece).unwrap()), answer);
    }
    // Two answers on one response stay two.
    let twice = framed(&message).repeat(2);
    assert_eq!(cut(&twice, 7).unwrap().len() % 2, 0);
}

#[test]
fn messages_that_do_not_add_up_are_refused() {
    let long = u32::try_from(MAX_MESSAGE_SIZE + 1).unwrap().to_be_bytes();
    let many = [0x0a, 0].repeat(MAX_CUT);
    for (response, why) in [
        (&[1, 0, 0, 0, 0][..], "compressed"),
        (&[&[0], &long[..]].concat(), "too large"),
        (&framed(&[0x0a, 5, b'x']), "longer than the message"),
        (&framed(&[0x1d, 1]), "too short"),
        (&framed(&[0x0b]), "unknown type"),
        (&framed(&[0xff; 12]), "unterminated"),
        (&framed(&[0x18, 0x80]), "unterminated"),
        (&framed(&many), "unexpected fields"),
    ] {
        let error = cut(response, 3).unwrap_err();
        assert!(error.message().contains(why), "{error}");
    }
}

async fn running_container(runtime: &FakeRuntime, cri: &CriClient) -> String {
    runtime.add_image("busybox");
    let of_sandbox = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata::default()),
        ..PodSandboxConfig::default()
    };
    let sandbox = cri.run_pod_sandbox(of_sandbox.clone(), "").await.unwrap();
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata::default()),
        image: Some(ImageSpec {
            image: "busybox".to_owned(),
            ..ImageSpec::default()
        }),
        ..ContainerConfig::default()
    };
    let created = cri.create_container(&sandbox, config, of_sandbox).await;
    let container = created.unwrap();
    cri.start_container(&container).await.unwrap();
    container
}

#[tokio::test]
async fn a_client_has_the_beginning_of_what_a_command_prints() {
    const MIB: usize = 1 << 20;
    let runtime = FakeRuntime::new();
    runtime.on_exec(|_, command| ExecSyncResponse {
        stdout: command[0].repeat(7 * MIB).into_bytes(),
        stderr: vec![b'e'; 8 * MIB],
        exit_code: 3,
    });
    let timeout = Duration::from_secs(60);
    let cri = CriClient::from_channels(runtime.channel(), runtime.channel(), timeout);
    let container = running_container(&runtime, &cri).await;
    let command = vec!["o".to_owned()];
    let answer = cri
        .exec_sync(&container, command.clone(), timeout)
        .await
        .unwrap();
    assert_eq!(answer.exit_code, 3);
    assert_eq!((answer.stdout.len(), answer.stderr.len()), (10_240, 10_240));
    assert!(answer.stdout.iter().all(|byte| *byte == b'o'));
    assert!(answer.stderr.iter().all(|byte| *byte == b'e'));
    let whole = cri
        .exec_sync_whole(&container, command, timeout)
        .await
        .unwrap();
    assert_eq!((whole.stdout.len(), whole.stderr.len()), (7 * MIB, 8 * MIB));
}
