//! Finds OOM kills in records of the kernel's log.

use crate::container_id;

/// Priorities from this value on carry a user-space facility; the kernel enforces this.
const FIRST_FOREIGN_PRIORITY: u32 = 8;
/// The flags of a record with a whole message. A fragment may begin with any name.
const WHOLE: &str = "-";

/// The kernel's summary of a kill, since Linux 5.0.
const SUMMARY: &str = "oom-kill:constraint=";
/// The fields before the first path of the summary: of the cgroup that reached its limit, or of the
/// victim if the node ran out of memory.
const LIMITED: &str = ",oom_memcg=";
const GLOBAL: &str = ",global_oom,task_memcg=";
const VICTIM: &str = ",task_memcg=";
/// The field with the name of the cpuset of the process that needed memory, if that is the root.
const ROOT_CPUSET: (&str, &str) = (",cpuset=", "/,mems_allowed=");

/// Before the victim's cgroup, up to Linux 4.20.
const OLD_VICTIM: &str = "Task in ";

/// The beginnings of the messages about a victim while the node is out of memory: with the process,
/// or with a candidate that may be spared in favour of its child, up to Linux 5.2.
const NODE: [&str; 2] = [
    "Out of memory: ",
    "Out of memory (oom_kill_allocating_task): ",
];
const KILLED: &str = "Killed process ";
const CANDIDATE: &str = "Kill process ";
/// The beginning and the end of the message before the further victims in a cgroup whose processes
/// are killed together.
const GROUP: (&str, &str) = (
    "Tasks in ",
    " are going to be killed due to memory.oom.group set",
);

/// A kill by the OOM killer. A kill of a container's process by an OOM of the node is reported as
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomKill<'a> {
    /// A process of the container with this ID was killed.
    Container(&'a str),
    /// The node ran out of memory, not a cgroup at its limit, and a process was killed. Further
    /// processes that are killed with it are not reported.
    Node {
        /// The name of the process, chosen by itself: 15 bytes, where `\xNN` is a byte that is not
        /// printable ASCII. May be empty.
        process: &'a str,
        /// Its ID, in the node's PID namespace.
        pid: u32,
    },
}

/// The state between records.
#[derive(Debug, Default)]
pub(crate) enum OomParser {
    #[default]
    Other,
    /// The victim of the node is in a following record.
    NodeVictimFollows,
    /// Victims that follow belong to one that was reported.
    GroupFollows,
}

impl OomParser {
    /// The kill that a line of a record reports.
    pub(crate) fn kill<'a>(&mut self, line: &'a str) -> Option<OomKill<'a>> {
        let message = message(line)?;
        if let Some(summary) = message.strip_prefix(SUMMARY) {
            *self = Self::Other;
            return container(victim(summary)?);
        }
        if let Some(cgroups) = message.strip_prefix(OLD_VICTIM) {
            return container(cgroups);
        }
        if message.starts_with(GROUP.0) && message.ends_with(GROUP.1) {
            *self = Self::GroupFollows;
            return None;
        }
        let at_node = NODE.iter().find_map(|prefix| message.strip_prefix(prefix));
        let victim = match (at_node, &*self) {
            (Some(_), Self::GroupFollows) => return None,
            (Some(text), _) => text,
            (None, Self::NodeVictimFollows) => message,
            (None, _) => return None,
        };
        if at_node.is_some() && victim.starts_with(CANDIDATE) {
            *self = Self::NodeVictimFollows;
            return None;
        }
        let killed = victim.strip_prefix(KILLED)?;
        *self = Self::Other;
        node(killed)
    }
}

/// The message of a line, if the kernel wrote it as a whole.
fn message(line: &str) -> Option<&str> {
    let (prefix, message) = line.split_once(';')?;
    let mut fields = prefix.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let flags = fields.nth(2)?;
    (priority < FIRST_FOREIGN_PRIORITY && flags == WHOLE).then_some(message)
}

/// The cgroup of the victim and what follows, from a summary.
fn victim(summary: &str) -> Option<&str> {
    // No name has a slash, so the first one begins a path, and the field before it is the kernel's.
    let (fields, path) = first_path(summary)?;
    if fields.ends_with(GLOBAL) {
        return Some(path);
    }
    if !fields.ends_with(LIMITED) {
        return None;
    }
    // The limited cgroup may be a container's own one, with any field in its path; but it contains
    // the victim's.
    path.match_indices(VICTIM).find_map(|(at, field)| {
        let (limited, victim) = (&path[..at], &path[at + field.len()..]);
        let below = victim.strip_prefix(limited)?;
        below.starts_with(['/', ',']).then_some(victim)
    })
}

/// Splits before the first slash that begins a path.
fn first_path(summary: &str) -> Option<(&str, &str)> {
    let first = summary.find('/')?;
    let (before, from) = summary.split_at(first);
    if !before.ends_with(ROOT_CPUSET.0) || !from.starts_with(ROOT_CPUSET.1) {
        return Some((before, from));
    }
    let second = first + 1 + from[1..].find('/')?;
    Some(summary.split_at(second))
}

/// The container of the cgroup at the start of `text`. The names that runtimes choose contain
/// neither commas nor spaces, so a shorter path has the same container.
fn container(text: &str) -> Option<OomKill<'_>> {
    let path = text.split([',', ' ']).next()?;
    container_id::of_cgroup(path).map(OomKill::Container)
}

/// The victim in `<pid> (<name>) <amounts>`. The amounts have no brackets.
fn node(killed: &str) -> Option<OomKill<'_>> {
    let (pid, rest) = killed.split_once(" (")?;
    let (process, _) = rest.rsplit_once(')')?;
    let pid = pid.parse().ok()?;
    Some(OomKill::Node { process, pid })
}
