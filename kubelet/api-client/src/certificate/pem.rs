//! PEM encoding (RFC 7468).

use pem::{EncodeConfig, LineEnding, Pem};

/// Encodes a PEM section, such as a `CERTIFICATE`.
pub fn encode(label: &str, der: &[u8]) -> String {
    let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new(label, der), lines)
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
