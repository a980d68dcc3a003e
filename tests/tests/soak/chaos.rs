//! What happens around the pods.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use e2e::{asked, engine_proxy::EngineProxy, node::Node, random::Random};
use tokio::time::{Instant, sleep};

use super::tally::Tally;

/// For how long, in seconds.
const SECONDS: &str = "E2E_SOAK_SECONDS";
const SHORT: u64 = 20;
/// What the choices follow from.
const SEED: &str = "E2E_SOAK_SEED";
/// One event in so many is dropped, and as many requests fail or are answered late.
const FAULTS: u64 = 100;
/// Between two tries to start an engine that was killed.
const RETRY: Duration = Duration::from_millis(300);

/// For how many seconds things are killed.
pub fn seconds() -> u64 {
    asked::amount(SECONDS, SHORT)
}

/// The seed of the choices, which it prints: another one each time, if none is asked for.
pub fn seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    let any = RandomState::new().hash_one(0) % 1_000_000 + 1;
    let seed = asked::amount(SEED, any);
    println!("{SEED}={seed} makes these choices again");
    seed
}

/// Has the shim reach the engine through a proxy.
///
/// # Errors
/// The shim does not start.
pub async fn behind_a_proxy(node: &mut Node, random: Random) -> Result<Arc<EngineProxy>> {
    let socket = node.path("proxy.sock");
    let proxy = EngineProxy::start(&node.engine().socket(), &socket, FAULTS, random)?;
    node.kill_shim()?;
    start_shim(node, &proxy).await?;
    Ok(Arc::new(proxy))
}

/// Kills and restarts until `until`, with a pod that becomes whole between any two; returns what
/// it did.
///
/// # Errors
/// Something does not start again.
pub async fn chaos(
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

/// `kill -9` of the shim, and its start some time later.
///
/// # Errors
/// It does not start.
pub async fn kill_shim(node: &mut Node, proxy: &EngineProxy, random: &mut Random) -> Result<()> {
    node.kill_shim()?;
    sleep(random.millis(0, 500)).await;
    start_shim(node, proxy).await
}

/// `kill -9` of the engine, and its start some time later.
///
/// # Errors
/// It does not start.
pub async fn kill_engine(node: &mut Node, random: &mut Random) -> Result<()> {
    node.engine_mut().kill()?;
    sleep(random.millis(0, 1000)).await;
    start_engine(node).await
}

/// As its service manager would. Late answers, one after the other, may take longer than a
/// start is waited for.
async fn start_shim(node: &mut Node, proxy: &EngineProxy) -> Result<()> {
    if node.start_shim_on(&proxy.endpoint()).await.is_ok() {
        return Ok(());
    }
    node.kill_shim()?;
    node.start_shim_on(&proxy.endpoint()).await
}

/// As its service manager would: an engine that was killed may fail to start at first.
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
