use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
};

use proptest::prelude::*;

use super::*;
use crate::logs::engine_file;

/// The number of files that the engine keeps.
const KEPT: usize = 6;

/// An engine log and its conversion.
struct World {
    dir: tempfile::TempDir,
    paths: Paths,
    count: usize,
    /// The rest of an entry that is partly in the engine's file.
    rest: String,
    tail: Option<Tail>,
    /// The position on disk, as after a crash.
    saved: Option<Position>,
    rotations: usize,
}

#[derive(Debug, Clone)]
enum Act {
    Log(usize),
    /// Writes an entry up to this place. The rest comes with the next write.
    LogInPart(prop::sample::Index),
    Tear,
    /// One rotation per number; each number of lines is written first. With `true`, the last entry
    /// of each file is incomplete.
    EngineRotates(Vec<usize>, bool),
    Drain,
    Save,
    Trim,
    Crash,
    LosePosition,
    LogRotates,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            engine_log: dir.path().join("c-json.log"),
            log: dir.path().join("pod/main/0.log"),
        };
        fs::write(&paths.engine_log, "").unwrap();
        Self {
            dir,
            paths,
            count: 0,
            rest: String::new(),
            tail: None,
            saved: None,
            rotations: 0,
        }
    }

    /// Appends to the engine's file, after the rest of an entry that is there in part.
    fn write(&mut self, text: &str) {
        let text = std::mem::take(&mut self.rest) + text;
        let mut file = OpenOptions::new()
            .append(true)
            .open(&self.paths.engine_log)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// The next entry, in the engine's format.
    fn entry(&mut self) -> String {
        let n = self.count;
        self.count += 1;
        format!(
            "{{\"log\":\"line {n}\\n\",\"stream\":\"{}\",\"time\":\"2026-01-01T00:00:00.{n:09}Z\"}}\n",
            stream(n)
        )
    }

    fn log(&mut self, lines: usize) {
        for _ in 0..lines {
            let entry = self.entry();
            self.write(&entry);
        }
    }

    fn log_in_part(&mut self, end: prop::sample::Index) {
        let entry = self.entry();
        let (part, rest) = entry.split_at(end.index(entry.len()));
        self.write(part);
        rest.clone_into(&mut self.rest);
    }

    fn engine_rotates(&mut self) {
        self.write("");
        let numbered = |n: usize| PathBuf::from(format!("{}.{n}", self.paths.engine_log.display()));
        for n in (1..KEPT - 1).rev() {
            let _ = fs::rename(numbered(n), numbered(n + 1));
        }
        fs::rename(&self.paths.engine_log, numbered(1)).unwrap();
        fs::write(&self.paths.engine_log, "").unwrap();
    }

    fn tail(&mut self) -> &mut Tail {
        self.tail
            .get_or_insert_with(|| Tail::open(&self.paths, self.saved.as_ref()).unwrap())
    }

    fn drain(&mut self) {
        while self.tail().drain().unwrap() == DrainProgress::Piece {}
    }

    /// Removes the engine's files before the saved position.
    fn trim(&self) {
        if let Some(EnginePosition::File(taken)) = self.saved.as_ref().map(|saved| &saved.source) {
            engine_file::trim(&self.paths.engine_log, taken).unwrap();
        }
    }

    /// The number of the engine's files.
    fn engine_files(&self) -> usize {
        let entries = fs::read_dir(self.dir.path()).unwrap().flatten();
        entries.filter(|entry| entry.path().is_file()).count()
    }

    /// Rotates the log like the kubelet: the new name starts with the old one.
    fn log_rotates(&mut self) {
        self.drain();
        self.rotations += 1;
        let to = format!("{}.{:04}", self.paths.log.display(), self.rotations);
        fs::rename(&self.paths.log, to).unwrap();
        self.tail().reopen().unwrap();
    }

    /// All lines that the log ever had, oldest first.
    fn lines(&self) -> Vec<String> {
        let mut files: Vec<_> = fs::read_dir(self.dir.path().join("pod/main"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        // The file without a suffix is the newest.
        files.rotate_left(1);
        files
            .iter()
            .flat_map(|file| {
                let text = fs::read_to_string(file).unwrap();
                text.lines().map(str::to_owned).collect::<Vec<_>>()
            })
            .collect()
    }
}

/// The stream of a line: both streams occur, also several times in a row.
fn stream(n: usize) -> &'static str {
    if n % 5 < 3 { "stdout" } else { "stderr" }
}

fn act() -> impl Strategy<Value = Act> {
    let rotations = prop::collection::vec(0..4_usize, 1..KEPT);
    prop_oneof![
        4 => (1..30_usize).prop_map(Act::Log),
        2 => any::<prop::sample::Index>().prop_map(Act::LogInPart),
        1 => Just(Act::Tear),
        2 => (rotations, any::<bool>()).prop_map(|(lines, torn)| Act::EngineRotates(lines, torn)),
        4 => Just(Act::Drain),
        2 => Just(Act::Save),
        1 => Just(Act::Trim),
        2 => Just(Act::Crash),
        1 => Just(Act::LosePosition),
        1 => Just(Act::LogRotates),
    ]
}

proptest! {
    #[test]
    fn every_line_is_there_once_whatever_crashes_and_rotates(acts in prop::collection::vec(act(), 1..60)) {
        let mut world = World::new();
        let mut unread_rotations = 0;
        for act in acts {
            match act {
                Act::Log(lines) => world.log(lines),
                Act::LogInPart(end) => world.log_in_part(end),
                Act::Tear => world.write("{\"log\":\"torn\n"),
                // An engine that removes unread files loses lines, which is unavoidable.
                Act::EngineRotates(all, torn) => for lines in all {
                    if unread_rotations + 2 < KEPT {
                        world.log(lines);
                        if torn {
                            world.write("{\"log\":\"torn at the en");
                        }
                        world.engine_rotates();
                        unread_rotations += 1;
                    }
                }
                Act::Drain => world.drain(),
                Act::Save => {
                    world.drain();
                    world.saved = Some(world.tail().position(false).unwrap());
                    unread_rotations = 0;
                }
                Act::Trim => world.trim(),
                Act::Crash => world.tail = None,
                Act::LosePosition => {
                    // If the log was rotated since, its last line alone is not sufficient.
                    world.drain();
                    if fs::metadata(&world.paths.log).unwrap().len() > 0 {
                        (world.tail, world.saved) = (None, None);
                    }
                }
                Act::LogRotates => {
                    world.log_rotates();
                    world.saved = Some(world.tail().position(false).unwrap());
                    unread_rotations = 0;
                }
            }
        }
        world.write("");
        world.drain();
        let expected: Vec<_> = (0..world.count)
            .map(|n| format!("2026-01-01T00:00:00.{n:09}Z {} F line {n}", stream(n)))
            .collect();
        prop_assert_eq!(world.lines(), expected);
    }
}

#[test]
fn the_engine_keeps_what_was_not_noted_down_and_its_newest_files() {
    let mut world = World::new();
    for round in 0..2 {
        for _ in 0..KEPT - 1 {
            world.log(10);
            world.engine_rotates();
        }
        if round == 0 {
            world.drain();
            world.saved = Some(world.tail().position(false).unwrap());
            world.trim();
            assert_eq!(world.engine_files(), 3);
        }
    }
    // The last file read is kept behind the unread ones, and so is one more.
    let files = world.engine_files();
    world.trim();
    assert_eq!(world.engine_files(), files);
    world.drain();
    world.saved = Some(world.tail().position(false).unwrap());
    world.trim();
    assert_eq!(world.engine_files(), 3);
    assert_eq!(world.lines().len(), 2 * 10 * (KEPT - 1));
}

#[test]
fn a_new_file_with_the_inode_of_one_that_is_gone_is_not_taken_for_it() {
    let mut world = World::new();
    // The position is saved before anything was read, so that no line identifies the file.
    world.saved = world.tail().beginning().unwrap();
    world.log(3);
    world.drain();
    world.tail = None;
    let file = &world.paths.engine_log;
    fs::remove_file(file).unwrap();
    // Most file systems reuse the inode at once.
    fs::write(file, "").unwrap();
    world.log(5);
    world.drain();
    let lines = world.lines();
    assert_eq!(lines.len(), 8, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains(" F line ")));
}

