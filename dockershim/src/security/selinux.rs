//! SELinux labels as engine options.

use cri_proto::runtime::v1::SeLinuxOption;

/// One option for each part of the label that is given.
pub fn options(label: Option<&SeLinuxOption>) -> impl Iterator<Item = String> {
    let parts = label.map_or([const { ("", "") }; 4], |label| {
        [
            ("user", label.user.as_str()),
            ("role", label.role.as_str()),
            ("type", label.r#type.as_str()),
            ("level", label.level.as_str()),
        ]
    });
    parts
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(part, value)| format!("label={part}:{value}"))
}
