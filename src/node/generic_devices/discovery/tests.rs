//! Discovery in fake trees of `/sys` and `/dev`.

use std::path::Path;

use super::*;
use crate::generic_devices::device::list;
use crate::generic_devices::host_tree::tests::FakeTree;

fn selections(texts: &[&str]) -> Vec<DeviceSelection> {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    DeviceSelection::parse_all(&texts).unwrap()
}

/// The ids of the devices, and the paths of their nodes in a container that has all of them.
fn found(fake: &FakeTree, texts: &[&str]) -> (Vec<String>, Vec<String>) {
    let devices = scan(&fake.tree(), &selections(texts)).devices;
    let ids: Vec<String> = devices.iter().map(|device| device.id.clone()).collect();
    let all = ids.iter().cloned().collect();
    let response = crate::generic_devices::device::response("x", &devices, &all).unwrap();
    let paths = response.devices.into_iter().map(|spec| spec.container_path);
    (ids, paths.filter(|path| !path.starts_with("/dev/x")).collect())
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

const CONTROLLER: &str = "/sys/devices/pci0000:00/0000:00:14.0";

/// Plugs a USB device with a serial port in.
fn plug(fake: &FakeTree, port: &str, serial: Option<&str>, number: u32) {
    let device = format!("{CONTROLLER}/usb1/{port}");
    let file = |path: &str, text: &str| fake.file(&format!("{device}/{path}"), text);
    file("idVendor", "10c4\n");
    file("idProduct", "ea60\n");
    if let Some(serial) = serial {
        file("serial", &format!("{serial}\n"));
    }
    let own = format!("bus/usb/001/{number:03}");
    file("uevent", &format!("MAJOR=189\nMINOR={number}\nDEVNAME={own}\n"));
    fake.file(&format!("/dev/{own}"), "");
    let tty = format!("ttyUSB{number}");
    let interface = format!("{port}:1.0");
    file(&format!("{interface}/uevent"), "DEVTYPE=usb_interface\n");
    file(&format!("{interface}/{tty}/tty/{tty}/uevent"), &format!("DEVNAME={tty}\n"));
    fake.file(&format!("/dev/{tty}"), "");
    fake.link(&format!("/sys/bus/usb/devices/{port}"), &device);
    fake.link(&format!("/sys/bus/usb/devices/{interface}"), &format!("{device}/{interface}"));
}

#[test]
fn a_usb_device_has_its_node_and_those_of_its_drivers() {
    let fake = FakeTree::new();
    fake.file(&format!("{CONTROLLER}/numa_node"), "0\n");
    plug(&fake, "1-1", Some("A1"), 4);
    let (ids, paths) = found(&fake, &["usb:10c4:ea60=x"]);
    assert_eq!(ids, ["10c4:ea60:A1"]);
    assert_eq!(paths, ["/dev/ttyUSB4", "/dev/bus/usb/001/004"]);
    let devices = scan(&fake.tree(), &selections(&["usb:10c4:ea60=x"])).devices;
    let topology = list(&devices, &BTreeSet::new()).remove(0).topology.unwrap();
    assert_eq!(topology.nodes[0].id, 0);
    assert_eq!(found(&fake, &["usb:10c4:ea60:A*=x"]).0, ["10c4:ea60:A1"]);
    for other in ["usb:10c4:ea60:B*=x", "usb:10c4:ea61=x", "usb:10c5:ea60=x"] {
        assert_eq!(found(&fake, &[other]).0, texts(&[]), "{other}");
    }
}

#[test]
fn a_usb_device_keeps_its_id_with_other_nodes_and_at_another_port() {
    let fake = FakeTree::new();
    plug(&fake, "1-1", Some("A1"), 4);
    let before = found(&fake, &["usb:10c4:ea60=x"]);
    fake.remove("/sys/bus/usb/devices");
    fake.remove(&format!("{CONTROLLER}/usb1"));
    fake.remove("/dev/ttyUSB4");
    assert_eq!(found(&fake, &["usb:10c4:ea60=x"]).0, texts(&[]));
    plug(&fake, "1-2", Some("A1"), 5);
    let after = found(&fake, &["usb:10c4:ea60=x"]);
    assert_eq!(before.0, after.0);
    assert_eq!(after.1, ["/dev/ttyUSB5", "/dev/bus/usb/001/005"]);
}

#[test]
fn usb_devices_without_a_serial_number_of_their_own_are_those_of_a_port() {
    let fake = FakeTree::new();
    plug(&fake, "1-1", None, 4);
    plug(&fake, "1-2", Some("0001"), 5);
    plug(&fake, "1-3", Some("0001"), 6);
    let (ids, _) = found(&fake, &["usb:10c4:ea60=x"]);
    let want =
        ["10c4:ea60@0000:00:14.0-usb-1", "10c4:ea60:0001", "10c4:ea60:0001@0000:00:14.0-usb-3"];
    assert_eq!(ids, want);
}

#[test]
fn devices_behind_a_hub_are_not_devices_of_the_hub() {
    let fake = FakeTree::new();
    plug(&fake, "1-1", None, 4);
    let behind = format!("{CONTROLLER}/usb1/1-1/1-1.1");
    fake.file(&format!("{behind}/idVendor"), "dead\n");
    fake.file(&format!("{behind}/idProduct"), "beef\n");
    fake.file(&format!("{behind}/uevent"), "DEVNAME=bus/usb/001/009\n");
    fake.file("/dev/bus/usb/001/009", "");
    fake.link("/sys/bus/usb/devices/1-1.1", &behind);
    let (_, paths) = found(&fake, &["usb:10c4:ea60=x"]);
    assert_eq!(paths, ["/dev/ttyUSB4", "/dev/bus/usb/001/004"]);
    let (ids, paths) = found(&fake, &["usb:dead:beef=x"]);
    assert_eq!(ids, ["dead:beef@0000:00:14.0-usb-1.1"]);
    assert_eq!(paths, ["/dev/bus/usb/001/009"]);
}

#[test]
fn links_of_udev_name_serial_ports_and_cameras() {
    let fake = FakeTree::new();
    fake.file("/dev/ttyACM0", "");
    fake.file("/dev/video0", "");
    fake.file("/dev/video1", "");
    let stick = "usb-dresden_elektronik_ConBee_II_DE2-if00";
    fake.link(&format!("/dev/serial/by-id/{stick}"), "/dev/ttyACM0");
    fake.link("/dev/serial/by-id/usb-gone", "/dev/ttyACM7");
    fake.link("/dev/v4l/by-id/usb-Cam-video-index0", "/dev/video0");
    fake.link("/dev/v4l/by-id/usb-Cam-video-index1", "/dev/video1");
    let link = format!("/dev/serial/by-id/{stick}");
    assert_eq!(found(&fake, &["serial:*ConBee*=x"]).1, [link.as_str(), "/dev/ttyACM0"]);
    assert_eq!(found(&fake, &["serial:*=x"]).0, [stick]);
    let (ids, paths) = found(&fake, &["video:*index0=x"]);
    assert_eq!(ids, ["usb-Cam-video-index0"]);
    assert_eq!(paths, ["/dev/v4l/by-id/usb-Cam-video-index0", "/dev/video0"]);
}

#[test]
fn gpio_chips_have_labels_of_their_own_or_of_the_older_interface() {
    let fake = FakeTree::new();
    let chip = |device: &str, number: u32| {
        let name = format!("gpiochip{number}");
        let path = format!("/sys/devices/platform/{device}/{name}");
        fake.file(&format!("{path}/uevent"), &format!("DEVNAME={name}\n"));
        fake.file(&format!("/dev/{name}"), "");
        fake.link(&format!("/sys/bus/gpio/devices/{name}"), &path);
        path
    };
    chip("fe200000.gpio", 0);
    let own = chip("expander", 1);
    fake.file(&format!("{own}/label"), "raspberrypi-exp-gpio\n");
    let banks = [chip("banks", 2), chip("banks", 3)];
    let older = |number: u32, label: &str, device: &str| {
        fake.file(&format!("/sys/class/gpio/gpiochip{number}/label"), &format!("{label}\n"));
        fake.link(&format!("/sys/class/gpio/gpiochip{number}/device"), device);
    };
    older(512, "pinctrl-bcm2711", "/sys/devices/platform/fe200000.gpio");
    older(600, "bank-a", "/sys/devices/platform/banks");
    older(700, "bank-b", &banks[1]);
    assert_eq!(found(&fake, &["gpio:pinctrl-*=x"]).1, ["/dev/gpiochip0"]);
    assert_eq!(found(&fake, &["gpio:raspberrypi-exp-gpio=x"]).1, ["/dev/gpiochip1"]);
    // Which of two chips of one device has the label is not known.
    assert_eq!(found(&fake, &["gpio:bank-a=x"]).1, texts(&[]));
    assert_eq!(found(&fake, &["gpio:bank-b=x"]).1, ["/dev/gpiochip3"]);
}

#[test]
fn paths_are_nodes_links_and_directories() {
    let fake = FakeTree::new();
    for node in ["fuse", "loop0", "loop1", "loop-control", "snd/controlC0", "snd/pcmC0D0p"] {
        fake.file(&format!("/dev/{node}"), "");
    }
    fake.link("/dev/disk/by-id/a", "/dev/loop1");
    assert_eq!(found(&fake, &["path:/dev/fuse=y"]).1, ["/dev/fuse"]);
    assert_eq!(found(&fake, &["path:/dev/loop[0-9]*=x"]).0, ["loop0", "loop1"]);
    assert_eq!(found(&fake, &["path:/dev/gone=x"]).0, texts(&[]));
    let (ids, paths) = found(&fake, &["path:/dev/snd=x"]);
    assert_eq!(ids, ["snd"]);
    assert_eq!(paths, ["/dev/snd/pcmC0D0p", "/dev/snd/controlC0"]);
    assert_eq!(found(&fake, &["path:/dev/sn*=x"]).0, texts(&[]), "a wildcard selects nodes only");
    let (ids, paths) = found(&fake, &["path:/dev/*/by-id/*=x"]);
    assert_eq!(ids, ["disk/by-id/a"]);
    assert_eq!(paths, ["/dev/disk/by-id/a", "/dev/loop1"]);
    // A node and a link to it are one device, with the name of the link.
    let both = ["path:/dev/disk/by-id/*=x", "path:/dev/loop[0-9]=x"];
    assert_eq!(found(&fake, &both).0, ["disk/by-id/a", "loop0"]);
}

#[test]
fn the_directories_to_watch_are_those_in_which_devices_appear() {
    let fake = FakeTree::new();
    fake.file("/dev/bus/usb/001/001", "");
    fake.file("/dev/dri/renderD128", "");
    fake.file("/dev/serial/by-path/x", "");
    let watched = |text: &str| {
        let all = directories(&fake.tree(), &selections(&[text])).into_iter();
        all.map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(watched("gpio:*=x"), "/dev");
    assert_eq!(watched("path:/dev/fuse=x"), "/dev");
    assert_eq!(watched("path:/dev/dri=x"), "/dev /dev/dri");
    assert_eq!(watched("path:/dev/dri/*=x"), "/dev /dev/dri");
    assert_eq!(watched("path:/dev/gone/x=x"), "/dev");
    assert_eq!(watched("serial:*=x"), "/dev /dev/serial");
    assert_eq!(watched("usb:1234:abcd=x"), "/dev /dev/bus /dev/bus/usb /dev/bus/usb/001");
    assert!(directories(&fake.tree(), &[]).contains(Path::new("/dev")));
}
