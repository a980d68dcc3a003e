//! The checksum in upstream's checkpoint files.

/// The checksum of an object that Go prints as `text` (FNV-1a with 32 bits).
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
