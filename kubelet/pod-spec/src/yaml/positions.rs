//! Positions of values in a YAML document.

use granit_parser::{Event, Marker, Parser};

use crate::json::{Path, Segment};

/// An object or array that has not ended.
struct Open {
    /// Whether this object or array is on the path.
    on_path: bool,
    place: Place,
}

enum Place {
    /// Before a key of an object.
    Key,
    /// Before the value of a key; `None` if the key is not a text.
    Value(Option<String>, Marker),
    /// Before the item of an array with this index.
    Item(usize),
}

/// Line and column, from 1, of the value at a path, or of the nearest object or array in the text
/// that contains it. The position of a field is that of its name.
pub(super) fn find(text: &str, path: &Path) -> Option<(u64, u64)> {
    let path = path.segments();
    let mut open: Vec<Open> = Vec::new();
    let mut found = None;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.ok()?;
        let start = match &event {
            Event::DocumentEnd => break,
            Event::SequenceEnd | Event::MappingEnd => {
                open.pop();
                continue;
            }
            Event::Scalar(..)
            | Event::Alias(..)
            | Event::SequenceStart(..)
            | Event::MappingStart(..) => span.start,
            _ => continue,
        };
        let segment = open.len().checked_sub(1).and_then(|at| path.get(at));
        let here = match open.last_mut() {
            None => Some(start),
            Some(parent) => parent.next_node(&event, start, segment),
        };
        found = here.or(found);
        let place = match event {
            Event::SequenceStart(..) => Place::Item(0),
            Event::MappingStart(..) => Place::Key,
            _ => continue,
        };
        open.push(Open {
            on_path: here.is_some(),
            place,
        });
    }
    let marker: Marker = found?;
    let column = u64::try_from(marker.col()).ok()?;
    Some((u64::try_from(marker.line()).ok()?, column + 1))
}

impl Open {
    /// Goes past a key, value or item. Returns its position if it is at this segment of the path.
    fn next_node(
        &mut self,
        event: &Event<'_>,
        start: Marker,
        segment: Option<&Segment>,
    ) -> Option<Marker> {
        let (next, is_it, position) = match &self.place {
            Place::Key => {
                let key = event.scalar().map(|(text, _)| text.to_owned());
                (Place::Value(key, start), false, start)
            }
            Place::Value(key, at) => {
                let is_it = matches!((key, segment), (Some(key), Some(Segment::Field(name))) if key == name);
                (Place::Key, is_it, *at)
            }
            Place::Item(index) => {
                let is_it = matches!(segment, Some(Segment::Item(item)) if item == index);
                (Place::Item(index + 1), is_it, start)
            }
        };
        self.place = next;
        (self.on_path && is_it).then_some(position)
    }
}
