//! The grammar of `--device`: which devices of the machine belong to which extended resource.
//!
//! ```text
//! --device = SELECTOR "=" NAME [ ",count=" N ]
//! SELECTOR = "usb:" VID ":" PID [ ":" PATTERN ]      of the serial number
//!          | "serial:" PATTERN                       of a name in /dev/serial/by-id
//!          | "video:" PATTERN                        of a name in /dev/v4l/by-id
//!          | "gpio:" PATTERN                         of the label of a GPIO chip
//!          | "path:/dev/" PATTERN *( "/" PATTERN )   of device nodes
//! NAME     = name | domain "/" name
//! ```
//!
//! A SELECTOR has no `=` and no `,`; in a pattern, `?` stands for them.

use api::validation::core::resources::is_extended;

use super::pattern::{InvalidPattern, Pattern};

/// Domain of the resources whose NAME has none.
const DOMAIN: &str = "devices.kube-lite.io";
/// Maximum number of devices of one resource, and of containers that share one.
pub(crate) const DEVICES_MAX: usize = 1000;
/// Maximum number of flags: many more than a machine has kinds of devices.
const SELECTIONS_MAX: usize = 64;
/// Maximum number of directories below `/dev` that a path names.
const COMPONENTS_MAX: usize = 8;
/// Names below `/dev` that the container runtime makes in every container.
const OF_CONTAINERS: &[&str] = &[
    "console",
    "core",
    "fd",
    "full",
    "mqueue",
    "null",
    "ptmx",
    "pts",
    "random",
    "shm",
    "stderr",
    "stdin",
    "stdout",
    "termination-log",
    "tty",
    "urandom",
    "zero",
];

/// Why a text is not a value of `--device`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDevice {
    #[error("must be SELECTOR=NAME or SELECTOR=NAME,count=N, such as usb:10c4:ea60=zigbee")]
    Form,
    #[error("has no selector {0:?}; the selectors are usb, serial, video, gpio and path")]
    Selector(String),
    #[error("must be usb:VID:PID or usb:VID:PID:SERIAL, each id of four hexadecimal digits")]
    UsbId,
    #[error(transparent)]
    Pattern(#[from] InvalidPattern),
    #[error("the path must be below /dev/, without empty parts, \".\" and \"..\"")]
    Path,
    #[error("the path has more than {COMPONENTS_MAX} parts below /dev/")]
    DeepPath,
    #[error(
        "{0:?} is not the name of an extended resource; use NAME or DOMAIN/NAME with letters, \
         digits, '-', '_' and '.', outside of kubernetes.io"
    )]
    Resource(String),
    #[error("every container has its own /dev/{0}; use another name")]
    OfContainers(String),
    #[error("has no option {0:?}; the only option is count=N")]
    Option(String),
    #[error("count is given twice")]
    CountTwice,
    #[error("count must be a number from 1 to {DEVICES_MAX}")]
    Count,
    #[error("is given twice with this selector and name")]
    Twice,
    #[error(
        "the resource {other} ends with the same name, and both would be /dev/{name} in a \
         container; use another name"
    )]
    SameName { other: String, name: String },
    #[error("more than {SELECTIONS_MAX} devices are selected; use patterns")]
    TooMany,
}

/// Which devices of the machine are selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selector {
    /// USB devices with these ids, in lower case, and with such a serial number.
    Usb { vendor: String, product: String, serial: Option<Pattern> },
    /// Links in `/dev/serial/by-id`.
    Serial(Pattern),
    /// Links in `/dev/v4l/by-id`.
    Video(Pattern),
    /// GPIO chips with such a label.
    Gpio(Pattern),
    /// Device nodes at this path below `/dev`.
    Path(Vec<Pattern>),
}

/// Devices of the machine that belong to an extended resource: a value of `--device`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSelection {
    pub(crate) selector: Selector,
    /// The full name of the resource.
    pub(crate) resource: String,
    /// How many containers share each device.
    pub(crate) count: usize,
}

impl DeviceSelection {
    /// Parses the values of all flags `--device`.
    ///
    /// # Errors
    ///
    /// The first invalid value, and why it is invalid.
    pub fn parse_all(texts: &[String]) -> Result<Vec<Self>, (String, InvalidDevice)> {
        let mut all: Vec<Self> = Vec::with_capacity(texts.len());
        for text in texts {
            let named = |why: InvalidDevice| (text.clone(), why);
            let selection = Self::parse(text).map_err(named)?;
            if all.len() >= SELECTIONS_MAX {
                return Err(named(InvalidDevice::TooMany));
            }
            for other in &all {
                if other.resource == selection.resource {
                    if other.selector == selection.selector {
                        return Err(named(InvalidDevice::Twice));
                    }
                } else if other.name() == selection.name() {
                    let (other, name) = (other.resource.clone(), selection.name().to_owned());
                    return Err(named(InvalidDevice::SameName { other, name }));
                }
            }
            all.push(selection);
        }
        Ok(all)
    }

