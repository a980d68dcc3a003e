//! PEM as it is written (RFC 7468); it is read by what uses it.

use std::fmt::Write as _;

use base64::{Engine as _, prelude::BASE64_STANDARD};

/// Characters of a line.
const LINE: usize = 64;

/// A section of PEM, such as a `CERTIFICATE`.
pub fn encode(label: &str, der: &[u8]) -> String {
    let data = BASE64_STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = data.as_str();
    while !rest.is_empty() {
        // Base64 is ASCII.
        let (line, after) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, "-----END {label}-----");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject as _};

    #[test]
    fn what_is_written_is_read() {
        let der: Vec<u8> = (0..200).collect();
        let text = encode("CERTIFICATE", &der);
        assert!(text.lines().all(|line| line.len() <= 64));
        let read = CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
        assert_eq!(&*read, der);
    }
}
