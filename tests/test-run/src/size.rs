//! The amount of work of a test run, set by environment variables.

use std::env;

/// The number in the environment variable `variable`; `default` if it is not set.
///
/// # Panics
/// The value is not a number, or it is 0: a run that does nothing proves nothing.
pub fn amount(variable: &str, default: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => parse(variable, &text),
        Err(_) => default,
    }
}

fn parse(variable: &str, text: &str) -> u64 {
    match text.parse() {
        Ok(0) => panic!("{variable}=0 asks for nothing"),
        Ok(number) => number,
        Err(error) => panic!("{variable}={text:?}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn nothing_is_not_asked_for() {
        assert_eq!(parse("N", "7"), 7);
        for text in ["0", "", "-1", "x"] {
            assert!(catch_unwind(|| parse("N", text)).is_err(), "{text:?}");
        }
    }
}
