//! Bearer tokens in the subprotocols of a WebSocket request: browsers can set no other header.

use axum::http::{HeaderMap, HeaderValue, header};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};

use super::AuthenticationError;

/// Prefix of a subprotocol that carries a token, which follows in Base64.
const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// The token of a WebSocket request; `None` without one.
///
/// # Errors
/// There is more than one token, the token is malformed, or there is no other subprotocol to
/// negotiate.
pub(super) fn token(headers: &HeaderMap) -> Result<Option<String>, AuthenticationError> {
    if !is_websocket(headers) {
        return Ok(None);
    }
    let is_token = |name: &&str| name.starts_with(PREFIX);
    let mut tokens = protocols(headers).filter(is_token);
    let Some(encoded) = tokens.next().and_then(|name| name.strip_prefix(PREFIX)) else {
        return Ok(None);
    };
    if tokens.next().is_some() {
        return Err(AuthenticationError::Tokens);
    }
    let token = BASE64_URL_SAFE_NO_PAD.decode(encoded);
    let token = token.ok().and_then(|token| String::from_utf8(token).ok());
    let token = token.ok_or(AuthenticationError::Encoding)?;
    if token.is_empty() {
        return Ok(None);
    }
    if protocols(headers).all(|name| is_token(&name)) {
        return Err(AuthenticationError::NoOtherProtocol);
    }
    Ok(Some(token))
}

/// Removes tokens from the subprotocols, so that they are not passed on.
pub(crate) fn remove_tokens(headers: &mut HeaderMap) {
    if !protocols(headers).any(|name| name.starts_with(PREFIX)) {
        return;
    }
    let others = protocols(headers).filter(|name| !name.starts_with(PREFIX));
    let others = others.collect::<Vec<_>>().join(",");
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    // Values that came from headers are valid in a header.
    if let Ok(others) = HeaderValue::from_str(&others)
        && !others.is_empty()
    {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, others);
    }
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE);
    let is_websocket = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    let upgrades = |value: &HeaderValue| {
        let value = value.to_str().unwrap_or_default();
        value.to_ascii_lowercase().contains("upgrade")
    };
    upgrade.is_some_and(is_websocket) && headers.get_all(header::CONNECTION).iter().any(upgrades)
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(protocols: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("WebSocket"));
        for names in protocols {
            headers.append(header::SEC_WEBSOCKET_PROTOCOL, names.parse().unwrap());
        }
        headers
    }

    /// The subprotocol with this token.
    fn with(token: &str) -> String {
        format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(token))
    }

    #[test]
    fn a_token_is_a_subprotocol_beside_others() {
        let both = format!("v5.channel.k8s.io, {}", with("abc"));
        assert_eq!(token(&headers(&[&both])).unwrap().as_deref(), Some("abc"));
        assert_eq!(token(&headers(&["v5.channel.k8s.io"])).unwrap(), None);
        let mut plain = headers(&[&both]);
        plain.remove(header::UPGRADE);
        assert_eq!(token(&plain).unwrap(), None, "no WebSocket is asked for");
        for (protocols, why) in [
            (vec![with("abc")], "missing additional subprotocol"),
            (vec![both, with("def")], "multiple"),
            (vec![format!("v4, {PREFIX}***")], "encoding"),
        ] {
            let protocols: Vec<&str> = protocols.iter().map(String::as_str).collect();
            let error = token(&headers(&protocols)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn tokens_go_no_further() {
        let both = format!("v5.channel.k8s.io,{}", with("abc"));
        let mut headers = headers(&[&both, "v4.channel.k8s.io"]);
        remove_tokens(&mut headers);
        let left: Vec<_> = headers
            .get_all(header::SEC_WEBSOCKET_PROTOCOL)
            .iter()
            .collect();
        assert_eq!(left, ["v5.channel.k8s.io,v4.channel.k8s.io"]);
    }
}
