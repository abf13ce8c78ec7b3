//! Releases are linked with identical code folding: generic functions often compile to the same
//! instructions. Constants of the same content are one too, and with them the functions that differ only in the
//! address of such a constant: nothing may rely on two constants having two addresses.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    // Rust's own linker supports it; it is the default only on x86-64 Linux.
    if is("PROFILE", "release") && is("TARGET", "x86_64-unknown-linux-gnu") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all,--ignore-data-address-equality");
    }
}
