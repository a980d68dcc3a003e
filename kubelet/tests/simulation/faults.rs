//! Random faults of the runtime.

use std::time::Duration;

use fake_runtime::{FakeRuntime, Fault, Verb};
use parking_lot::Mutex;
use tonic::Status;

use test_run::random::Random;

/// Makes the runtime fail by chance until its faults are cleared.
pub(crate) fn begin(runtime: &FakeRuntime, random: Random) {
    let random = Mutex::new(random);
    runtime.faults_by_chance(move |verb| meet(verb, &mut random.lock()));
}

fn meet(verb: Verb, random: &mut Random) -> Option<Fault> {
    // Lists are frequent, and a failed one affects all pods.
    let share = match verb {
        Verb::ListPodSandbox | Verb::ListContainers => 5,
        Verb::PodSandboxStatus | Verb::ContainerStatus | Verb::ImageStatus => 15,
        _ => 50,
    };
    if !random.permille(share) {
        return None;
    }
    Some(match random.below(20) {
        0..=6 => Fault::Error(Status::unavailable("the engine is away")),
        7..=8 => Fault::Error(Status::deadline_exceeded("the engine is slow")),
        9..=13 => Fault::ErrorAfter(Status::internal("the answer was lost")),
        14..=17 => Fault::Delay(random.millis(10, 4000)),
        // Pulls have no deadline except the runtime's own.
        _ if verb == Verb::PullImage => Fault::Delay(random.millis(1000, 30_000)),
        18 => Fault::Hang,
        _ => Fault::HangAfter,
    })
}

/// Makes lists fail; returns for how long.
pub(crate) fn outage(runtime: &FakeRuntime, random: &mut Random) -> Duration {
    use fake_runtime::Times::N;
    let away = Fault::Error(Status::unavailable("the engine restarts"));
    let calls = usize::try_from(random.between(1, 8)).unwrap();
    if random.permille(500) {
        runtime.fault(Verb::ListPodSandbox, away.clone(), N(calls));
        runtime.fault(Verb::ListContainers, away, N(calls));
    } else {
        runtime.fault_all(&away, N(calls));
    }
    random.millis(0, 3000)
}