    fn parse(text: &str) -> Result<Self, InvalidDevice> {
        let (selector, rest) = text.split_once('=').ok_or(InvalidDevice::Form)?;
        let mut parts = rest.split(',');
        let name = parts.next().filter(|name| !name.is_empty()).ok_or(InvalidDevice::Form)?;
        let mut count = None;
        for option in parts {
            let value = option.strip_prefix("count=");
            let value = value.ok_or_else(|| InvalidDevice::Option(option.to_owned()))?;
            if count.replace(parse_count(value)?).is_some() {
                return Err(InvalidDevice::CountTwice);
            }
        }
        let selector = parse_selector(selector)?;
        let resource = match name.contains('/') {
            true => name.to_owned(),
            false => format!("{DOMAIN}/{name}"),
        };
        if !is_extended(&resource) {
            return Err(InvalidDevice::Resource(name.to_owned()));
        }
        let selection = Self { selector, resource, count: count.unwrap_or(1) };
        if OF_CONTAINERS.contains(&selection.name()) {
            return Err(InvalidDevice::OfContainers(selection.name().to_owned()));
        }
        Ok(selection)
    }

    /// The last part of the name of the resource, which is a name below `/dev` in containers.
    pub(crate) fn name(&self) -> &str {
        self.resource.rsplit('/').next().unwrap_or_default()
    }
}

fn parse_count(text: &str) -> Result<usize, InvalidDevice> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let count = text.parse().ok().filter(|_| is_number);
    count.filter(|count| (1..=DEVICES_MAX).contains(count)).ok_or(InvalidDevice::Count)
}

fn parse_selector(text: &str) -> Result<Selector, InvalidDevice> {
    let unknown = || InvalidDevice::Selector(text.to_owned());
    let (kind, value) = text.split_once(':').ok_or_else(unknown)?;
    Ok(match kind {
        "usb" => parse_usb(value)?,
        "serial" => Selector::Serial(Pattern::parse(value)?),
        "video" => Selector::Video(Pattern::parse(value)?),
        "gpio" => Selector::Gpio(Pattern::parse(value)?),
        "path" => Selector::Path(parse_path(value)?),
        _ => return Err(InvalidDevice::Selector(kind.to_owned())),
    })
}

/// Parses `VID:PID` or `VID:PID:SERIAL`; a serial number may have colons.
fn parse_usb(text: &str) -> Result<Selector, InvalidDevice> {
    let id = |text: &str| {
        let is_id = text.len() == 4 && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_id.then(|| text.to_ascii_lowercase()).ok_or(InvalidDevice::UsbId)
    };
    let mut parts = text.splitn(3, ':');
    let vendor = id(parts.next().unwrap_or_default())?;
    let product = id(parts.next().unwrap_or_default())?;
    let serial = parts.next().map(Pattern::parse).transpose()?;
    Ok(Selector::Usb { vendor, product, serial })
}

