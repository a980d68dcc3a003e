//! Builds the pause program, which the shim carries inside itself.

use std::{
    env,
    path::PathBuf,
    process::{Command, ExitCode},
};

const SOURCE: &str = "pause/pause.rs";

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("cannot build {SOURCE}: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let variable = |name: &str| env::var_os(name).ok_or(format!("cargo does not set {name}"));
    let mut rustc = Command::new(variable("RUSTC")?);
    rustc
        .arg(SOURCE)
        .args(["--edition=2024", "--crate-name=pause", "--crate-type=bin"])
        .arg("--target")
        .arg(variable("TARGET")?)
        .args([
            "-Copt-level=s",
            "-Cpanic=abort",
            "-Cstrip=symbols",
            "-Clto=fat",
        ])
        .args(["-Crelocation-model=static", "-Ctarget-feature=+crt-static"])
        .args(["-nostartfiles", "-nostdlib", "-static"].map(|arg| format!("-Clink-arg={arg}")))
        // Without these the linker pads each segment to a page, for nothing.
        .args(["-Wl,--build-id=none", "-Wl,-n"].map(|arg| format!("-Clink-arg={arg}")))
        .arg("-o")
        .arg(PathBuf::from(variable("OUT_DIR")?).join("pause"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = std::ffi::OsString::from("-Clinker=");
        option.push(linker);
        rustc.arg(option);
    }
    let status = rustc.status().map_err(|error| error.to_string())?;
    status
        .success()
        .then_some(())
        .ok_or(format!("rustc: {status}"))
}
