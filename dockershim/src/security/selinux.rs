//! SELinux labels as engine options.

use cri_proto::runtime::v1::SeLinuxOption;

/// One option for each part of the label that is set.
pub(super) fn options(label: Option<&SeLinuxOption>) -> impl Iterator<Item = String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_that_is_given_is_an_option() {
        let label = SeLinuxOption {
            user: "system_u".into(),
            role: String::new(),
            r#type: "container_t".into(),
            level: "s0:c1,c2".into(),
        };
        let given: Vec<_> = options(Some(&label)).collect();
        assert_eq!(
            given,
            [
                "label=user:system_u",
                "label=type:container_t",
                "label=level:s0:c1,c2"
            ]
        );
        assert_eq!(options(None).count(), 0);
    }
}
