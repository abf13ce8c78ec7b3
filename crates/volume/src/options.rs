//! Mount options of persistent volumes: mount(8)'s words, split into the kernel's flags and file
//! system data.

use rustix::mount::MountFlags;

/// The options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The kernel's flags.
    pub flags: MountFlags,
    /// The file system's data, separated by commas.
    pub data: String,
}

const FLAGS: &[(&str, &str, MountFlags)] = &[
    ("ro", "rw", MountFlags::RDONLY),
    ("nosuid", "suid", MountFlags::NOSUID),
    ("nodev", "dev", MountFlags::NODEV),
    ("noexec", "exec", MountFlags::NOEXEC),
    ("sync", "async", MountFlags::SYNCHRONOUS),
    ("noatime", "atime", MountFlags::NOATIME),
    ("nodiratime", "diratime", MountFlags::NODIRATIME),
    ("relatime", "norelatime", MountFlags::RELATIME),
    ("strictatime", "nostrictatime", MountFlags::STRICTATIME),
];

impl MountOptions {
    /// Parses options, each of which may be a list; later ones win. `read_only` wins over all.
    pub fn new(options: &[String], read_only: bool) -> Self {
        let mut flags = MountFlags::empty();
        let mut data = Vec::new();
        let words = options.iter().flat_map(|option| option.split(','));
        for word in words.filter(|word| !matches!(*word, "" | "defaults" | "bind")) {
            if let Some((_, _, flag)) = FLAGS.iter().find(|(on, _, _)| *on == word) {
                flags |= *flag;
            } else if let Some((_, _, flag)) = FLAGS.iter().find(|(_, off, _)| *off == word) {
                flags -= *flag;
            } else {
                data.push(word);
            }
        }
        if read_only {
            flags |= MountFlags::RDONLY;
        }
        Self {
            flags,
            data: data.join(","),
        }
    }

    /// The options in mount(8)'s form.
    pub fn words(&self) -> String {
        let on = FLAGS
            .iter()
            .filter(|(_, _, flag)| self.flags.contains(*flag));
        let mut words: Vec<&str> = on.map(|(on, _, _)| *on).collect();
        if !self.data.is_empty() {
            words.push(&self.data);
        }
        words.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_the_kernels_and_the_rest_is_the_file_systems() {
        let read = |words: &[&str], read_only| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            MountOptions::new(&words, read_only)
        };
        let options = read(&["noatime,nfsvers=4.1", "ro", "rw", "hard"], false);
        assert_eq!(options.flags, MountFlags::NOATIME);
        assert_eq!(options.data, "nfsvers=4.1,hard");
        assert_eq!(options.words(), "noatime,nfsvers=4.1,hard");
        assert_eq!(read(&["rw", "defaults"], true).flags, MountFlags::RDONLY);
    }
}
