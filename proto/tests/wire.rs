//! The `.proto` files match the table of wire facts exactly: no name, number, type or label is
//! missing, added or different.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;

use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

#[test]
fn cri_v1_matches_the_wire_table() {
    let table = rows(include_str!("cri-v1.tsv"));
    compare(&table, &describe("cri/runtime_v1"));
}

#[test]
fn pluginregistration_v1_matches_the_wire_table() {
    let table = rows(include_str!("pluginregistration-v1.tsv"));
    compare(&table, &describe("pluginregistration/v1"));
}

#[test]
fn deviceplugin_v1beta1_matches_the_wire_table() {
    let table = rows(include_str!("deviceplugin-v1beta1.tsv"));
    compare(&table, &describe("deviceplugin/v1beta1"));
}

#[test]
fn dra_v1_matches_the_wire_table() {
    let table = rows(include_str!("dra-v1.tsv"));
    compare(&table, &describe("dra/v1"));
}

#[test]
fn dra_health_v1alpha1_matches_the_wire_table() {
    let table = rows(include_str!("dra-health-v1alpha1.tsv"));
    compare(&table, &describe("dra-health/v1alpha1"));
}

#[test]
fn podresources_v1_matches_the_wire_table() {
    let table = rows(include_str!("podresources-v1.tsv"));
    compare(&table, &describe("podresources/v1"));
}

#[test]
fn podresources_v1alpha1_matches_the_wire_table() {
    let table = rows(include_str!("podresources-v1alpha1.tsv"));
    compare(&table, &describe("podresources/v1alpha1"));
}

/// The kubelet calls only two of the services and does not need the rest of the table.
#[test]
fn csi_v1_matches_the_wire_table() {
    let table = rows(include_str!("csi-v1.tsv"));
    compare(
        &of_services(&table, &["Identity", "Node"]),
        &describe("csi/v1"),
    );
}

fn rows(table: &str) -> BTreeSet<String> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(str::to_owned).collect()
}

fn compare(table: &BTreeSet<String>, described: &BTreeSet<String>) {
    let missing: Vec<_> = table.difference(described).collect();
    let extra: Vec<_> = described.difference(table).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing: {missing:#?}\nextra: {extra:#?}"
    );
}

/// Returns the rows of some services, and of all types that they refer to.
fn of_services(table: &BTreeSet<String>, services: &[&str]) -> BTreeSet<String> {
    let split = |row: &str| row.split('\t').map(str::to_owned).collect::<Vec<_>>();
    let table: Vec<(&String, Vec<String>)> = table.iter().map(|row| (row, split(row))).collect();
    let mut found = BTreeSet::new();
    let mut types = Vec::new();
    for (row, cells) in &table {
        if cells[0] == "rpc" && services.contains(&cells[1].as_str()) {
            found.insert((*row).clone());
            types.extend([cells[3].clone(), cells[4].clone()]);
        }
    }
    while let Some(name) = types.pop() {
        for (row, cells) in &table {
            if cells[0] == "rpc" || cells[1] != name || !found.insert((*row).clone()) {
                continue;
            }
            if cells[0] == "field" {
                // The type's name is relative to the message that contains the field.
                let kind = &cells[4];
                types.extend([kind.clone(), format!("{name}.{kind}")]);
            }
        }
    }
    found
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
        describe("grpc/health_v1"),
        rows.into_iter().map(str::to_owned).collect()
    );
}

/// Returns the table rows of a compiled `.proto` file.
fn describe(name: &str) -> BTreeSet<String> {
    let set = FileDescriptorSet::decode(cri_proto::DESCRIPTORS).unwrap();
    let is_it = |file: &&FileDescriptorProto| file.name().strip_suffix(".proto") == Some(name);
    let file = set.file.iter().find(is_it).unwrap();
    let prefix = format!(".{}.", file.package());
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
        describe_message(message.name(), message, &local, &mut rows);
    }
    rows
}

fn describe_message(
    name: &str,
    message: &DescriptorProto,
    local: &impl Fn(&str) -> String,
    rows: &mut BTreeSet<String>,
) {
    if message.field.is_empty() {
        rows.insert(format!("message\t{name}\t(no fields)"));
    }
    for declared in &message.enum_type {
        describe_enum(&format!("{name}.{}", declared.name()), declared, rows);
    }
    for nested in &message.nested_type {
        if !nested.options.as_ref().is_some_and(|o| o.map_entry()) {
            describe_message(&format!("{name}.{}", nested.name()), nested, local, rows);
        }
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
                    _ if field.proto3_optional() => "explicit-optional",
                    _ => "singular",
                },
            ),
        };
        let kind = kind.rsplit('.').next().unwrap().to_owned();
        // protoc gives each optional field a group of its own.
        let group = field.oneof_index.filter(|_| !field.proto3_optional());
        let oneof = group.map_or("-", |index| {
            message.oneof_decl[usize::try_from(index).unwrap()].name()
        });
        rows.insert(format!(
            "field\t{name}\t{}\t{}\t{kind}\t{label}\t{oneof}",
            field.name(),
            field.number(),
        ));
    }
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
