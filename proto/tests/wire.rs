//! The `.proto` files say exactly what the table of wire facts says: no name,
//! number, type or label more or less.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;

use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

#[test]
fn cri_v1_matches_the_wire_table() {
    let table: BTreeSet<String> = include_str!("cri-v1.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    let described = describe("runtime.v1");
    let missing: Vec<_> = table.difference(&described).collect();
    let extra: Vec<_> = described.difference(&table).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing: {missing:#?}\nextra: {extra:#?}"
    );
}

#[test]
fn health_v1_is_what_grpc_servers_speak() {
    let rows = [
        "rpc\tHealth\tCheck\tHealthCheckRequest\tHealthCheckResponse\tunary",
        "field\tHealthCheckRequest\tservice\t1\tstring\tsingular\t-",
        "field\tHealthCheckResponse\tstatus\t1\tServingStatus\tsingular\t-",
        "enum\tHealthCheckResponse.ServingStatus\tUNKNOWN\t0",
        "enum\tHealthCheckResponse.ServingStatus\tSERVING\t1",
        "enum\tHealthCheckResponse.ServingStatus\tNOT_SERVING\t2",
        "enum\tHealthCheckResponse.ServingStatus\tSERVICE_UNKNOWN\t3",
    ];
    assert_eq!(
        describe("grpc.health.v1"),
        rows.into_iter().map(str::to_owned).collect()
    );
}

/// The rows of the table that a compiled package amounts to.
fn describe(package: &str) -> BTreeSet<String> {
    let set = FileDescriptorSet::decode(cri_proto::DESCRIPTORS).unwrap();
    let file = set
        .file
        .iter()
        .find(|file| file.package() == package)
        .unwrap();
    let prefix = format!(".{package}.");
    let local = |name: &str| name.strip_prefix(&prefix).unwrap_or(name).to_owned();
    let mut rows = BTreeSet::new();
    for service in &file.service {
        for method in &service.method {
            rows.insert(format!(
                "rpc\t{}\t{}\t{}\t{}\t{}",
                service.name(),
                method.name(),
                local(method.input_type()),
                local(method.output_type()),
                if method.server_streaming() {
                    "server-stream"
                } else {
                    "unary"
                },
            ));
        }
    }
    for declared in &file.enum_type {
        describe_enum(declared.name(), declared, &mut rows);
    }
    for message in &file.message_type {
        if message.field.is_empty() {
            rows.insert(format!("message\t{}\t(no fields)", message.name()));
        }
        for declared in &message.enum_type {
            let name = format!("{}.{}", message.name(), declared.name());
            describe_enum(&name, declared, &mut rows);
        }
        for field in &message.field {
            let entry = map_entry(message, field.type_name());
            let (kind, label) = match entry {
                Some(entry) => {
                    let of = |i: usize| scalar(entry.field[i].r#type(), entry.field[i].type_name());
                    (format!("map<{},{}>", local(&of(0)), local(&of(1))), "map")
                }
                None => (
                    local(&scalar(field.r#type(), field.type_name())),
                    match field.label() {
                        Label::Repeated => "repeated",
                        _ => "singular",
                    },
                ),
            };
            let kind = kind.rsplit('.').next().unwrap().to_owned();
            rows.insert(format!(
                "field\t{}\t{}\t{}\t{kind}\t{label}\t-",
                message.name(),
                field.name(),
                field.number(),
            ));
        }
    }
    rows
}

fn describe_enum(name: &str, declared: &EnumDescriptorProto, rows: &mut BTreeSet<String>) {
    for value in &declared.value {
        rows.insert(format!(
            "enum\t{name}\t{}\t{}",
            value.name(),
            value.number()
        ));
    }
}

fn map_entry<'a>(message: &'a DescriptorProto, type_name: &str) -> Option<&'a DescriptorProto> {
    message.nested_type.iter().find(|nested| {
        nested.options.as_ref().is_some_and(|o| o.map_entry())
            && type_name.rsplit('.').next() == Some(nested.name())
    })
}

fn scalar(kind: Type, type_name: &str) -> String {
    match kind {
        Type::Message | Type::Enum => type_name.to_owned(),
        Type::String => "string".to_owned(),
        Type::Bytes => "bytes".to_owned(),
        Type::Bool => "bool".to_owned(),
        Type::Int32 => "int32".to_owned(),
        Type::Int64 => "int64".to_owned(),
        Type::Uint32 => "uint32".to_owned(),
        Type::Uint64 => "uint64".to_owned(),
        Type::Double => "double".to_owned(),
        Type::Float => "float".to_owned(),
        other => panic!("the wire table has no word for {other:?}"),
    }
}
