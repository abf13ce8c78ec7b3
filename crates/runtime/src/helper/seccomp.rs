//! Compiles seccomp profiles of the OCI configuration to BPF programs.
//!
//! A program has one action for matching calls and one for others. A profile with several actions
//! becomes several programs: the kernel runs all and takes the strictest result. Each action other
//! than "allow" gets a program that allows everything else, and the program with the default action
//! comes last.

use std::collections::BTreeMap;

use oci_spec::runtime::{
    LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompOperator, LinuxSyscall,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::oci::Outcome;
use crate::spec::syscalls;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The programs of a profile in the order of their installation.
pub(super) fn compile(profile: &LinuxSeccomp) -> Outcome<Vec<BpfProgram>> {
    let default = action(profile.default_action(), profile.default_errno_ret())?;
    let mut groups: Vec<(SeccompAction, Rules)> = Vec::new();
    for entry in profile.syscalls().iter().flatten() {
        let action = action(entry.action(), entry.errno_ret())?;
        if action == default {
            continue;
        }
        match groups.iter_mut().find(|(known, _)| *known == action) {
            Some((_, rules)) => add(rules, entry)?,
            None => {
                let mut rules = Rules::new();
                add(&mut rules, entry)?;
                groups.push((action, rules));
            }
        }
    }
    let mut programs = Vec::new();
    let mut passing = Rules::new();
    for (action, rules) in groups {
        for (number, conditions) in &rules {
            merge(&mut passing, *number, conditions.clone());
        }
        if action != SeccompAction::Allow {
            programs.push(program(rules, SeccompAction::Allow, action)?);
        }
    }
    if default != SeccompAction::Allow {
        programs.push(program(passing, default, SeccompAction::Allow)?);
    }
    Ok(programs)
}

fn program(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Outcome<BpfProgram> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()?)
}

fn add(rules: &mut Rules, entry: &LinuxSyscall) -> Outcome<()> {
    let conditions: Vec<_> = entry
        .args()
        .iter()
        .flatten()
        .map(condition)
        .collect::<Outcome<_>>()?;
    for name in entry.names() {
        // Profiles contain system calls of all architectures.
        let Some(number) = syscalls::number(name) else {
            continue;
        };
        let rule = if conditions.is_empty() {
            Vec::new()
        } else {
            vec![SeccompRule::new(conditions.clone())?]
        };
        merge(rules, number, rule);
    }
    Ok(())
}

/// An empty list of conditions matches every call and replaces others.
fn merge(rules: &mut Rules, number: i64, conditions: Vec<SeccompRule>) {
    match rules.get_mut(&number) {
        None => {
            rules.insert(number, conditions);
        }
        Some(known) if known.is_empty() || conditions.is_empty() => known.clear(),
        Some(known) => known.extend(conditions),
    }
}

fn condition(arg: &LinuxSeccompArg) -> Outcome<SeccompCondition> {
    let operator = match arg.op() {
        LinuxSeccompOperator::ScmpCmpNe => SeccompCmpOp::Ne,
        LinuxSeccompOperator::ScmpCmpLt => SeccompCmpOp::Lt,
        LinuxSeccompOperator::ScmpCmpLe => SeccompCmpOp::Le,
        LinuxSeccompOperator::ScmpCmpEq => SeccompCmpOp::Eq,
        LinuxSeccompOperator::ScmpCmpGe => SeccompCmpOp::Ge,
        LinuxSeccompOperator::ScmpCmpGt => SeccompCmpOp::Gt,
        LinuxSeccompOperator::ScmpCmpMaskedEq => SeccompCmpOp::MaskedEq(arg.value()),
    };
    let value = match arg.op() {
        LinuxSeccompOperator::ScmpCmpMaskedEq => arg.value_two().unwrap_or(0),
        _ => arg.value(),
    };
    let index = u8::try_from(arg.index())?;
    Ok(SeccompCondition::new(
        index,
        SeccompCmpArgLen::Qword,
        operator,
        value,
    )?)
}

fn action(action: LinuxSeccompAction, errno: Option<u32>) -> Outcome<SeccompAction> {
    let errno = errno.unwrap_or(libc::EPERM.cast_unsigned());
    Ok(match action {
        LinuxSeccompAction::ScmpActAllow => SeccompAction::Allow,
        LinuxSeccompAction::ScmpActErrno => SeccompAction::Errno(errno),
        LinuxSeccompAction::ScmpActKill | LinuxSeccompAction::ScmpActKillThread => {
            SeccompAction::KillThread
        }
        LinuxSeccompAction::ScmpActKillProcess => SeccompAction::KillProcess,
        LinuxSeccompAction::ScmpActLog => SeccompAction::Log,
        LinuxSeccompAction::ScmpActTrap => SeccompAction::Trap,
        LinuxSeccompAction::ScmpActTrace => SeccompAction::Trace(errno),
        LinuxSeccompAction::ScmpActNotify => {
            return Err("seccomp notifications are not supported".into());
        }
    })
}

/// Installs one program for this process. Unlike seccompiler's function it does not set
/// no_new_privs, which is up to the container's configuration.
pub(super) fn install(program: &BpfProgram) -> std::io::Result<()> {
    let length = u16::try_from(program.len()).map_err(std::io::Error::other)?;
    let filter = program.as_ptr().cast_mut().cast::<libc::sock_filter>();
    let program = libc::sock_fprog {
        len: length,
        filter,
    };
    // SAFETY: the kernel copies `len` instructions, which live through the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
