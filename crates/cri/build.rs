//! Compiles the protocol with protox, so that building needs no protoc.

use std::error::Error;

const FILES: &[&str] = &[
    "proto/container.proto",
    "proto/image_service.proto",
    "proto/mainstay.proto",
    "proto/node.proto",
    "proto/pod.proto",
    "proto/runtime_service.proto",
    "proto/sandbox.proto",
    "proto/security.proto",
    "proto/stats.proto",
    "proto/streaming.proto",
    "proto/values.proto",
    "proto/windows.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .generate_default_stubs(true)
        .skip_debug(["runtime.v1.AuthConfig", "mainstay.v1.PullRequest"])
        .compile_fds(descriptors)?;
    Ok(())
}