#[test]
fn a_log_that_has_caught_up_tells_the_next_loss() {
    let mut world = World::new();
    world.write("torn\n");
    world.drain();
    assert!(world.tail().losses.is_first(Loss::Unreadable));
}

#[test]
fn a_line_of_the_log_that_a_crash_tore_is_made_anew() {
    for keeps_position in [true, false] {
        let mut world = World::new();
        world.log(3);
        world.drain();
        world.saved = Some(world.tail().position(false).unwrap());
        world.log(3);
        world.drain();
        let log = OpenOptions::new()
            .write(true)
            .open(&world.paths.log)
            .unwrap();
        log.set_len(log.metadata().unwrap().len() - 4).unwrap();
        world.tail = None;
        if !keeps_position {
            world.saved = None;
        }
        world.log(1);
        world.drain();
        let lines = world.lines();
        let whole: Vec<_> = (0..7)
            .map(|n| format!("2026-01-01T00:00:00.{n:09}Z {} F line {n}", stream(n)))
            .collect();
        assert_eq!(lines, whole, "{keeps_position}");
    }
}

#[test]
fn a_crash_between_a_reopen_and_its_note_repeats_nothing() {
    let mut world = World::new();
    world.log(10);
    world.drain();
    world.saved = Some(world.tail().position(false).unwrap());
    world.log(10);
    world.log_rotates();
    world.log(10);
    world.drain();
    world.tail = None;
    world.log(10);
    world.drain();
    assert_eq!(world.lines().len(), 40);
    assert!(world.lines()[39].ends_with("line 39"));
}

