//! Disturbances during the soak test.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use e2e::{engine_proxy::EngineProxy, node::Node};
use test_run::{random::Random, size};
use tokio::time::{Instant, sleep};

use super::tally::Tally;

/// The duration of the disturbances in seconds.
const SECONDS: &str = "E2E_SOAK_SECONDS";
const SHORT: u64 = 20;
/// The seed of the random choices.
const SEED: &str = "E2E_SOAK_SEED";
/// One event in this many is dropped, and one request in this many fails or is answered late.
const FAULTS: u64 = 100;
/// The delay between attempts to start a killed engine.
const RETRY: Duration = Duration::from_millis(300);

/// The duration of the disturbances in seconds.
pub(crate) fn seconds() -> u64 {
    size::amount(SECONDS, SHORT)
}

/// The seed of the random choices, which is printed; a random one by default.
pub(crate) fn seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    let any = RandomState::new().hash_one(0) % 1_000_000 + 1;
    let seed = size::amount(SEED, any);
    println!("{SEED}={seed} makes these choices again");
    seed
}

/// Connects the shim to the engine through a proxy.
///
/// # Errors
/// The shim does not start.
pub(crate) async fn behind_a_proxy(node: &mut Node, random: Random) -> Result<Arc<EngineProxy>> {
    let socket = node.path("proxy.sock");
    let proxy = EngineProxy::start(&node.engine().socket(), &socket, FAULTS, random)?;
    node.kill_shim()?;
    start_shim(node, &proxy).await?;
    Ok(Arc::new(proxy))
}

/// Kills and restarts the shim and the engine until `until`, and waits for a complete pod after
/// each; returns a summary.
///
/// # Errors
/// One of them does not start again.
pub(crate) async fn chaos(
    node: &mut Node,
    proxy: &EngineProxy,
    tally: &Tally,
    mut random: Random,
    until: Instant,
) -> Result<String> {
    let (mut shims, mut stops, mut kills) = (0, 0, 0);
    loop {
        tally.one_more_whole().await;
        sleep(random.millis(0, 2500)).await;
        if Instant::now() >= until {
            break;
        }
        match random.below(10) {
            0 => {
                stops += 1;
                tally.engine_turn();
                node.engine_mut().stop()?;
                start_engine(node).await?;
                tally.engine_turn();
            }
            1 => {
                kills += 1;
                tally.engine_turn();
                kill_engine(node, &mut random).await?;
                tally.engine_turn();
            }
            _ => {
                shims += 1;
                tally.turn();
                kill_shim(node, proxy, &mut random).await?;
                tally.turn();
            }
        }
    }
    Ok(format!(
        "the shim was killed {shims} times, the engine stopped {stops} and killed {kills} times"
    ))
}

/// `kill -9` of the shim, and a start some time later.
///
/// # Errors
/// It does not start.
pub(crate) async fn kill_shim(
    node: &mut Node,
    proxy: &EngineProxy,
    random: &mut Random,
) -> Result<()> {
    node.kill_shim()?;
    sleep(random.millis(0, 500)).await;
    start_shim(node, proxy).await
}

/// `kill -9` of the engine, and a start some time later.
///
/// # Errors
/// It does not start.
pub(crate) async fn kill_engine(node: &mut Node, random: &mut Random) -> Result<()> {
    node.engine_mut().kill()?;
    sleep(random.millis(0, 1000)).await;
    start_engine(node).await
}

/// Retries the start, as a service manager would: several late answers may delay it beyond the
/// deadline.
async fn start_shim(node: &mut Node, proxy: &EngineProxy) -> Result<()> {
    if node.start_shim_on(&proxy.endpoint()).await.is_ok() {
        return Ok(());
    }
    node.kill_shim()?;
    node.start_shim_on(&proxy.endpoint()).await
}

/// Retries the start, as a service manager would: a killed engine may fail to start at first.
async fn start_engine(node: &mut Node) -> Result<()> {
    const TRIES: usize = 5;
    for _ in 1..TRIES {
        if node.engine_mut().start_again().await.is_ok() {
            return Ok(());
        }
        sleep(RETRY).await;
    }
    node.engine_mut().start_again().await
}
