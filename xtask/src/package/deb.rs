//! A Debian package (deb(5)): an `ar` archive of a version, a control archive and the files.
//! Installing the package does not start the service; an upgrade restarts it if it runs, without
//! affecting pods.

use std::{fmt::Write, fs, path::Path};

use anyhow::Result;

use super::{Package, VERSION, gzip, tree::Tree};

/// Configuration files: an upgrade keeps local changes.
const CONFIGURATION: &[&str] = &["etc/mainstay/config.yaml", "etc/default/mainstay"];

/// Links kubectl if there is no other one.
const AFTER_INSTALL: &str = "#!/bin/sh
set -e
[ \"$1\" = configure ] || exit 0
if [ ! -e /usr/bin/kubectl ] && ! command -v kubectl >/dev/null 2>&1; then
  ln -s mainstay /usr/bin/kubectl
  shells=/usr/share/mainstay/completions
  for place in bash-completion/completions/kubectl:kubectl.bash zsh/vendor-completions/_kubectl:_kubectl \\
    fish/vendor_completions.d/kubectl.fish:kubectl.fish; do
    link=/usr/share/${place%%:*}
    mkdir -p \"${link%/*}\"
    [ -e \"$link\" ] || ln -s \"$shells/${place##*:}\" \"$link\"
  done
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart mainstay.service
fi
if [ -z \"$2\" ]; then
  echo \"Mainstay is installed. /etc/default/mainstay says what the service runs; 'systemctl enable --now mainstay' starts it.\"
fi
";

/// Containers and data stay: `mainstay reset` removes them.
const BEFORE_REMOVE: &str = "#!/bin/sh
set -e
[ \"$1\" = remove ] || exit 0
if [ -d /run/systemd/system ]; then
  systemctl disable --now mainstay.service || true
fi
for link in /usr/bin/kubectl /usr/share/bash-completion/completions/kubectl /usr/share/zsh/vendor-completions/_kubectl \\
  /usr/share/fish/vendor_completions.d/kubectl.fish; do
  case $(readlink \"$link\" || true) in mainstay|/usr/share/mainstay/*) rm -f \"$link\" ;; esac
done
if [ -e /var/lib/mainstay/mainstay.json ]; then
  echo \"Containers and data in /var/lib/mainstay are kept; 'mainstay reset' before removing the package deletes them.\"
fi
";

/// Directories that the links of completions needed go if they are empty.
const AFTER_REMOVE: &str = "#!/bin/sh
set -e
for place in bash-completion/completions zsh/vendor-completions fish/vendor_completions.d; do
  (cd /usr/share && rmdir --parents $place) 2>/dev/null || true
done
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
";

/// Writes the package.
pub(super) fn write(path: &Path, package: &Package, files: &Tree) -> Result<()> {
    let mut control = Tree::default();
    control.file("control", description(package, files).into_bytes(), 0o644);
    let configuration: String = CONFIGURATION
        .iter()
        .map(|name| format!("/{name}\n"))
        .collect();
    control.file("conffiles", configuration.into_bytes(), 0o644);
    for (name, script) in [
        ("postinst", AFTER_INSTALL),
        ("prerm", BEFORE_REMOVE),
        ("postrm", AFTER_REMOVE),
    ] {
        control.file(name, script.as_bytes().to_vec(), 0o755);
    }
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", gzip(&control.archive(package.time)?)?),
        ("data.tar.gz", gzip(&files.archive(package.time)?)?),
    ];
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let size = content.len();
        let header = format!(
            "{name:<16}{:<12}0     0     100644  {size:<10}`\n",
            package.time
        );
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&content);
        if size % 2 == 1 {
            bytes.push(b'\n');
        }
    }
    fs::write(path, bytes)?;
    Ok(())
}

fn description(package: &Package, files: &Tree) -> String {
    let kibibytes: usize = files
        .files()
        .map(|(_, bytes)| bytes.len().div_ceil(1024))
        .sum();
    let mut text = String::new();
    for (key, value) in [
        ("Package", "mainstay"),
        ("Version", VERSION),
        ("Architecture", &package.architecture),
        (
            "Maintainer",
            "The Mainstay authors <mainstay@mainstay.local>",
        ),
        ("Installed-Size", &kibibytes.to_string()),
        ("Depends", "nftables, conntrack"),
        ("Section", "admin"),
        ("Priority", "optional"),
        ("Description", "Kubernetes in one binary"),
    ] {
        let _ = writeln!(text, "{key}: {value}");
    }
    text + " API server, store, scheduler, controllers, kubelet, container runtime, pod\n network, service proxy, DNS and kubectl in one program.\n"
}