fn parse_path(text: &str) -> Result<Vec<Pattern>, InvalidDevice> {
    let below = text.strip_prefix("/dev/").ok_or(InvalidDevice::Path)?;
    let parts: Vec<&str> = below.split('/').collect();
    if parts.len() > COMPONENTS_MAX {
        return Err(InvalidDevice::DeepPath);
    }
    if parts.iter().any(|part| matches!(*part, "" | "." | "..")) {
        return Err(InvalidDevice::Path);
    }
    Ok(parts.into_iter().map(Pattern::parse).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    fn all(texts: &[&str]) -> Result<Vec<DeviceSelection>, InvalidDevice> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        DeviceSelection::parse_all(&texts).map_err(|(_, why)| why)
    }

    fn one(text: &str) -> Result<DeviceSelection, InvalidDevice> {
        all(&[text]).map(|mut all| all.remove(0))
    }

    #[test]
    fn each_selector_is_parsed() {
        let usb = |serial| Selector::Usb {
            vendor: "10c4".to_owned(),
            product: "ea60".to_owned(),
            serial,
        };
        for (text, selector) in [
            ("usb:10c4:EA60=x", usb(None)),
            ("usb:10c4:ea60:00:11*=x", usb(Some(pattern("00:11*")))),
            ("serial:usb-*ConBee*=x", Selector::Serial(pattern("usb-*ConBee*"))),
            ("video:*index0=x", Selector::Video(pattern("*index0"))),
            ("gpio:pinctrl-bcm2711=x", Selector::Gpio(pattern("pinctrl-bcm2711"))),
            ("path:/dev/fuse=x", Selector::Path(vec![pattern("fuse")])),
            ("path:/dev/dri/renderD*=x", Selector::Path(vec![pattern("dri"), pattern("renderD*")])),
        ] {
            assert_eq!(one(text).unwrap().selector, selector, "{text}");
        }
    }

    #[test]
    fn a_name_without_a_domain_gets_ours_and_a_device_is_not_shared() {
        let own = one("path:/dev/fuse=fuse").unwrap();
        assert_eq!(
            (&*own.resource, own.name(), own.count),
            ("devices.kube-lite.io/fuse", "fuse", 1)
        );
        let full = one("path:/dev/kvm=example.com/kvm_1,count=1000").unwrap();
        assert_eq!(
            (&*full.resource, full.name(), full.count),
            ("example.com/kvm_1", "kvm_1", 1000)
        );
    }

    #[test]
    fn malformed_values_are_refused_with_the_reason() {
        let resource = |name: &str| InvalidDevice::Resource(name.to_owned());
        let option = |text: &str| InvalidDevice::Option(text.to_owned());
        for (text, error) in [
            ("", InvalidDevice::Form),
            ("path:/dev/fuse", InvalidDevice::Form),
            ("path:/dev/fuse=", InvalidDevice::Form),
            ("/dev/fuse=x", InvalidDevice::Selector("/dev/fuse".to_owned())),
            ("pci:1=x", InvalidDevice::Selector("pci".to_owned())),
            ("usb:10c4=x", InvalidDevice::UsbId),
            ("usb:10c4:ea6=x", InvalidDevice::UsbId),
            ("usb:10c4:ea6g=x", InvalidDevice::UsbId),
            ("usb:10c4:ea60:=x", InvalidDevice::Pattern(InvalidPattern::Empty)),
            ("serial:=x", InvalidDevice::Pattern(InvalidPattern::Empty)),
            ("path:/etc/passwd=x", InvalidDevice::Path),
            ("path:/dev=x", InvalidDevice::Path),
            ("path:/dev/=x", InvalidDevice::Path),
            ("path:/dev/../etc=x", InvalidDevice::Path),
            ("path:/dev/a//b=x", InvalidDevice::Path),
            ("path:/dev/1/2/3/4/5/6/7/8/9=x", InvalidDevice::DeepPath),
            ("path:/dev/fuse=a b", resource("a b")),
            ("path:/dev/fuse=kubernetes.io/x", resource("kubernetes.io/x")),
            ("path:/dev/fuse=a/b/c", resource("a/b/c")),
            ("path:/dev/fuse=/x", resource("/x")),
            ("path:/dev/fuse=null", InvalidDevice::OfContainers("null".to_owned())),
            ("path:/dev/fuse=x,", option("")),
            ("path:/dev/fuse=x,size=1", option("size=1")),
            ("path:/dev/fuse=x,count=2,count=3", InvalidDevice::CountTwice),
            ("path:/dev/fuse=x,count=0", InvalidDevice::Count),
            ("path:/dev/fuse=x,count=1001", InvalidDevice::Count),
            ("path:/dev/fuse=x,count=+1", InvalidDevice::Count),
        ] {
            assert_eq!(one(text), Err(error), "{text}");
        }
    }

    #[test]
    fn several_selectors_may_have_one_name_but_two_resources_have_different_names() {
        assert_eq!(all(&["path:/dev/a=x", "path:/dev/b=x"]).unwrap().len(), 2);
        assert_eq!(all(&["path:/dev/a=x", "path:/dev/a=x,count=2"]), Err(InvalidDevice::Twice));
        let same = InvalidDevice::SameName {
            other: "devices.kube-lite.io/x".to_owned(),
            name: "x".to_owned(),
        };
        assert_eq!(all(&["path:/dev/a=x", "path:/dev/b=example.com/x"]), Err(same));
        let many: Vec<String> = (0..65).map(|n| format!("path:/dev/a{n}=x")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(all(&many), Err(InvalidDevice::TooMany));
    }
}
