//! Upstream's state files of resource managers: JSON with the name of a policy and a checksum.

use serde::{Serialize, de::DeserializeOwned};

/// Why a state file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidState {
    /// It does not have the format.
    #[error("it is invalid: {0}")]
    Format(String),
    /// Its content was changed.
    #[error("its checksum is {found}, and should be {computed}: it was changed or damaged")]
    Checksum {
        /// The checksum in the file.
        found: u64,
        /// The checksum that its content has.
        computed: u64,
    },
    /// It was written under another policy.
    #[error("it was written with the policy {found:?}, and the configured one is {configured:?}")]
    Policy {
        /// The policy in the file.
        found: String,
        /// The configured policy.
        configured: String,
    },
}

/// A state file of a manager.
pub trait StateFile: Serialize + DeserializeOwned {
    /// The name of the policy.
    fn policy(&self) -> &str;

    /// The checksum in the file.
    fn checksum(&mut self) -> &mut u64;

    /// The file without a checksum, as Go prints it (`%#v` of go-spew): upstream hashes that.
    fn as_go_prints(&self) -> String;

    /// Reads the content of a file.
    ///
    /// # Errors
    /// The file must not be used.
    fn parse(content: &[u8], policy: &str) -> Result<Self, InvalidState> {
        let mut file: Self = serde_json::from_slice(content)
            .map_err(|error| InvalidState::Format(error.to_string()))?;
        let (found, computed) = (*file.checksum(), checksum(&file.as_go_prints()));
        // Other programs write zero.
        if found != 0 && found != computed {
            return Err(InvalidState::Checksum { found, computed });
        }
        if file.policy() != policy {
            return Err(InvalidState::Policy {
                found: file.policy().to_owned(),
                configured: policy.to_owned(),
            });
        }
        Ok(file)
    }

    /// The content of the file, with its checksum.
    ///
    /// # Errors
    /// It is no JSON object.
    fn content(mut self) -> serde_json::Result<String> {
        let computed = checksum(&self.as_go_prints());
        *self.checksum() = computed;
        serde_json::to_string(&self)
    }
}

/// The checksum of a text: FNV-1a with 32 bits.
pub fn checksum(text: &str) -> u64 {
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    u64::from(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(checksum(""), 0x811c_9dc5);
        assert_eq!(checksum("a"), 0xe40c_292c);
    }
}
