//! Texts of plugins, for logs, events and statuses.

/// The longest text in bytes, as that of messages in the API.
pub const LONGEST: usize = 1024;
const CUT: &str = "...";

/// A plugin's text, cut if it is too long.
pub fn shortened(mut text: String) -> String {
    if text.len() > LONGEST {
        let mut ends = (0..=LONGEST - CUT.len()).rev();
        let end = ends.find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
        text.push_str(CUT);
    }
    text
}
