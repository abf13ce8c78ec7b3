//! Reads and changes files in images without a shell.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileTypeExt, MetadataExt},
};

use crate::{Command, Outcome, print_line};

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "cat",
        arguments: "[FILE…]",
        help: "print files, or standard input",
        run: cat,
    },
    Command {
        name: "ls",
        arguments: "[DIR]",
        help: "list a directory",
        run: ls,
    },
    Command {
        name: "stat",
        arguments: "FILE…",
        help: "mode, owner, size and kind of files",
        run: stat,
    },
    Command {
        name: "write",
        arguments: "FILE TEXT",
        help: "write a line to a file",
        run: write,
    },
    Command {
        name: "append",
        arguments: "FILE TEXT",
        help: "add a line to a file",
        run: append,
    },
    Command {
        name: "rm",
        arguments: "FILE…",
        help: "remove files or directories",
        run: rm,
    },
];

fn cat(args: &[String]) -> Outcome {
    let mut out = io::stdout().lock();
    if args.is_empty() {
        io::copy(&mut io::stdin().lock(), &mut out)?;
    }
    for path in args {
        let mut file = fs::File::open(path).map_err(|error| format!("{path}: {error}"))?;
        io::copy(&mut file, &mut out)?;
    }
    out.flush()?;
    Ok(0)
}

fn ls(args: &[String]) -> Outcome {
    let dir = args.first().map_or(".", String::as_str);
    let entries = fs::read_dir(dir).map_err(|error| format!("{dir}: {error}"))?;
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        print_line(name.display())?;
    }
    Ok(0)
}

fn stat(args: &[String]) -> Outcome {
    for path in args {
        let data = fs::symlink_metadata(path).map_err(|error| format!("{path}: {error}"))?;
        let kind = match data.file_type() {
            kind if kind.is_dir() => "directory",
            kind if kind.is_symlink() => "link",
            kind if kind.is_file() => "file",
            kind if kind.is_char_device() => "character device",
            kind if kind.is_block_device() => "block device",
            kind if kind.is_fifo() => "pipe",
            _ => "socket",
        };
        let mode = data.mode() & 0o7777;
        print_line(format_args!(
            "{path} {kind} {mode:04o} {}:{} {}",
            data.uid(),
            data.gid(),
            data.size()
        ))?;
    }
    Ok(0)
}

fn put(args: &[String], options: &mut OpenOptions) -> Outcome {
    let [path, text] = args else {
        return Err("which file, and what?".into());
    };
    let mut file = options
        .create(true)
        .open(path)
        .map_err(|error| format!("{path}: {error}"))?;
    writeln!(file, "{text}")?;
    Ok(0)
}

fn write(args: &[String]) -> Outcome {
    put(args, OpenOptions::new().write(true).truncate(true))
}

fn append(args: &[String]) -> Outcome {
    put(args, OpenOptions::new().append(true))
}

fn rm(args: &[String]) -> Outcome {
    for path in args {
        let data = fs::symlink_metadata(path).map_err(|error| format!("{path}: {error}"))?;
        let removed = if data.is_dir() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        };
        removed.map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(0)
}
