//! Encryption and authentication of the checkpoint's files.

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
    rand::{SecureRandom as _, SystemRandom},
};
use tracing::warn;

/// Length of a key in bytes.
const KEY_LEN: usize = 32;
/// Label for deriving the MAC key, so that each key has a single use.
const MAC_KEY_LABEL: &[u8] = b"kubelet-checkpoint v1 hmac-sha256";
/// Mode bits of a file that group or others can read.
const OTHERS_READ: u32 = 0o044;

/// Why a key is unusable.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The key file cannot be read.
    #[error("--bootstrap-checkpoint-key: cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The key file does not contain a key.
    #[error(
        "--bootstrap-checkpoint-key: {} is not a key: it must contain 32 bytes, raw or in base64 \
         (such as the output of `openssl rand -base64 32`)",
        .0.display()
    )]
    Format(PathBuf),
}

/// The system provides no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot encrypt it: the system provides no random numbers")]
pub struct NoRandomness;

/// A key for AES-256-GCM, and a derived one for HMAC-SHA256. Each text has a random nonce, which is
/// safe for about 2^32 texts per key (NIST SP 800-38D, 8.3): more than a node writes in its
/// lifetime.
pub struct SealingKey {
    key: LessSafeKey,
    mac: hmac::Key,
    random: SystemRandom,
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingKey").finish_non_exhaustive()
    }
}

impl SealingKey {
    /// Reads the key from a file: 32 bytes, plain or in base64. Blocks on the file.
    ///
    /// # Errors
    /// The file cannot be read or does not contain a key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let bytes = fs::read(path).map_err(|source| KeyError::Read {
            path: path.to_owned(),
            source,
        })?;
        if fs::metadata(path).is_ok_and(|metadata| is_exposed(metadata.mode())) {
            warn!(
                path = %path.display(),
                "--bootstrap-checkpoint-key: other users can read the key, and decrypt the \
                 checkpoint with it; run `chmod 0600` on the file"
            );
        }
        Self::parse(&bytes).ok_or_else(|| KeyError::Format(path.to_owned()))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let key = match bytes.len() {
            KEY_LEN => bytes.to_vec(),
            _ => STANDARD.decode(bytes.trim_ascii()).ok()?,
        };
        let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), MAC_KEY_LABEL);
        let key = UnboundKey::new(&AES_256_GCM, &key).ok()?;
        Some(Self {
            key: LessSafeKey::new(key),
            mac: hmac::Key::new(hmac::HMAC_SHA256, mac.as_ref()),
            random: SystemRandom::new(),
        })
    }

    /// Encrypts a text. The result is the nonce, the ciphertext and the tag; decryption requires
    /// the same `context`.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn seal(&self, context: &[u8], text: &[u8]) -> Result<Vec<u8>, NoRandomness> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| NoRandomness)?;
        let mut body = text.to_vec();
        let aad = Aad::from(context);
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut body)
            .map_err(|_| NoRandomness)?;
        let mut sealed = nonce.to_vec();
        sealed.append(&mut body);
        Ok(sealed)
    }

    /// Decrypts a text; `None` if it was encrypted with another key or context, or was modified.
    pub fn open(&self, context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, body) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut body = body.to_vec();
        let aad = Aad::from(context);
        let len = self.key.open_in_place(nonce, aad, &mut body).ok()?.len();
        body.truncate(len);
        Some(body)
    }

    /// The MAC of a text, in base64.
    pub fn mac(&self, text: &[u8]) -> String {
        STANDARD.encode(hmac::sign(&self.mac, text))
    }

    /// Whether `mark` is the MAC of a text.
    pub fn is_mac(&self, mark: &str, text: &[u8]) -> bool {
        let mark = STANDARD.decode(mark);
        mark.is_ok_and(|mark| hmac::verify(&self.mac, text, &mark).is_ok())
    }
}

/// Whether group or others can read a file of this mode.
const fn is_exposed(mode: u32) -> bool {
    mode & OTHERS_READ != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_opened_by_the_same_key_in_the_same_place() {
        let key = SealingKey::parse(&[7; KEY_LEN]).unwrap();
        let sealed = key.seal(b"secrets default a", b"password").unwrap();
        assert!(!sealed.windows(8).any(|part| part == b"password"));
        let open = |key: &SealingKey, context: &[u8], sealed: &[u8]| key.open(context, sealed);
        assert_eq!(
            open(&key, b"secrets default a", &sealed).unwrap(),
            b"password"
        );
        assert_eq!(open(&key, b"secrets default b", &sealed), None);
        let mut tampered = sealed.clone();
        *tampered.last_mut().unwrap() ^= 1;
        assert_eq!(open(&key, b"secrets default a", &tampered), None);
        assert_eq!(open(&key, b"secrets default a", &sealed[..5]), None);
        let other = SealingKey::parse(&[8; KEY_LEN]).unwrap();
        assert_eq!(open(&other, b"secrets default a", &sealed), None);
        // Equal texts must not look equal.
        assert_ne!(key.seal(b"secrets default a", b"password").unwrap(), sealed);
    }

    #[test]
    fn a_key_is_not_shown() {
        let key = SealingKey::parse(&[7; KEY_LEN]).unwrap();
        assert_eq!(format!("{key:?}"), "SealingKey { .. }");
    }

    #[test]
    fn a_key_that_others_may_read_is_told() {
        for (mode, exposed) in [(0o600, false), (0o700, false), (0o640, true), (0o604, true)] {
            assert_eq!(is_exposed(mode), exposed, "{mode:o}");
        }
    }

    #[test]
    fn a_key_is_32_bytes_or_their_base64() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let read = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            SealingKey::read(&path)
        };
        let raw = read(&[9; KEY_LEN]).unwrap();
        let text = format!("{}\n", STANDARD.encode([9; KEY_LEN]));
        let encoded = read(text.as_bytes()).unwrap();
        let sealed = raw.seal(b"c", b"text").unwrap();
        assert_eq!(encoded.open(b"c", &sealed).unwrap(), b"text");
        for wrong in [&b""[..], &[9; 31], b"c2hvcnQ=", b"no base64 at all"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(
                error.contains("32 bytes") && error.contains("base64"),
                "{error}"
            );
        }
        fs::remove_file(&path).unwrap();
        let error = SealingKey::read(&path).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}
