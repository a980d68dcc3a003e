//! Which log lines are written, by the verbosity of the whole log and of single modules.

use tracing::{Metadata, Subscriber, level_filters::LevelFilter, subscriber::Interest};
use tracing_subscriber::{
    filter::Targets,
    layer::{Context, Filter},
};

/// The verbosity of modules, in the form of `--vmodule`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleVerbosity {
    /// Matches the name of a module (`csi_node`) or, with a slash, its path with the crate
    /// (`kubelet_volume/csi/*`). `*` stands for any text, `?` for one character.
    pub pattern: String,
    /// As that of the whole log.
    pub verbosity: u32,
}

/// Decides which lines are written.
#[derive(Debug)]
pub(super) struct Verbosity {
    all: Targets,
    most: LevelFilter,
    modules: Vec<(String, LevelFilter)>,
}

impl Verbosity {
    /// Up to 3 writes changes of state, 4 and 5 also their reasons, 6 and more each step. Libraries
    /// write one level less. A module can write more: by the first of `modules` that matches.
    pub(super) fn new(verbosity: u32, modules: &[ModuleVerbosity]) -> Self {
        let own = level(verbosity);
        let libraries = match own {
            LevelFilter::INFO => LevelFilter::WARN,
            LevelFilter::DEBUG => LevelFilter::INFO,
            _ => LevelFilter::DEBUG,
        };
        let modules: Vec<_> = modules
            .iter()
            .map(|module| (module.pattern.clone(), level(module.verbosity)))
            .collect();
        let levels = modules.iter().map(|(_, level)| *level);
        Self {
            // Targets match by prefix: this covers all crates named `kubelet_*`.
            all: Targets::new()
                .with_default(libraries)
                .with_target("kubelet", own),
            most: levels.fold(own, LevelFilter::max),
            modules,
        }
    }

    fn writes(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        if target == kubelet_traces::TARGET {
            return false;
        }
        let mut modules = self.modules.iter();
        let module = modules.find(|(pattern, _)| is_module(pattern, target));
        module.is_some_and(|(_, level)| metadata.level() <= level)
            || self.all.would_enable(target, metadata.level())
    }
}

fn level(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

impl<S: Subscriber> Filter<S> for Verbosity {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.writes(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match self.writes(metadata) {
            true => Interest::always(),
            false => Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most)
    }
}

/// Whether a pattern matches the module that writes to `target`.
fn is_module(pattern: &str, target: &str) -> bool {
    if pattern.contains('/') {
        return matches(pattern.as_bytes(), target.replace("::", "/").as_bytes());
    }
    let name = target.rsplit("::").next().unwrap_or(target);
    matches(pattern.as_bytes(), name.as_bytes())
}

fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches(rest, text)
                || text
                    .split_first()
                    .is_some_and(|(_, text)| matches(pattern, text))
        }
        (Some((b'?', rest)), Some((_, text))) => matches(rest, text),
        (Some((a, rest)), Some((b, text))) if a == b => matches(rest, text),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::{Level, debug, info, subscriber::with_default, trace};
    use tracing_subscriber::{Layer as _, Registry, fmt, layer::SubscriberExt as _};

    use super::*;

    #[test]
    fn crates_of_the_family_are_as_verbose_as_the_kubelet_itself() {
        let verbosity = Verbosity::new(0, &[]);
        for target in ["kubelet::sync_loop", "kubelet_volume::csi", "kubelet_host"] {
            assert!(verbosity.all.would_enable(target, &Level::INFO), "{target}");
            assert!(
                !verbosity.all.would_enable(target, &Level::DEBUG),
                "{target}"
            );
        }
        assert!(!verbosity.all.would_enable("hyper::client", &Level::INFO));
    }

    #[test]
    fn patterns_match_the_name_of_a_module_or_its_path() {
        let target = "kubelet_volume::csi::csi_node";
        for pattern in [
            "csi_node",
            "csi*",
            "*",
            "csi?node",
            "kubelet_volume/csi/*",
            "*/csi_*",
        ] {
            assert!(is_module(pattern, target), "{pattern}");
        }
        for pattern in [
            "csi",
            "node",
            "?",
            "kubelet_volume",
            "kubelet_volume/csi",
            "csi/csi_node",
        ] {
            assert!(!is_module(pattern, target), "{pattern}");
        }
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_first_pattern_that_matches_counts() {
        let module = |pattern: &str, verbosity| ModuleVerbosity {
            pattern: pattern.to_owned(),
            verbosity,
        };
        let modules = [module("detailed", 6), module("*ed", 4), module("other", 0)];
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = fmt::layer().with_writer(move || writer.clone());
        let layer = layer.with_filter(Verbosity::new(4, &modules));
        with_default(Registry::default().with(layer), || {
            trace!(target: "kubelet::detailed", "one");
            debug!(target: "kubelet::limited", "two");
            trace!(target: "kubelet::limited", "three");
            debug!(target: "kubelet::other", "four");
            info!(target: "kubelet::other", "five");
            debug!(target: "kubelet::unnamed", "six");
            trace!(target: "kubelet::unnamed", "seven");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let words: Vec<_> = text
            .lines()
            .filter_map(|line| line.rsplit(' ').next())
            .collect();
        assert_eq!(words, ["one", "two", "four", "five", "six"]);
    }
}
