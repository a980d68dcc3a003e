//! The iptables chains that the kubelet keeps for other programs on the node. It needs none of them
//! itself.

use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    process::Command,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// Between checks whether the chains still exist.
pub const CHECK_PERIOD: Duration = Duration::from_secs(60);

/// For one run of `iptables`, which waits for other users of its lock up to 5 s itself.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// How long a flush of all tables may take, and between looks for its end.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
const FLUSH_POLL: Duration = Duration::from_millis(100);

/// Network plugins look for this chain with both variants of iptables (legacy and nft), to find out
/// which one the node uses.
const HINT: &str = "KUBE-IPTABLES-HINT";
/// Packets that no node should receive are dropped here.
const FIREWALL: &str = "KUBE-FIREWALL";
/// A flush of the tables removes it with all the others. It is in each table that has one of them.
const CANARY: &str = "KUBE-KUBELET-CANARY";
const CANARY_TABLES: [&str; 3] = ["mangle", "nat", "filter"];

/// Drops packets from elsewhere to a loopback address, unless the node answers with them or
/// redirected them itself. kube-proxy's `route_localnet` would let them in
/// (<https://issue.k8s.io/90259>). kube-proxy has the same rule.
const DROP_MARTIANS: &[&str] = &[
    "-m",
    "comment",
    "--comment",
    "block incoming localnet connections",
    "--dst",
    "127.0.0.0/8",
    "!",
    "--src",
    "127.0.0.0/8",
    "-m",
    "conntrack",
    "!",
    "--ctstate",
    "RELATED,ESTABLISHED,DNAT",
    "-j",
    "DROP",
];

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The chains of one family (`makeIPTablesUtilChains`).
#[derive(Debug)]
pub struct UtilityChains {
    program: PathBuf,
    family: Family,
}

/// Why a run of `iptables` failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// It did not run.
    #[error("cannot run {}: {source}", program.display())]
    Run { program: PathBuf, source: io::Error },
    /// It ran longer than [`TIME_LIMIT`].
    #[error("{} did not end within {}s", .0.display(), TIME_LIMIT.as_secs())]
    Hangs(PathBuf),
    /// It refused.
    #[error("{command}: {output}")]
    Refused {
        command: String,
        output: String,
        code: Option<i32>,
    },
}

impl Failure {
    /// Whether the program answered "no": the chain or rule does not exist, or cannot be created
    /// because it exists.
    const fn is_no(&self) -> bool {
        matches!(self, Self::Refused { code: Some(1), .. })
    }

    /// Another user of the lock, such as a network plugin, says nothing about this machine.
    fn ignore_contention(self) -> Result<(), Self> {
        match self {
            Self::Refused { code: Some(4), .. } => Ok(()),
            other => Err(other),
        }
    }
}

impl UtilityChains {
    /// The chains of both families, with the programs of the search path.
    #[must_use]
    pub fn of_this_machine() -> [Self; 2] {
        [
            Self::new("iptables".into(), Family::V4),
            Self::new("ip6tables".into(), Family::V6),
        ]
    }

    /// The chains of `family`, by `program`: `iptables` or `ip6tables`.
    #[must_use]
    pub const fn new(program: PathBuf, family: Family) -> Self {
        Self { program, family }
    }

