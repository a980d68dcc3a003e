//! The memory of a session is freed when it ends.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "the functions of an allocator are unsafe")]

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use cri_streaming::client::{Client, Transport};
use support::{ALL, Served, pattern};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Allocated bytes.
static HELD: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: the calls are forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SESSIONS: usize = 20;
/// Bytes that the first session allocates for all. This is less than one session leaves unread.
const MADE_ONCE: usize = 25_000;

/// Runs sessions that leave `unread` bytes unread, half of them at the server and half at the
/// client, and drops them.
async fn sessions(served: &Served, transport: Transport, unread: usize) {
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        let hangs = number % 2 == 0;
        let script = if hangs {
            "hang"
        } else {
            &*format!("burst {unread}")
        };
        let url = served.exec(script, ALL);
        let client = Client::default();
        let mut command = client.command(&url, transport, ALL).await.unwrap();
        if hangs {
            let stdin = command.stdin.as_mut().unwrap();
            stdin.write_all(&pattern(unread)).await.unwrap();
        } else {
            // Once the first byte has arrived, the rest has been sent as well.
            let stdout = command.stdout.as_mut().unwrap();
            stdout.read_u8().await.unwrap();
        }
        sessions.push(command);
    }
    drop(sessions);
    served.settled().await;
}

#[tokio::test]
async fn what_is_unread_goes_with_its_session() {
    let served = Served::new().await;
    let before = HELD.load(Ordering::Relaxed);
    // These sizes are below the limit of a stream, so no writer blocks.
    for (transport, unread) in [(Transport::Spdy, 200_000), (Transport::WebSocket, 30_000)] {
        sessions(&served, transport, unread).await;
        // Tasks of the last sessions may still be running.
        let given_back = async {
            while HELD.load(Ordering::Relaxed) > before + MADE_ONCE {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let given_back = tokio::time::timeout(Duration::from_secs(20), given_back).await;
        let held = HELD.load(Ordering::Relaxed).saturating_sub(before);
        assert!(given_back.is_ok(), "{transport:?}: {held} bytes are held");
    }
}
