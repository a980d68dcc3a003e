//! Booleans in texts, as Go's `strconv.ParseBool` reads them.

/// Reads a boolean; `None` for other texts.
pub fn parse(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
