//! The label of the files of a container, from the SELinux options of its process
//! (`SELinuxOptionsToFileLabel` of `pkg/volume/util`, `InitLabels` of `opencontainers/selinux`).

use api::k8s::api::core::v1::SELinuxOptions;

/// Number of categories of a level (`maxCategory`).
const CATEGORIES: u64 = 1024;

/// The options cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to construct SELinux label from context {options:?}: invalid Label")]
pub(crate) struct TranslationError {
    /// The options as Go formats them.
    options: String,
}

/// The labels of containers of the policy that is loaded, as its file of contexts has them; empty
/// without such a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ContainerContexts {
    process: String,
    file: String,
}

/// A label in its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Context {
    user: String,
    role: String,
    kind: String,
    /// Empty without a level.
    level: String,
}

impl Context {
    /// Splits a label; `None` for one with less than three parts. A level contains colons.
    fn parse(label: &str) -> Option<Self> {
        let mut parts = label.splitn(4, ':').map(str::to_owned);
        let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { user, role, kind, level: parts.next().unwrap_or_default() })
    }

    fn label(&self) -> String {
        let Self { user, role, kind, level } = self;
        let separator = if level.is_empty() { "" } else { ":" };
        format!("{user}:{role}:{kind}{separator}{level}")
    }
}

fn set(option: Option<&String>) -> Option<&str> {
    option.map(String::as_str).filter(|text| !text.is_empty())
}

/// The options as Go formats them.
fn go_text(options: &SELinuxOptions) -> String {
    let text = |option: &Option<String>| option.clone().unwrap_or_default();
    format!(
        "&SELinuxOptions{{User:{},Role:{},Type:{},Level:{},}}",
        text(&options.user),
        text(&options.role),
        text(&options.type_),
        text(&options.level)
    )
}

impl ContainerContexts {
    /// Parses a file of contexts, such as `lxc_contexts(5)`: `NAME = "LABEL"` per line.
    pub(crate) fn parse(text: &str) -> Self {
        let mut out = Self::default();
        for line in text.lines().map(str::trim) {
            if line.starts_with(['#', ';']) {
                continue;
            }
            let Some((name, label)) = line.split_once('=') else { continue };
            let label = label.trim().trim_matches('"').to_owned();
            match name.trim() {
                "process" => out.process = label,
                "file" => out.file = label,
                _ => {}
            }
        }
        out
    }

    /// Returns the label of the files of a process with these options; empty if there are none.
    /// What the options leave out is the policy's; a level that is left out is a new one, which is
    /// not that of the container.
    ///
    /// # Errors
    ///
    /// A label of the policy is malformed.
    pub(crate) fn file_label(
        &self,
        options: &SELinuxOptions,
        new_level: impl FnOnce() -> String,
    ) -> Result<String, TranslationError> {
        let SELinuxOptions { level, role, type_, user } = options;
        let [user, role, kind, level] = [user, role, type_, level].map(|o| set(o.as_ref()));
        if [user, role, kind, level].iter().all(Option::is_none) {
            return Ok(String::new());
        }
        if self.process.is_empty() || self.file.is_empty() {
            return Ok(self.file.clone());
        }
        let invalid = || TranslationError { options: go_text(options) };
        let process = Context::parse(&self.process).ok_or_else(invalid)?;
        let mut file = Context::parse(&self.file).ok_or_else(invalid)?;
        // Role and type are those of the process; files have the policy's.
        if let Some(user) = user {
            user.clone_into(&mut file.user);
        }
        match level {
            Some(level) => level.clone_into(&mut file.level),
            None if !process.level.is_empty() => file.level = new_level(),
            None => {}
        }
        Ok(file.label())
    }
}

/// Returns a level with two categories at random (`uniqMcs`).
pub(crate) fn random_level() -> String {
    level_of(base::clock::random_u64())
}

/// The level that a random number selects.
fn level_of(number: u64) -> String {
    let first = number % CATEGORIES;
    // The second differs from the first.
    let second = (first + 1 + number / CATEGORIES % (CATEGORIES - 1)) % CATEGORIES;
    format!("s0:c{},c{}", first.min(second), first.max(second))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The file of Fedora's `container-selinux`.
    pub(crate) const CONTEXTS: &str = "process = \"system_u:system_r:container_t:s0\"\n\
        content = \"system_u:object_r:virt_var_lib_t:s0\"\n\
        file = \"system_u:object_r:container_file_t:s0\"\n\
        ro_file=\"system_u:object_r:container_ro_file_t:s0\"\n\
        sandbox_kvm_process = \"system_u:system_r:svirt_qemu_net_t:s0\"\n";

    pub(crate) fn options(value: Value) -> SELinuxOptions {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn missing_options_are_those_of_the_policy() {
        let contexts = ContainerContexts::parse(CONTEXTS);
        let of = |value| contexts.file_label(&options(value), || "s0:c998,c999".into()).unwrap();
        // The table of `TestInit` of opencontainers/selinux.
        let all = json!({"user": "user_u", "role": "user_r", "type": "user_t",
            "level": "s0:c1,c15"});
        assert_eq!(of(all), "user_u:object_r:container_file_t:s0:c1,c15");
        let level = json!({"level": "s0:c1,c2"});
        assert_eq!(of(level), "system_u:object_r:container_file_t:s0:c1,c2");
        let kind = json!({"type": "container_init_t"});
        assert_eq!(of(kind), "system_u:object_r:container_file_t:s0:c998,c999");
        assert_eq!(of(json!({})), "");
        assert_eq!(of(json!({"user": "", "level": ""})), "");
    }

    #[test]
    fn a_policy_without_levels_gets_none_that_is_not_given() {
        let contexts = ContainerContexts::parse(
            "# no levels\n;process = \"x\"\n process=\"u:r:p_t\" \nfile = \"u:object_r:f_t\"",
        );
        let of = |value| contexts.file_label(&options(value), random_level).unwrap();
        assert_eq!(of(json!({"type": "p_t"})), "u:object_r:f_t");
        assert_eq!(of(json!({"level": "s0"})), "u:object_r:f_t:s0");
    }

    #[test]
    fn without_contexts_options_have_no_label() {
        let of = |text: &str| {
            let contexts = ContainerContexts::parse(text);
            contexts.file_label(&options(json!({"level": "s0"})), random_level)
        };
        assert_eq!(of("").unwrap(), "");
        assert_eq!(of("file = \"u:object_r:f_t:s0\"").unwrap(), "u:object_r:f_t:s0");
        assert_eq!(of("process = \"u:r:p_t:s0\"").unwrap(), "");
        assert_eq!(
            of("process = \"u:r\"\nfile = \"u:object_r:f_t:s0\"").unwrap_err().to_string(),
            "failed to construct SELinux label from context \
             \"&SELinuxOptions{User:,Role:,Type:,Level:s0,}\": invalid Label"
        );
    }

    #[test]
    fn a_random_level_has_two_categories_in_order() {
        assert_eq!(level_of(0), "s0:c0,c1");
        assert_eq!(level_of(1023), "s0:c0,c1023");
        assert_eq!(level_of(1024 * 1022), "s0:c0,c1023");
        for number in [u64::MAX, 1 << 40, 77_777_777] {
            let level = level_of(number);
            let (first, second) = level["s0:c".len()..].split_once(",c").unwrap();
            let [first, second] = [first, second].map(|text| text.parse::<u64>().unwrap());
            assert!(first < second && second < CATEGORIES, "{level}");
        }
    }
}
