//! `make up` of a user who is not root, and behind sudo: programs that print how they are called
//! stand for cargo, sudo and mainstay.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use testkit::Ran;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    fs::write(path, format!("#!/bin/sh\n{script}\n")).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
}

/// A directory with programs of these names, and where the built binary would be.
fn programs(directory: &Path, user: &str) -> Command {
    let bin = directory.join("bin");
    program(&bin.join("rustc"), "echo 'host: somewhere'");
    program(&bin.join("id"), &format!("echo {user}"));
    program(&bin.join("sudo"), "echo sudo \"$@\"; exec \"$@\"");
    let home = directory.join("home").display().to_string();
    program(
        &bin.join("getent"),
        &format!("echo jane:x:1000:1000::{home}:/bin/sh"),
    );
    let target = directory.join("target");
    program(
        &target.join("somewhere/up/mainstay"),
        "echo mainstay \"$@\"",
    );
    let mut make = Command::new("make");
    make.args(["--silent", "up"])
        .arg(format!("TARGET={}", target.display()))
        .current_dir(REPOSITORY)
        .env_remove("SUDO_USER")
        .env_remove("MAKEFLAGS")
        .env(
            "PATH",
            format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()),
        );
    make
}

fn run(mut make: Command) -> String {
    Ran::from(make.output().expect("make starts")).success()
}

#[test]
fn a_user_who_is_not_root_starts_it_with_sudo() {
    let directory = tempfile::tempdir().expect("a directory");
    let make = programs(directory.path(), "1000");
    program(&directory.path().join("bin/cargo"), "echo cargo \"$@\"");
    let said = run(make);
    let binary = directory.path().join("target/somewhere/up/mainstay");
    let binary = binary.display();
    let expected = format!(
        "cargo build --profile up --package mainstay\nA node needs root: sudo {binary} up\n\
         sudo {binary} up\nmainstay up\n"
    );
    assert_eq!(said, expected);
}

#[test]
fn behind_sudo_the_users_cargo_is_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut make = programs(directory.path(), "0");
    let cargo = directory.path().join("home/.cargo/bin/cargo");
    program(&cargo, "echo cargo of $CARGO_HOME: \"$@\"");
    make.env("SUDO_USER", "jane")
        .env_remove("CARGO_HOME")
        .env_remove("RUSTUP_HOME");
    let home = directory.path().join("home/.cargo");
    let expected = format!(
        "cargo of {}: build --profile up --package mainstay\nmainstay up\n",
        home.display()
    );
    assert_eq!(run(make), expected);
}
