//! What the linker is asked for besides its defaults.

// Cargo says through the environment what is built.
#[allow(clippy::disallowed_methods)]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, wanted: &str| std::env::var(name).is_ok_and(|value| value == wanted);
    // Functions whose code is the same are one: generic code of many kinds is, 2 % of the program. Only the linker that comes with Rust on
    // this target is known to do it; identity of functions is nothing that Rust promises.
    let lld = is("CARGO_CFG_TARGET_ARCH", "x86_64") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if lld && is("PROFILE", "release") {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
}
