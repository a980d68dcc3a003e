//! Registries and repositories in credentials: URLs without a scheme, with globs in the labels of
//! the host name.

/// A host with an optional port, and a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistryUrl<'a> {
    /// Host and port.
    pub host: &'a str,
    /// Path with its leading slash, or empty.
    pub path: &'a str,
}

impl<'a> RegistryUrl<'a> {
    /// Parses a URL without a scheme.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &'a str) -> Result<Self, &'static str> {
        // Images have no query or fragment, so these are ignored.
        let text = text.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = match text.find('/') {
            Some(slash) => text.split_at(slash),
            None => (text, ""),
        };
        let host = authority.rsplit('@').next().unwrap_or_default();
        if text.chars().any(|c| c.is_control()) || host.contains(char::is_whitespace) {
            return Err("invalid character in host name");
        }
        let port = match host.strip_prefix('[') {
            Some(inner) => match inner.find(']') {
                Some(end) => &inner[end + 1..],
                None => return Err("missing ']' in host"),
            },
            None => host.rfind(':').map_or("", |colon| &host[colon..]),
        };
        let is_port = |text: &str| {
            text.strip_prefix(':')
                .is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
        };
        if !port.is_empty() && !is_port(port) {
            return Err("invalid port after host");
        }
        Ok(Self { host, path })
    }

    /// The labels of the host name, and the port.
    fn parts(&self) -> (Vec<&'a str>, &'a str) {
        let (name, port) = match self.host.rsplit_once(':') {
            Some((name, port)) if name.starts_with('[') && name.ends_with(']') => {
                (&name[1..name.len() - 1], port)
            }
            Some((name, port)) if !name.contains([':', '[', ']']) => (name, port),
            _ => (self.host, ""),
        };
        (name.split('.').collect(), port)
    }

    /// Whether this pattern covers `target`: the ports are equal, the host names have the same
    /// number of labels and each label matches, and `target`'s path starts with this one's.
    pub fn covers(&self, target: &RegistryUrl<'_>) -> bool {
        let (globs, glob_port) = self.parts();
        let (parts, port) = target.parts();
        glob_port == port
            && globs.len() == parts.len()
            && target.path.starts_with(self.path)
            && globs
                .iter()
                .zip(parts)
                .all(|(glob, part)| glob_matches(glob, part))
    }
}

/// Whether `glob` covers `target`; invalid URLs cover nothing.
pub fn covers(glob: &str, target: &str) -> bool {
    match (RegistryUrl::parse(glob), RegistryUrl::parse(target)) {
        (Ok(glob), Ok(target)) => glob.covers(&target),
        _ => false,
    }
}

/// An element of a glob.
enum Token {
    Any,
    Literal(char),
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Token {
    fn matches(&self, c: char) -> bool {
        match self {
            Self::Any => true,
            Self::Literal(literal) => *literal == c,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        }
    }
}

/// Matches shell globs: `*`, `[a-z]`, `[^a]`, and `\` to escape a character. A malformed glob
/// matches nothing.
fn glob_matches(glob: &str, text: &str) -> bool {
    let Some(tokens) = tokens(glob) else {
        return false;
    };
    let text: Vec<char> = text.chars().collect();
    let (mut token, mut at) = (0, 0);
    // Where to backtrack: the token after the last star, and the end of the star's match.
    let mut star: Option<(usize, usize)> = None;
    while at < text.len() {
        match tokens.get(token) {
            Some(Token::Any) => {
                star = Some((token + 1, at));
                token += 1;
                continue;
            }
            Some(single) if single.matches(text[at]) => {
                token += 1;
                at += 1;
                continue;
            }
            _ => {}
        }
        let Some((after, from)) = star else {
            return false;
        };
        star = Some((after, from + 1));
        token = after;
        at = from + 1;
    }
    tokens[token..]
        .iter()
        .all(|token| matches!(token, Token::Any))
}

fn tokens(glob: &str) -> Option<Vec<Token>> {
    let mut characters = glob.chars().peekable();
    let mut tokens = Vec::new();
    while let Some(c) = characters.next() {
        tokens.push(match c {
            '*' => Token::Any,
            '\\' => Token::Literal(characters.next()?),
            '[' => {
                let negated = characters.next_if_eq(&'^').is_some();
                let mut ranges = Vec::new();
                while ranges.is_empty() || characters.next_if_eq(&']').is_none() {
                    let mut bound = || match characters.next()? {
                        '\\' => characters.next(),
                        '-' | ']' => None,
                        c => Some(c),
                    };
                    let low = bound()?;
                    let high = match characters.next_if_eq(&'-') {
                        Some(_) => match characters.next()? {
                            '\\' => characters.next()?,
                            '-' | ']' => return None,
                            c => c,
                        },
                        None => low,
                    };
                    ranges.push((low, high));
                }
                Token::Class { negated, ranges }
            }
            c => Token::Literal(c),
        });
    }
    Some(tokens)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn globs_are_of_the_hosts_parts() {
        for (glob, target, expected) in [
            ("a.example", "a.example", true),
            ("a.example", "a.example/b/c", true),
            ("a.example/b", "a.example/b/c", true),
            ("a.example/b", "a.example/bc", true),
            ("a.example/b", "a.example/c", false),
            ("a.example/b", "a.example", false),
            ("*.example", "a.example", true),
            ("*.example", "a.b.example", false),
            ("*.*.example", "a.b.example", true),
            ("*.example", "example", false),
            ("a*.example", "abc.example", true),
            ("a*c.example", "abd.example", false),
            ("reg-*-[0-9].example", "reg-x-7.example", true),
            ("reg-*-[^0-9].example", "reg-x-7.example", false),
            ("reg-[.example", "reg-[.example", false),
            ("*.example:5000", "a.example:5000", true),
            ("*.example", "a.example:5000", false),
            ("*.example:5000", "a.example", false),
            ("*.example/b*", "a.example/bc", false),
            ("a.*", "a.example", true),
            ("*", "localhost", true),
            ("[::1]:5000", "[::1]:5000/a", true),
            ("user@a.example", "a.example/x", true),
            ("a.example:x", "a.example:x", false),
            ("a b", "a b", false),
        ] {
            assert_eq!(covers(glob, target), expected, "{glob} {target}");
        }
    }

    proptest! {
        #[test]
        fn any_texts_are_answered(glob in ".{0,20}", target in ".{0,20}") {
            let _ = covers(&glob, &target);
        }

        #[test]
        fn a_plain_name_covers_itself(name in "[a-z0-9-]{1,9}(\\.[a-z]{1,5}){0,3}(:[0-9]{1,4})?(/[a-z]{1,4})?") {
            prop_assert!(covers(&name, &name));
        }
    }
}
