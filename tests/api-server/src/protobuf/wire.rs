//! Protobuf's wire format: numbered fields with a number or bytes.

/// The content of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field<'a> {
    /// A number of any width.
    Number(u64),
    /// A string, bytes or an embedded message.
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    /// The number, if the field is one.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Bytes(_) => None,
        }
    }

    /// The bytes, if the field has any.
    pub(super) fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Self::Number(_) => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// The fields of a message with their numbers; `None` if the message is malformed.
pub(super) fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            1 => {
                let (number, rest) = bytes.split_first_chunk::<8>()?;
                bytes = rest;
                Field::Number(u64::from_le_bytes(*number))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (content, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Field::Bytes(content)
            }
            5 => {
                let (number, rest) = bytes.split_first_chunk::<4>()?;
                bytes = rest;
                Field::Number(u64::from(u32::from_le_bytes(*number)))
            }
            _ => return None,
        };
        fields.push((tag >> 3, field));
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_numbers_and_bytes() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 0, 0, 0];
        assert_eq!(
            fields(&bytes).unwrap(),
            [
                (1, Field::Number(150)),
                (2, Field::Bytes(b"hi")),
                (3, Field::Number(1)),
            ]
        );
        assert_eq!(fields(&[0x12, 5, b'h']), None);
        assert_eq!(fields(&[0x08, 0x80]), None);
    }
}