#[test]
fn a_link_to_the_engines_own_log_is_not_written_through() {
    let mut world = World::new();
    world.log(3);
    fs::create_dir_all(world.paths.log.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&world.paths.engine_log, &world.paths.log).unwrap();
    world.drain();
    assert_eq!(world.lines().len(), 3);
}

#[test]
fn a_truncated_engine_log_is_read_from_its_beginning() {
    let mut world = World::new();
    world.log(5);
    world.drain();
    fs::write(&world.paths.engine_log, "").unwrap();
    world.drain();
    world.log(2);
    world.drain();
    assert_eq!(world.lines().len(), 7);
}

#[test]
fn a_line_that_never_ends_is_given_up_and_the_next_one_read() {
    let mut world = World::new();
    world.log(1);
    world.drain();
    let endless = "x".repeat(LONGEST_LINE + 1);
    let losses = Losses::default();
    for times in 1..4 {
        world.write(&endless);
        // It is not kept, or read repeatedly, until it ends.
        assert_eq!(world.tail().drain().unwrap(), DrainProgress::All);
        assert_eq!(world.tail().drain().unwrap(), DrainProgress::Nothing);
        world.tail().hand_on_losses(&losses);
        assert_eq!(losses.get(Loss::Unreadable), times);
    }
    world.write("x\n");
    world.log(1);
    world.drain();
    assert_eq!(world.lines().len(), 2);
}

#[test]
fn a_log_that_never_ends_is_converted_in_pieces() {
    let mut world = World::new();
    let line = |n: usize| {
        let text = "x".repeat(16 * 1024);
        format!(
            "{{\"log\":\"{n} {text}\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-01T00:00:00Z\"}}\n"
        )
    };
    let lines = 3 * PIECE / line(0).len();
    for n in 0..lines {
        world.write(&line(n));
    }
    assert_eq!(world.tail().drain().unwrap(), DrainProgress::Piece);
    world.saved = Some(world.tail().position(false).unwrap());
    assert_eq!(world.tail().drain().unwrap(), DrainProgress::Piece);
    world.tail = None;
    world.drain();
    let found = world.lines();
    let numbers = found.iter().map(|line| line.split(' ').nth(3).unwrap());
    assert!(numbers.eq((0..lines).map(|n| n.to_string())));
}

#[test]
fn lines_of_one_time_are_told_apart_by_where_the_log_began() {
    let mut world = World::new();
    let line = |n: usize| {
        format!(
            "{{\"log\":\"line {n}\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-01T00:00:00Z\"}}\n"
        )
    };
    world.saved = world.tail().beginning().unwrap();
    world.write(&line(0));
    world.drain();
    world.tail = None;
    world.write(&line(1));
    world.drain();
    assert_eq!(world.lines().len(), 2);
    (world.tail, world.saved) = (None, None);
    assert_eq!(world.tail().beginning().unwrap(), None);
}
