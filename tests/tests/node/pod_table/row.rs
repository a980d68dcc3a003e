//! A row of the table: a pod's spec and its expected status.

use std::{path::Path, time::Duration};

use anyhow::Result;
use serde_json::Value;

use super::run::PodUnderTest;

/// A step of a row; steps run in sequence.
pub(crate) enum Step {
    /// Waits until all of these hold at the same time.
    Shows(Vec<(FieldPath, Expect)>),
    /// Fails if one of these stops holding within this time.
    Stays(Duration, Vec<(FieldPath, Expect)>),
    /// Waits until a container's log matches.
    Log(&'static str, Expect),
    /// Writes the manifest with a new spec.
    Edit(String),
    /// Waits until a condition, described by the text, holds.
    Until(&'static str, Check),
    /// Stops a container without the kubelet.
    StopContainer(&'static str),
    /// Stops the pod's sandbox without the kubelet.
    StopSandbox,
    /// Changes something on the node.
    Do(Action),
    /// Waits until the kubelet's log contains this text about the manifest or the pod.
    Said(&'static str),
}

pub(crate) type Check = Box<dyn Fn(&PodUnderTest<'_>) -> Result<bool>>;
pub(crate) type Action = Box<dyn Fn(&PodUnderTest<'_>) -> Result<()>>;

/// The place of a value in a pod.
#[derive(Clone, Debug)]
pub(crate) enum FieldPath {
    /// A JSON pointer into the pod.
    Pod(String),
    /// A JSON pointer into the status of a container of any kind.
    Container(&'static str, String),
    /// A JSON pointer into a condition.
    Condition(&'static str, String),
}

/// The expected value.
#[derive(Clone, Debug)]
pub(crate) enum Expect {
    Is(Value),
    OneOf(Vec<Value>),
    Contains(String),
    AtLeast(i64),
    Present,
    Absent,
}

impl<T: Into<Value>> From<T> for Expect {
    fn from(value: T) -> Self {
        Self::Is(value.into())
    }
}

pub(crate) fn contains(text: &str) -> Expect {
    Expect::Contains(text.to_owned())
}

pub(crate) const fn at_least(number: i64) -> Expect {
    Expect::AtLeast(number)
}

pub(crate) fn one_of(values: &[&str]) -> Expect {
    Expect::OneOf(values.iter().map(|value| (*value).into()).collect())
}

pub(crate) const PRESENT: Expect = Expect::Present;
pub(crate) const ABSENT: Expect = Expect::Absent;

impl Expect {
    pub(crate) fn holds(&self, found: Option<&Value>) -> bool {
        match (self, found) {
            (Self::Absent, found) => found.is_none_or(Value::is_null),
            (_, None) => false,
            (Self::Present, Some(found)) => !found.is_null(),
            (Self::Is(value), Some(found)) => found == value,
            (Self::OneOf(values), Some(found)) => values.contains(found),
            (Self::Contains(text), Some(found)) => {
                found.as_str().is_some_and(|found| found.contains(text))
            }
            (Self::AtLeast(number), Some(found)) => {
                found.as_i64().is_some_and(|found| found >= *number)
            }
        }
    }
}

/// A requirement of a row; if it is missing, the row is skipped with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A machine on which the engine can grant CAP_SYS_RESOURCE: before Docker 25, it gives a
    /// privileged container all capabilities that the kernel knows.
    SysResource,
    /// A runtime with image volumes: containerd supports them from 2.1 on.
    ImageVolumes,
    /// A runtime that takes the stop signal from the kubelet: containerd does from 2.1 on.
    StopSignal,
}

/// One row.
pub(crate) struct Row {
    pub name: &'static str,
    /// A description of the feature.
    pub feature: &'static str,
    /// Additional lines of the pod's metadata.
    pub metadata: &'static str,
    pub spec: String,
    pub steps: Vec<Step>,
    pub before: Option<fn(&Path) -> Result<()>>,
    pub after_removal: Option<(&'static str, Check)>,
    pub needs: Option<Need>,
}

pub(crate) fn row(name: &'static str, feature: &'static str, spec: &str) -> Row {
    Row {
        name,
        feature,
        metadata: "",
        spec: spec.to_owned(),
        steps: Vec::new(),
        before: None,
        after_removal: None,
        needs: None,
    }
}

impl Row {
    pub(crate) fn metadata(mut self, lines: &'static str) -> Self {
        self.metadata = lines;
        self
    }

    pub(crate) fn needs(mut self, need: Need) -> Self {
        self.needs = Some(need);
        self
    }

    /// Runs before the pod is created; the row's own directory (`DIR` in its spec) exists.
    pub(crate) fn before(mut self, action: fn(&Path) -> Result<()>) -> Self {
        self.before = Some(action);
        self
    }

    /// A condition that must hold after the manifest and the pod were removed.
    pub(crate) fn after_removal(
        mut self,
        what: &'static str,
        check: impl Fn(&PodUnderTest<'_>) -> Result<bool> + 'static,
    ) -> Self {
        self.after_removal = Some((what, Box::new(check)));
        self
    }

    fn shows(mut self, place: FieldPath, expect: Expect) -> Self {
        if let Some(Step::Shows(all)) = self.steps.last_mut() {
            all.push((place, expect));
        } else {
            self.steps.push(Step::Shows(vec![(place, expect)]));
        }
        self
    }

    /// Expects a value at a JSON pointer into the pod. Consecutive expectations must hold at the
    /// same time.
    pub(crate) fn pod(self, pointer: &str, expect: impl Into<Expect>) -> Self {
        self.shows(FieldPath::Pod(pointer.to_owned()), expect.into())
    }

    pub(crate) fn phase(self, phase: &str) -> Self {
        self.pod("/status/phase", phase)
    }

    pub(crate) fn container(
        self,
        name: &'static str,
        pointer: &str,
        expect: impl Into<Expect>,
    ) -> Self {
        self.shows(
            FieldPath::Container(name, pointer.to_owned()),
            expect.into(),
        )
    }

    pub(crate) fn condition(self, name: &'static str, status: &str) -> Self {
        self.shows(
            FieldPath::Condition(name, "/status".to_owned()),
            status.into(),
        )
    }

    pub(crate) fn condition_of(
        self,
        name: &'static str,
        pointer: &str,
        expect: impl Into<Expect>,
    ) -> Self {
        self.shows(
            FieldPath::Condition(name, pointer.to_owned()),
            expect.into(),
        )
    }

    /// The last expectations must keep holding for `seconds`.
    pub(crate) fn stays(mut self, seconds: u64) -> Self {
        if let Some(Step::Shows(all)) = self.steps.last() {
            let all = all.clone();
            self.steps
                .push(Step::Stays(Duration::from_secs(seconds), all));
        }
        self
    }

    pub(crate) fn log(mut self, container: &'static str, expect: impl Into<Expect>) -> Self {
        self.steps.push(Step::Log(container, expect.into()));
        self
    }

    pub(crate) fn edit(mut self, spec: &str) -> Self {
        self.steps.push(Step::Edit(spec.to_owned()));
        self
    }

    pub(crate) fn until(
        mut self,
        what: &'static str,
        check: impl Fn(&PodUnderTest<'_>) -> Result<bool> + 'static,
    ) -> Self {
        self.steps.push(Step::Until(what, Box::new(check)));
        self
    }

    pub(crate) fn then(
        mut self,
        action: impl Fn(&PodUnderTest<'_>) -> Result<()> + 'static,
    ) -> Self {
        self.steps.push(Step::Do(Box::new(action)));
        self
    }

    pub(crate) fn stop_container(mut self, name: &'static str) -> Self {
        self.steps.push(Step::StopContainer(name));
        self
    }

    pub(crate) fn stop_sandbox(mut self) -> Self {
        self.steps.push(Step::StopSandbox);
        self
    }

    pub(crate) fn said(mut self, text: &'static str) -> Self {
        self.steps.push(Step::Said(text));
        self
    }
}
