use std::collections::HashMap;

use super::*;

/// The proxy of a URL with these variables.
fn proxy(variables: &[(&str, &str)], url: &str) -> Option<String> {
    let variables: HashMap<_, _> = variables.iter().copied().collect();
    let get = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    let proxies = Proxies::of_variables(get).unwrap();
    let proxy = proxies.of(&url.parse().unwrap());
    proxy.map(|proxy| proxy.to_string())
}

#[test]
fn the_variable_of_the_scheme_names_the_proxy() {
    let both = [("HTTP_PROXY", "http://a:1"), ("https_proxy", "b:2")];
    assert_eq!(proxy(&both, "http://web").unwrap(), "http://a:1/");
    assert_eq!(proxy(&both, "https://web:6443/x").unwrap(), "http://b:2/");
    assert_eq!(proxy(&both[..1], "https://web"), None);
    let upper_first = [("HTTPS_PROXY", "a:1"), ("https_proxy", "b:2")];
    assert_eq!(proxy(&upper_first, "https://web").unwrap(), "http://a:1/");
    let empty = [("HTTPS_PROXY", ""), ("https_proxy", "socks5h://u:p@b:2")];
    assert_eq!(proxy(&empty, "https://web").unwrap(), "socks5h://b:2/");
}

#[test]
fn this_machine_and_what_no_proxy_names_are_requested_directly() {
    let with = |no: &str, url: &str| {
        let variables = [
            ("HTTPS_PROXY", "p:1"),
            ("HTTP_PROXY", "p:1"),
            ("NO_PROXY", no),
        ];
        proxy(&variables, url).is_some()
    };
    for url in [
        "https://localhost:6443",
        "https://LOCALHOST",
        "http://127.3.2.1",
        "https://[::1]:6443",
    ] {
        assert!(!with("", url), "{url}");
    }
    for (no, url, is_proxied) in [
        ("", "https://10.1.2.3", true),
        ("*", "https://10.1.2.3", true),
        ("*", "https://web.test", false),
        ("10.0.0.0/8, fd00::/8", "https://10.1.2.3:6443", false),
        ("10.0.0.0/8, fd00::/8", "https://[fd00::1]:6443", false),
        ("10.0.0.0/8, fd00::/8", "https://[fe80::1]:6443", true),
        ("10.1.2.3", "https://10.1.2.30", true),
        ("fd00::1", "https://[fd00::1]:6443", false),
        ("10.1.2.3:6443", "https://10.1.2.3:6443", false),
        ("10.1.2.3:6443", "https://10.1.2.3", true),
        ("[fd00::1]:6443", "https://[fd00::1]:6443", false),
        ("[fd00::1]:443", "https://[fd00::1]:6443", true),
        ("web.test:443", "https://web.test", false),
        ("web.test:443", "http://web.test", true),
        ("web.test", "https://api.web.test:1", false),
        ("web.test", "https://WEB.test:1", false),
        ("web.test", "https://theweb.test:1", true),
        (".web.test", "https://api.web.test", false),
        (".web.test", "https://web.test", true),
        ("*.web.test", "https://api.web.test", false),
        ("*.web.test", "https://web.test", true),
        ("a.test,,web.test", "https://web.test", false),
    ] {
        assert_eq!(with(no, url), is_proxied, "{no:?} {url}");
    }
}

#[test]
fn a_proxy_of_another_kind_is_refused_by_name_without_its_password() {
    let error = |url: &'static str| {
        let get = |name: &str| (name == "https_proxy").then(|| url.to_owned());
        Proxies::of_variables(get).unwrap_err().to_string()
    };
    assert_eq!(
        error("https://u:secret@p:1"),
        "HTTPS_PROXY: proxies with the scheme https are not supported; use http or socks5",
    );
    let malformed =
        "HTTPS_PROXY: not the URL of a proxy, such as http://HOST:PORT or socks5://HOST:PORT";
    for url in [
        "http://u:secret@",
        "http://:secret",
        "a b",
        "http://",
        "p:port",
    ] {
        assert_eq!(error(url), malformed, "{url}");
    }
    let proxies = Proxies::always("socks4://u:secret@p:1").unwrap_err();
    assert!(proxies.to_string().contains("scheme socks4"), "{proxies}");
    let proxies = Proxies::always("http://u:secret@p:1").unwrap();
    let proxy = proxies.of(&Uri::from_static("https://127.0.0.1")).unwrap();
    for shown in [
        format!("{proxies:?}"),
        format!("{proxy:?}"),
        proxy.to_string(),
    ] {
        assert!(!shown.contains("secret"), "{shown}");
    }
}
