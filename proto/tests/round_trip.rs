//! Every message survives decoding and encoding. For each, the test builds a message with every
//! field set from the descriptors alone, decodes it into the generated type, encodes it again and
//! compares the bytes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use prost::{
    DecodeError, Message,
    encoding::{WireType, encode_key, encode_varint},
};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

/// The package of the well-known types, for which prost has its own Rust types.
const WELL_KNOWN: &str = "google.protobuf";

type Reencode = fn(&[u8]) -> Result<Vec<u8>, DecodeError>;

fn reencode<M: Message + Default>(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    Ok(M::decode(bytes)?.encode_to_vec())
}

#[test]
fn every_message_is_the_same_after_decoding_and_encoding() {
    let set = FileDescriptorSet::decode(cri_proto::DESCRIPTORS).unwrap();
    let mut messages = BTreeMap::new();
    for file in &set.file {
        for message in &file.message_type {
            collect(&format!(".{}", file.package()), message, &mut messages);
        }
    }
    let list: &[(&str, Reencode)] = &include!(concat!(env!("OUT_DIR"), "/messages.rs"));
    let ours = set.file.iter().filter(|f| f.package() != WELL_KNOWN);
    assert_eq!(
        list.len(),
        ours.map(|f| f.message_type.len()).sum::<usize>()
    );
    for (name, reencode) in list {
        let message = messages[&format!(".{name}")];
        let filled = fill(message, &messages);
        assert_eq!(
            message.field.is_empty(),
            filled.is_empty(),
            "{name} was not filled"
        );
        let again = reencode(&filled).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(again, filled, "{name} changed on the way");
    }
}

fn collect<'a>(
    scope: &str,
    message: &'a DescriptorProto,
    into: &mut BTreeMap<String, &'a DescriptorProto>,
) {
    let name = format!("{scope}.{}", message.name());
    for nested in &message.nested_type {
        collect(&name, nested, into);
    }
    into.insert(name, message);
}

/// Encodes `message` with every field set to a value other than its default. Of a oneof, only the
/// last field is set.
fn fill(message: &DescriptorProto, messages: &BTreeMap<String, &DescriptorProto>) -> Vec<u8> {
    let mut fields: Vec<&FieldDescriptorProto> = message.field.iter().collect();
    fields.sort_by_key(|field| field.number());
    let mut out = Vec::new();
    for field in &fields {
        let excluded = |other: &&FieldDescriptorProto| {
            field.oneof_index.is_some()
                && other.oneof_index == field.oneof_index
                && other.number() > field.number()
        };
        if fields.iter().any(excluded) {
            continue;
        }
        let repeated = field.label() == Label::Repeated;
        match field.r#type() {
            Type::Message => {
                let value = fill(messages[field.type_name()], messages);
                put_bytes(field, &value, &mut out);
            }
            Type::String | Type::Bytes => put_bytes(field, field.name().as_bytes(), &mut out),
            // proto3 packs repeated numbers.
            _ if repeated => put_bytes(field, &number(field), &mut out),
            _ => {
                encode_key(field.number().cast_unsigned(), wire_type(field), &mut out);
                out.extend(number(field));
            }
        }
    }
    out
}

fn put_bytes(field: &FieldDescriptorProto, value: &[u8], out: &mut Vec<u8>) {
    encode_key(
        field.number().cast_unsigned(),
        WireType::LengthDelimited,
        out,
    );
    encode_varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

fn wire_type(field: &FieldDescriptorProto) -> WireType {
    match field.r#type() {
        Type::Double => WireType::SixtyFourBit,
        Type::Float => WireType::ThirtyTwoBit,
        _ => WireType::Varint,
    }
}

fn number(field: &FieldDescriptorProto) -> Vec<u8> {
    match field.r#type() {
        Type::Double => 1.5f64.to_le_bytes().to_vec(),
        Type::Float => 1.5f32.to_le_bytes().to_vec(),
        _ => vec![1],
    }
}