    /// Creates the chains, and again after they were flushed, which is checked every `period`
    /// ([`CHECK_PERIOD`]), until cancelled. They stay then. Returns at once on a machine without
    /// iptables: no program that needs the chains can be there.
    pub async fn keep(self, period: Duration, cancel: CancellationToken) {
        let keep = async {
            let present = self.run(&["-S", "POSTROUTING", "-t", "nat"]).await;
            if let Err(error) = present.or_else(Failure::ignore_contention) {
                info!(%error, family = ?self.family, "no iptables; not creating the utility chains");
                return;
            }
            // The canaries of an earlier kubelet do not stand for all of today's chains and rules.
            let mut created = false;
            let mut failed = false;
            loop {
                let kept = match created {
                    true => self.restore().await,
                    false => self.create().await,
                };
                match kept {
                    Ok(()) => (created, failed) = (true, false),
                    // Such as another user of the lock.
                    Err(error) if failed => debug!(%error, "no iptables utility chains"),
                    Err(error) => {
                        failed = true;
                        warn!(
                            %error, family = ?self.family,
                            "cannot keep the iptables utility chains; retrying"
                        );
                    }
                }
                time::sleep(period).await;
            }
        };
        cancel.run_until_cancelled(keep).await;
    }

    /// Creates the chains again if one of their canaries is missing.
    async fn restore(&self) -> Result<(), Failure> {
        if self.canaries().await? == CANARY_TABLES.len() {
            return Ok(());
        }
        // A flush goes from table to table, and would remove what is created meanwhile.
        let started = Instant::now();
        while self.canaries().await? > 0 && started.elapsed() < FLUSH_LIMIT {
            time::sleep(FLUSH_POLL).await;
        }
        self.create().await
    }

    /// How many canaries exist.
    async fn canaries(&self) -> Result<usize, Failure> {
        let mut found = 0;
        for table in CANARY_TABLES {
            match self.run(&["-S", CANARY, "-t", table]).await {
                Ok(()) => found += 1,
                Err(error) if error.is_no() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Creates what is missing; the canaries last, because they stand for the rest.
    async fn create(&self) -> Result<(), Failure> {
        self.ensure_chain("mangle", HINT).await?;
        if self.family == Family::V4 {
            // The kernel refuses such packets by itself with IPv6.
            self.ensure_chain("filter", FIREWALL).await?;
            for from in ["OUTPUT", "INPUT"] {
                self.ensure_rule("-I", from, &["-j", FIREWALL]).await?;
            }
            self.ensure_rule("-A", FIREWALL, DROP_MARTIANS).await?;
        }
        for table in CANARY_TABLES {
            self.ensure_chain(table, CANARY).await?;
        }
        info!(family = ?self.family, "the iptables utility chains are in place");
        Ok(())
    }

    async fn ensure_chain(&self, table: &str, chain: &str) -> Result<(), Failure> {
        match self.run(&["-N", chain, "-t", table]).await {
            Err(error) if error.is_no() => {
                // It exists, unless it cannot be created.
                let exists = self.run(&["-S", chain, "-t", table]).await;
                exists.map_err(|_| error)
            }
            result => result,
        }
    }

    /// Ensures a rule in the table `filter`. `position` is where a missing one is added: `-A` (at
    /// the end) or `-I` (at the front).
    async fn ensure_rule(&self, position: &str, chain: &str, rule: &[&str]) -> Result<(), Failure> {
        let command = |verb| [&[verb, chain, "-t", "filter"], rule].concat();
        match self.run(&command("-C")).await {
            Err(error) if error.is_no() => self.run(&command(position)).await,
            result => result,
        }
    }

    async fn run(&self, arguments: &[&str]) -> Result<(), Failure> {
        let failed = |source| Failure::Run {
            program: self.program.clone(),
            source,
        };
        let mut command = Command::new(&self.program);
        command.args(["-w", "5"]).args(arguments);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = time::timeout(TIME_LIMIT, command.output()).await;
        let output = output.map_err(|_| Failure::Hangs(self.program.clone()))?;
        let output = output.map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        Err(Failure::Refused {
            command: format!("{} {}", name(&self.program), arguments.join(" ")),
            output: format!(
                "{} ({})",
                String::from_utf8_lossy(&output.stderr).trim(),
                output.status
            ),
            code: output.status.code(),
        })
    }
}

fn name(program: &Path) -> String {
    let name = program.file_name().unwrap_or(program.as_os_str());
    name.to_string_lossy().into_owned()
}
