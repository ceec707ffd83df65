//! The options of mounts that concern SELinux (`pkg/volume/util/hostutil`, and
//! `AddSELinuxMountOption` of `pkg/volume/util`).

/// The option that mounts a file system with a label. The quotes protect commas of its level.
pub(crate) fn context_option(label: &str) -> String {
    format!("context={label:?}")
}

/// Splits the options of a mount at commas outside of quotes.
fn split(options: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    options.split(move |c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    })
}

/// Returns the label with which a file system is mounted, from its options in `mountinfo`; empty
/// without one (`GetSELinuxMountContext`).
pub(crate) fn mounted_label(options: &str) -> &str {
    let label = split(options).find_map(|option| option.strip_prefix("context="));
    label.unwrap_or_default().trim_matches('"')
}

/// Whether files of a file system have labels of their own, from its options in `mountinfo`
/// (`GetSELinuxSupport`).
pub(crate) fn has_file_labels(options: &str) -> bool {
    split(options).any(|option| option == "seclabel")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables of `TestGetSELinuxSupport` and `TestGetSELinuxMountContext`.
    #[test]
    fn options_of_a_mount_have_its_label_or_say_that_files_have_labels() {
        for (options, label, has_labels) in [
            ("rw,seclabel,data=ordered", "", true),
            ("rw,seclabel", "", true),
            ("rw", "", false),
            ("rw,vers=4.0,sec=sys,clientaddr=172.18.4.223,local_lock=none", "", false),
            (
                "rw,context=\"system_u:object_r:container_file_t:s0:c314,c894\"",
                "system_u:object_r:container_file_t:s0:c314,c894",
                false,
            ),
            ("rw,context=u:object_r:f_t:s0,noatime", "u:object_r:f_t:s0", false),
            ("rw,fscontext=u:object_r:f_t:s0,seclabel", "", true),
        ] {
            assert_eq!(mounted_label(options), label, "{options}");
            assert_eq!(has_file_labels(options), has_labels, "{options}");
        }
    }

    /// The example of `AddSELinuxMountOption`.
    #[test]
    fn the_option_protects_the_commas_of_a_level() {
        let option = context_option("system_u:object_r:container_file_t:s0:c15,c25");
        assert_eq!(option, "context=\"system_u:object_r:container_file_t:s0:c15,c25\"");
        assert_eq!(split(&format!("dirsync,{option},noatime")).count(), 3);
    }
}
