//! `kubelet gc --dry-run`: tells what the running kubelet would remove now, and what it would free.

use std::{fmt::Write as _, path::PathBuf};

use kubelet_server::reports::{GARBAGE_PATH, GarbageReport};

use crate::status_command::{self, StatusError};

/// The kubelet to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcOptions {
    /// Root directory of the running kubelet.
    pub root_dir: PathBuf,
}

/// Asks the kubelet, and returns the text to print.
///
/// # Errors
/// The kubelet does not respond, or cannot tell; the error includes advice.
pub async fn run(options: &GcOptions) -> Result<String, StatusError> {
    let report = status_command::ask(&options.root_dir, GARBAGE_PATH).await?;
    Ok(text(&report))
}

fn text(report: &GarbageReport) -> String {
    let mut text = String::new();
    for image in &report.images {
        let name = image.names.first().unwrap_or(&image.id);
        let (size, reason) = (mebibytes(image.bytes), &image.reason);
        let _ = writeln!(text, "image {name} ({size}): {reason}");
    }
    for container in &report.containers {
        let (name, pod, id) = (&container.name, &container.pod_uid, &container.id);
        let reason = &container.reason;
        let _ = writeln!(text, "container {name} ({id}) of pod {pod}: {reason}");
    }
    for sandbox in &report.sandboxes {
        let (id, pod, reason) = (&sandbox.id, &sandbox.pod_uid, &sandbox.reason);
        let _ = writeln!(text, "sandbox {id} of pod {pod}: {reason}");
    }
    if text.is_empty() {
        return "Nothing would be removed.\n".to_owned();
    }
    let bytes = report.images.iter().map(|image| image.bytes).sum();
    let (images, containers) = (report.images.len(), report.containers.len());
    let sandboxes = report.sandboxes.len();
    let _ = writeln!(
        text,
        "\n{images} images of at most {}, {containers} containers and {sandboxes} sandboxes would \
         be removed.",
        mebibytes(bytes)
    );
    if report.bytes_to_free > 0 {
        let wanted = mebibytes(report.bytes_to_free);
        let _ = writeln!(
            text,
            "Images are removed until {wanted} are free that are not now."
        );
    }
    text
}

/// An amount for people, rounded up.
fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}
