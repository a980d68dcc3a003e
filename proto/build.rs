//! Compiles the `.proto` files with protox, which needs no protoc, and generates a list of all
//! messages for the round-trip test.

use std::{env, fmt::Write as _, fs, path::PathBuf};

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// All `.proto` files, relative to `proto/`.
const FILES: &[&str] = &[
    "cri/runtime_v1.proto",
    "csi/v1.proto",
    "deviceplugin/v1beta1.proto",
    "dra-health/v1alpha1.proto",
    "dra/v1.proto",
    "grpc/health_v1.proto",
    "pluginregistration/v1.proto",
    "podresources/v1.proto",
    POD_RESOURCES_V1ALPHA1,
];
/// Its package has the same name as that of dra-health.
const POD_RESOURCES_V1ALPHA1: &str = "podresources/v1alpha1.proto";
/// The package of the well-known types, for which prost has its own Rust types.
const WELL_KNOWN: &str = "google.protobuf";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let descriptors = protox::compile(FILES, ["proto"])?;
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    fs::write(out.join("messages.rs"), messages(&descriptors)?)?;
    let is_apart = |file: &FileDescriptorProto| file.name() == POD_RESOURCES_V1ALPHA1;
    let (apart, files) = descriptors.file.into_iter().partition(is_apart);
    let generate = |file, out: PathBuf| {
        fs::create_dir_all(&out)?;
        let generator = tonic_prost_build::configure().btree_map(".").out_dir(out);
        generator.compile_fds(FileDescriptorSet { file })
    };
    generate(files, out.clone())?;
    generate(apart, out.join("podresources"))?;
    Ok(())
}

/// Returns a Rust expression: an array of (full proto name, re-encoding function) for each message
/// of each file.
fn messages(descriptors: &FileDescriptorSet) -> Result<String, std::fmt::Error> {
    let mut list = String::from("[\n");
    for file in &descriptors.file {
        let package = file.package();
        if package == WELL_KNOWN {
            continue;
        }
        let module = match package {
            _ if file.name() == POD_RESOURCES_V1ALPHA1 => "podresources::v1alpha1".to_owned(),
            "v1" => "podresources::v1".to_owned(),
            "v1alpha1" => "dra_health::v1alpha1".to_owned(),
            "v1beta1" => "deviceplugin::v1beta1".to_owned(),
            "k8s.io.kubelet.pkg.apis.dra.v1" => "dra::v1".to_owned(),
            package => package.replace('.', "::"),
        };
        for name in file
            .message_type
            .iter()
            .filter(|message| !is_map_entry(message))
            .map(DescriptorProto::name)
        {
            writeln!(
                list,
                "(\"{package}.{name}\", reencode::<cri_proto::{module}::{}> as Reencode),",
                rust_name(name)
            )?;
        }
    }
    list.push_str("]\n");
    Ok(list)
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|o| o.map_entry())
}

/// Returns prost's name of a message: upper camel case, with runs of capitals folded.
fn rust_name(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut out = String::with_capacity(name.len());
    for (i, c) in chars.iter().enumerate() {
        let after_capital = i > 0 && chars[i - 1].is_ascii_uppercase();
        let before_lower = chars.get(i + 1).is_some_and(char::is_ascii_lowercase);
        if after_capital && !before_lower {
            out.push(c.to_ascii_lowercase());
        } else {
            out.push(*c);
        }
    }
    out
}
