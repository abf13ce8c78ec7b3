//! Releases are linked with identical code folding: generic functions often compile to the same
//! instructions.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    // Rust's own linker supports it; it is the default only on x86-64 Linux.
    if is("PROFILE", "release") && is("TARGET", "x86_64-unknown-linux-gnu") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
