//! Prints properties of the process, and ends it in various ways.

use std::{
    fs,
    io::{self, Write},
    thread,
    time::Duration,
};

use crate::{Command, Outcome, host_name, number, print_line, signals};

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "env",
        arguments: "[NAME]",
        help: "print the environment, or one variable",
        run: env,
    },
    Command {
        name: "hostname",
        arguments: "",
        help: "print the host name",
        run: hostname,
    },
    Command {
        name: "id",
        arguments: "",
        help: "user, groups, capabilities and limits of this process",
        run: id,
    },
    Command {
        name: "pwd",
        arguments: "",
        help: "print the working directory",
        run: pwd,
    },
    Command {
        name: "exit",
        arguments: "[CODE]",
        help: "exit at once with a code",
        run: exit,
    },
    Command {
        name: "sleep",
        arguments: "[SECONDS]",
        help: "sleep, forever by default; exits on SIGTERM",
        run: sleep,
    },
    Command {
        name: "signals",
        arguments: "",
        help: "print received signals; only SIGQUIT ends it, SIGTERM does not",
        run: print_signals,
    },
    Command {
        name: "log",
        arguments: "LINES [MILLISECONDS]",
        help: "print numbered lines to both streams",
        run: log,
    },
    Command {
        name: "say",
        arguments: "TEXT…",
        help: "print the arguments",
        run: say_all,
    },
];

fn env(args: &[String]) -> Outcome {
    if let Some(name) = args.first() {
        let value = std::env::var_os(name);
        print_line(value.clone().unwrap_or_default().display())?;
        return Ok(u8::from(value.is_none()));
    }
    let mut all: Vec<_> = std::env::vars_os().collect();
    all.sort();
    for (key, value) in all {
        print_line(format_args!("{}={}", key.display(), value.display()))?;
    }
    Ok(0)
}

fn hostname(_: &[String]) -> Outcome {
    print_line(host_name())?;
    Ok(0)
}

fn id(_: &[String]) -> Outcome {
    let status = fs::read_to_string("/proc/self/status")?;
    let wanted = [
        "Uid:",
        "Gid:",
        "Groups:",
        "CapEff:",
        "CapBnd:",
        "NoNewPrivs:",
        "Seccomp:",
    ];
    for line in status
        .lines()
        .filter(|line| wanted.iter().any(|start| line.starts_with(start)))
    {
        print_line(line)?;
    }
    let score = fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    print_line(format_args!("OomScoreAdj:\t{}", score.trim_end()))?;
    Ok(0)
}

fn pwd(_: &[String]) -> Outcome {
    print_line(std::env::current_dir()?.display())?;
    Ok(0)
}

fn exit(args: &[String]) -> Outcome {
    Ok(number(args, 0, "an exit code")?.unwrap_or(0))
}

fn sleep(args: &[String]) -> Outcome {
    let seconds = number::<f64>(args, 0, "a number of seconds")?;
    signals::end_when_asked()?;
    match seconds {
        Some(seconds) => thread::sleep(Duration::try_from_secs_f64(seconds)?),
        None => loop {
            thread::park();
        },
    }
    Ok(0)
}

fn print_signals(_: &[String]) -> Outcome {
    let numbers = [
        libc::SIGTERM,
        libc::SIGINT,
        libc::SIGHUP,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGQUIT,
        libc::SIGWINCH,
    ];
    let set = signals::block(&numbers)?;
    print_line("waiting for signals")?;
    loop {
        let number = signals::wait(&set)?;
        print_line(format_args!("signal {number}"))?;
        if number == libc::SIGQUIT {
            return Ok(0);
        }
    }
}

fn log(args: &[String]) -> Outcome {
    let lines = number::<u64>(args, 0, "a number of lines")?.ok_or("how many lines?")?;
    let pause = Duration::from_millis(number(args, 1, "a number of milliseconds")?.unwrap_or(0));
    for line in 1..=lines {
        print_line(format_args!("out {line}"))?;
        writeln!(io::stderr(), "err {line}")?;
        thread::sleep(pause);
    }
    Ok(0)
}

fn say_all(args: &[String]) -> Outcome {
    print_line(args.join(" "))?;
    Ok(0)
}
