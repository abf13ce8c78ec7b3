//! Which devices a container may create and open. cgroup v1 has files for the rules; v2 needs a BPF
//! program, which is generated from them.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::Path,
};

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType};

/// What every container may do in addition: create nodes, and use the harmless devices.
const ALWAYS: &[(Kind, Option<i64>, Option<i64>, &str)] = &[
    (Kind::Char, None, None, "m"),
    (Kind::Block, None, None, "m"),
    (Kind::Char, Some(1), Some(3), "rwm"),
    (Kind::Char, Some(1), Some(5), "rwm"),
    (Kind::Char, Some(1), Some(7), "rwm"),
    (Kind::Char, Some(1), Some(8), "rwm"),
    (Kind::Char, Some(1), Some(9), "rwm"),
    (Kind::Char, Some(5), Some(0), "rwm"),
    (Kind::Char, Some(5), Some(1), "rwm"),
    (Kind::Char, Some(5), Some(2), "rwm"),
    (Kind::Char, Some(10), Some(200), "rwm"),
    (Kind::Char, Some(136), None, "rwm"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    All,
    Block,
    Char,
}

/// One rule; an absent value matches everything.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    allow: bool,
    kind: Kind,
    major: Option<i64>,
    minor: Option<i64>,
    access: String,
}

/// The requested rules, then those that always apply.
fn rules(asked: &[LinuxDeviceCgroup]) -> Vec<Rule> {
    let asked = asked.iter().map(|rule| Rule {
        allow: rule.allow(),
        kind: match rule.typ() {
            Some(LinuxDeviceType::B) => Kind::Block,
            Some(LinuxDeviceType::C | LinuxDeviceType::U) => Kind::Char,
            _ => Kind::All,
        },
        major: rule.major().filter(|number| *number >= 0),
        minor: rule.minor().filter(|number| *number >= 0),
        access: rule.access().clone().unwrap_or_else(|| "rwm".to_owned()),
    });
    let always = ALWAYS.iter().map(|(kind, major, minor, access)| Rule {
        allow: true,
        kind: *kind,
        major: *major,
        minor: *minor,
        access: (*access).to_owned(),
    });
    asked.chain(always).collect()
}

/// The rules for v1, in order: whether it is allowed, and the device.
pub(crate) fn lines(asked: &[LinuxDeviceCgroup]) -> Vec<(bool, String)> {
    let number = |number: Option<i64>| number.map_or("*".to_owned(), |number| number.to_string());
    let line = |rule: Rule| {
        let kind = match rule.kind {
            Kind::All => 'a',
            Kind::Block => 'b',
            Kind::Char => 'c',
        };
        let (major, minor) = (number(rule.major), number(rule.minor));
        (
            rule.allow,
            format!("{kind} {major}:{minor} {}", rule.access),
        )
    };
    let asked = rules(asked);
    // A container that may use all devices needs no exceptions.
    match asked.first() {
        Some(first) if first.allow && first.kind == Kind::All && first.major.is_none() => {
            vec![line(first.clone())]
        }
        _ => asked.into_iter().map(line).collect(),
    }
}

/// Attaches a BPF program with these rules to a v2 cgroup.
pub(crate) fn attach(cgroup: &Path, asked: &[LinuxDeviceCgroup]) -> io::Result<()> {
    let named = |what: &str| {
        let what = format!("{what} the device rules of {}", cgroup.display());
        move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"))
    };
    let group = File::open(cgroup).map_err(named("attach"))?;
    let program = load(&program(&rules(asked))).map_err(named("load"))?;
    let attributes = Attach {
        target_fd: group.as_raw_fd().cast_unsigned(),
        program_fd: program.as_raw_fd().cast_unsigned(),
        kind: BPF_CGROUP_DEVICE,
        flags: BPF_F_ALLOW_MULTI,
    };
    bpf(BPF_PROG_ATTACH, &attributes).map_err(named("attach"))?;
    Ok(())
}

/// A BPF instruction.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    value: i32,
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    Instruction {
        code,
        registers: from << 4 | to,
        offset,
        value,
    }
}

