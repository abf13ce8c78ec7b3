//! Compiles etcd's protocol with protox, so that building needs no protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/rpc.proto", "proto/kv.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
