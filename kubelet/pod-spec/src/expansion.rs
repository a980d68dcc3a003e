//! Expansion of `$(VAR)` in commands, arguments and values of environment variables.

/// Replaces each `$(NAME)` with the value that `lookup` returns, and `$$` with `$`. A name without
/// a value and any other `$` stay as written.
pub fn expand<'a>(input: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some((before, after)) = rest.split_once('$') {
        output.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('$') {
            output.push('$');
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').and_then(|rest| rest.split_once(')'))
        {
            match lookup(name) {
                Some(value) => output.push_str(value),
                None => {
                    output.push_str("$(");
                    output.push_str(name);
                    output.push(')');
                }
            }
            rest = after;
        } else {
            output.push('$');
        }
    }
    output.push_str(rest);
    output
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn expands_names_and_leaves_the_rest() {
        let lookup = |name: &str| match name {
            "A" => Some("1"),
            "EMPTY" => Some(""),
            _ => None,
        };
        for (input, output) in [
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(EMPTY)", ""),
            ("$(B)", "$(B)"),
            ("$(A", "$(A"),
            ("$A $ $", "$A $ $"),
            ("$$", "$"),
        ] {
            assert_eq!(expand(input, lookup), output, "{input}");
        }
    }

    proptest! {
        #[test]
        fn text_without_dollars_is_untouched(input in "[^$]{0,64}") {
            prop_assert_eq!(expand(&input, |_| Some("x")), input);
        }

        #[test]
        fn any_input_is_accepted(input in ".{0,64}") {
            expand(&input, |_| None);
        }
    }
}