// Opcodes of the kernel.
const LOAD_WORD: u8 = 0x61;
const AND: u8 = 0x54;
const SHIFT_RIGHT: u8 = 0x74;
const COPY: u8 = 0xbc;
const SET: u8 = 0xb7;
const JUMP_UNLESS: u8 = 0x55;
const JUMP_UNLESS_SAME: u8 = 0x5d;
const JUMP_IF: u8 = 0x15;
const EXIT: u8 = 0x95;

// Registers: the result, the argument (free after it was read), and the values read from it.
const ANSWER: u8 = 0;
const SCRATCH: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

/// The last matching rule decides, so that they are checked from the last; without a match access
/// is denied.
fn program(rules: &[Rule]) -> Vec<Instruction> {
    let mut code = vec![
        instruction(LOAD_WORD, KIND, SCRATCH, 0, 0),
        instruction(COPY, ACCESS, KIND, 0, 0),
        instruction(AND, KIND, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(LOAD_WORD, MAJOR, SCRATCH, 4, 0),
        instruction(LOAD_WORD, MINOR, SCRATCH, 8, 0),
    ];
    for rule in rules.iter().rev() {
        let checks = checks(rule);
        let end = checks.len() + 2;
        for (at, mut check) in checks.into_iter().enumerate() {
            if matches!(check.code, JUMP_UNLESS | JUMP_UNLESS_SAME | JUMP_IF) {
                check.offset = i16::try_from(end - at - 1).unwrap_or(i16::MAX);
            }
            code.push(check);
        }
        code.push(instruction(SET, ANSWER, 0, 0, i32::from(rule.allow)));
        code.push(instruction(EXIT, 0, 0, 0, 0));
        // The kernel rejects a program with unreachable parts.
        if end == 2 {
            return code;
        }
    }
    code.push(instruction(SET, ANSWER, 0, 0, 0));
    code.push(instruction(EXIT, 0, 0, 0, 0));
    code
}

/// The checks jump behind the rule if it does not match; the distances are filled in later.
fn checks(rule: &Rule) -> Vec<Instruction> {
    let mut code = Vec::new();
    let kind = match rule.kind {
        Kind::All => None,
        Kind::Block => Some(1),
        Kind::Char => Some(2),
    };
    if let Some(kind) = kind {
        code.push(instruction(JUMP_UNLESS, KIND, 0, 0, kind));
    }
    let bit = |letter, bit| if rule.access.contains(letter) { bit } else { 0 };
    let access = bit('m', 1) | bit('r', 2) | bit('w', 4);
    if access != 7 {
        code.push(instruction(COPY, SCRATCH, ACCESS, 0, 0));
        code.push(instruction(AND, SCRATCH, 0, 0, access));
        // A rule allows only if it covers all requested accesses, and denies if it covers any.
        code.push(if rule.allow {
            instruction(JUMP_UNLESS_SAME, SCRATCH, ACCESS, 0, 0)
        } else {
            instruction(JUMP_IF, SCRATCH, 0, 0, 0)
        });
    }
    for (register, number) in [(MAJOR, rule.major), (MINOR, rule.minor)] {
        if let Some(number) = number.and_then(|number| i32::try_from(number).ok()) {
            code.push(instruction(JUMP_UNLESS, register, 0, 0, number));
        }
    }
    code
}

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_F_ALLOW_MULTI: u32 = 2;

/// The first fields of the kernel's argument for loading; the rest may be absent.
#[repr(C)]
struct Load {
    kind: u32,
    length: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
}

#[repr(C)]
struct Attach {
    target_fd: u32,
    program_fd: u32,
    kind: u32,
    flags: u32,
}

fn load(code: &[Instruction]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let attributes = Load {
        kind: BPF_PROG_TYPE_CGROUP_DEVICE,
        length: u32::try_from(code.len()).map_err(io::Error::other)?,
        instructions: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
    };
    let fd = bpf(BPF_PROG_LOAD, &attributes)?;
    // SAFETY: the kernel has just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<i32> {
    // SAFETY: the kernel reads as many bytes as the structure has; what it points to lives through
    // the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        i32::try_from(result).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;
    use crate::Cgroup;

    fn asked(json: &str) -> Vec<LinuxDeviceCgroup> {
        serde_json::from_str(json).unwrap()
    }

    const ONE: &str = r#"[{"allow": false, "access": "rwm"},
        {"allow": true, "type": "b", "major": 8, "minor": 0, "access": "r"}]"#;

    #[test]
    fn device_rules_of_version_1_are_written_as_text() {
        let reported = lines(&asked(ONE));
        assert_eq!(reported[0], (false, "a *:* rwm".to_owned()));
        assert_eq!(reported[1], (true, "b 8:0 r".to_owned()));
        assert!(reported.contains(&(true, "c 1:3 rwm".to_owned())));
        let privileged = lines(&asked(r#"[{"allow": true, "access": "rwm"}]"#));
        assert_eq!(privileged, [(true, "a *:* rwm".to_owned())]);
    }

    /// Interprets a program as the kernel would.
    fn run(code: &[Instruction], kind: i64, access: i64, major: i64, minor: i64) -> bool {
        let mut registers = [0_i64; 6];
        let mut at = 0_usize;
        loop {
            let step = code[at];
            let (to, from) = (
                usize::from(step.registers & 15),
                usize::from(step.registers >> 4),
            );
            let value = i64::from(step.value);
            let jump = match step.code {
                LOAD_WORD => {
                    registers[to] = [access << 16 | kind, major, minor][step.offset as usize / 4];
                    false
                }
                AND => {
                    registers[to] &= value;
                    false
                }
                SHIFT_RIGHT => {
                    registers[to] >>= value;
                    false
                }
                COPY => {
                    registers[to] = registers[from];
                    false
                }
                SET => {
                    registers[to] = value;
                    false
                }
                JUMP_UNLESS => registers[to] != value,
                JUMP_UNLESS_SAME => registers[to] != registers[from],
                JUMP_IF => registers[to] == value,
                EXIT => return registers[0] != 0,
                other => panic!("operation {other:#x}"),
            };
            at += 1;
            if jump {
                at += usize::try_from(step.offset).unwrap();
            }
        }
    }

    #[test]
    fn the_last_rule_that_matches_decides() {
        let (block, char) = (1, 2);
        let (make, read, write) = (1, 2, 4);
        let code = program(&rules(&asked(ONE)));
        assert!(run(&code, block, read, 8, 0));
        assert!(!run(&code, block, read | write, 8, 0), "only reading");
        assert!(!run(&code, block, read, 8, 1), "another disk");
        assert!(
            run(&code, block, make, 8, 1),
            "a node that cannot be opened"
        );
        assert!(run(&code, char, read | write, 1, 3), "/dev/null");
        assert!(!run(&code, char, read, 1, 1), "/dev/mem");
        let partly = r#"[{"allow": true, "access": "rwm"},
            {"allow": false, "type": "c", "major": 1, "minor": 1, "access": "w"}]"#;
        let code = program(&rules(&asked(partly)));
        assert!(run(&code, char, read, 1, 1));
        assert!(!run(&code, char, read | write, 1, 1));
    }

    /// A real v2 cgroup needs no controllers for this. Needs root.
    #[test]
    fn the_kernel_enforces_the_device_program() {
        let Some(real) = crate::real::Tree::take() else {
            return;
        };
        let tree = real.hierarchies();
        let group = Cgroup::at(tree, format!("mainstay-devices-{}", std::process::id()));
        group.create().unwrap();
        let denied = asked(r#"[{"allow": false, "access": "rwm"}]"#);
        let attached = attach(&group.dir("").unwrap(), &denied);
        let procs = group.dir("").unwrap().join("cgroup.procs");
        let script = format!(
            "echo $$ > {} && head -c1 /dev/zero > /dev/null && echo ok && head -c1 /dev/kmsg",
            procs.display()
        );
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        group
            .remove_within(std::time::Duration::from_secs(5))
            .unwrap();
        attached.unwrap();
        assert!(fs::exists("/dev/kmsg").unwrap());
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("not permitted"), "{said}");
    }
}
