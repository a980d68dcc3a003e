//! Expansion of `$(VAR)` in commands, arguments and values of environment variables.

/// Limit of all expanded texts together, in bytes. Linux executes no program with more arguments and
/// variables than 6 MiB. Without a limit, a value that refers twice to a variable whose value does the
/// same, and so on, takes all memory.
const MAX_EXPANDED: usize = 8 << 20;

/// Texts take more memory than any program can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("with the values of its $(NAME) references, it takes more than {MAX_EXPANDED} bytes")]
pub struct TooLong;

/// Expands texts of one container.
#[derive(Debug)]
pub struct Expander {
    left: usize,
}

impl Default for Expander {
    fn default() -> Self {
        Self { left: MAX_EXPANDED }
    }
}

impl Expander {
    /// Replaces each `$(NAME)` with the value that `lookup` returns, and `$$` with `$`. A name
    /// without a value and any other `$` stay as written.
    ///
    /// # Errors
    /// The texts take too much memory.
    pub fn expand<'a>(
        &mut self,
        input: &str,
        lookup: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<String, TooLong> {
        let mut output = String::new();
        let mut rest = input;
        while let Some((before, after)) = rest.split_once('$') {
            self.push(&mut output, before)?;
            rest = after;
            let reference = || rest.strip_prefix('(')?.split_once(')');
            if let Some(after) = rest.strip_prefix('$') {
                self.push(&mut output, "$")?;
                rest = after;
            } else if let Some((name, after)) = reference() {
                match lookup(name) {
                    Some(value) => self.push(&mut output, value)?,
                    None => {
                        for part in ["$(", name, ")"] {
                            self.push(&mut output, part)?;
                        }
                    }
                }
                rest = after;
            } else if rest.starts_with('(') {
                // Nothing is closed any more: only `$$` is left to replace.
                let escaped = rest.replace("$$", "$");
                self.push(&mut output, "$")?;
                self.push(&mut output, &escaped)?;
                return Ok(output);
            } else {
                self.push(&mut output, "$")?;
            }
        }
        self.push(&mut output, rest)?;
        Ok(output)
    }

    fn push(&mut self, output: &mut String, text: &str) -> Result<(), TooLong> {
        self.left = self.left.checked_sub(text.len()).ok_or(TooLong)?;
        output.push_str(text);
        Ok(())
    }
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
            ("$(A $$ $$$ $B", "$(A $ $$ $B"),
        ] {
            let expanded = Expander::default().expand(input, lookup);
            assert_eq!(expanded.as_deref(), Ok(output), "{input}");
        }
    }

    #[test]
    fn no_text_takes_all_memory() {
        let mut expander = Expander::default();
        let mut value = "x".to_owned();
        let mut length = 1;
        let error = loop {
            match expander.expand("$(A)$(A)", |_| Some(&value)) {
                Ok(expanded) => value = expanded,
                Err(error) => break error,
            }
            length *= 2;
            assert_eq!(value.len(), length);
        };
        assert_eq!(error, TooLong);
        assert!(length <= MAX_EXPANDED);
        // Each of them could be the begin of a reference.
        let open = "$(".repeat(1 << 20);
        let expanded = Expander::default().expand(&open, |_| Some("x"));
        assert_eq!(expanded, Ok(open));
    }

    proptest! {
        #[test]
        fn text_without_dollars_is_untouched(input in "[^$]{0,64}") {
            let expanded = Expander::default().expand(&input, |_| Some("x"));
            prop_assert_eq!(expanded, Ok(input));
        }

        #[test]
        fn any_input_is_accepted(input in ".{0,64}") {
            let _ = Expander::default().expand(&input, |_| None);
        }
    }
}
