//! Extracts the descriptions of all types and fields from the k8s-openapi crate's source, for
//! OpenAPI: compressed, a fraction of what its generated schemas would weigh in the binary. They
//! are read from cargo's copy of the crate; none are in this repository.

use std::{
    env,
    error::Error,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

const CRATE: &str = "k8s-openapi";
const VERSION: &str = "v1_36";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    let mut files = Vec::new();
    walk(&source()?.join("src").join(VERSION), &mut files)?;
    files.sort();
    let mut text = String::new();
    for file in files {
        gather(&fs::read_to_string(file)?, &mut text);
    }
    if !text.contains("\nio.k8s.api.core.v1.Pod\t") {
        return Err(format!("{CRATE} has another form than this script knows").into());
    }
    let out = PathBuf::from(env::var("OUT_DIR")?).join("descriptions.gz");
    let mut packed =
        flate2::write::GzEncoder::new(fs::File::create(out)?, flate2::Compression::best());
    packed.write_all(text.as_bytes())?;
    packed.finish()?;
    Ok(())
}

/// The crate's directory in cargo's cache.
fn source() -> Result<PathBuf, Box<dyn Error>> {
    let ask = |offline: &[&str]| -> Result<String, Box<dyn Error>> {
        let output = Command::new(env::var("CARGO")?)
            .args(["metadata", "--format-version=1", "--locked"])
            .args(["--filter-platform", &env::var("TARGET")?])
            .args(offline)
            .current_dir(env::var("CARGO_MANIFEST_DIR")?)
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(String::from_utf8(output.stdout)?)
    };
    let metadata = ask(&["--offline"]).or_else(|_| ask(&[]))?;
    let package = metadata.split_once(&format!("{{\"name\":\"{CRATE}\",\"version\":"));
    let manifest = package.and_then(|(_, rest)| rest.split_once("\"manifest_path\":\""));
    let path = manifest.and_then(|(_, rest)| rest.split_once('"'));
    let (path, _) = path.ok_or("cargo does not know k8s-openapi")?;
    Ok(Path::new(path).parent().ok_or("no folder")?.to_owned())
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Lines of type, field (empty for the type itself) and description.
fn gather(source: &str, out: &mut String) {
    let (mut name, mut field) = (None, String::new());
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim_start();
        if line.starts_with("fn schema_name()") {
            name = lines.next().and_then(literal);
            field.clear();
            continue;
        }
        let Some(name) = &name else { continue };
        if indent == 16 && line.starts_with('"') && line.ends_with('{') {
            field = literal(line).unwrap_or_default();
            continue;
        }
        let own = line.strip_prefix("\"description\": ");
        let beside = line.split_once("insert(\"description\".into(), ");
        let Some(text) = own.or(beside.map(|(_, text)| text)).and_then(literal) else {
            continue;
        };
        let nested = if field.is_empty() { 12 } else { 20 };
        if indent == nested {
            // One line each; the server restores the line breaks.
            let text = text.replace('\t', " ").replace('\n', "\u{1f}");
            *out += &format!("\n{name}\t{field}\t{text}");
        }
    }
}

/// The first string literal of a line.
fn literal(line: &str) -> Option<String> {
    let (_, rest) = line.split_once('"')?;
    let mut out = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return Some(out),
            '\\' => match chars.next()? {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => {}
                'u' => {
                    let code: String = chars.by_ref().skip(1).take_while(|c| *c != '}').collect();
                    out.extend(u32::from_str_radix(&code, 16).ok().and_then(char::from_u32));
                }
                plain => out.push(plain),
            },
            plain => out.push(plain),
        }
    }
}
