//! Uses up cpu and memory, to test limits.

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use crate::{Command, Outcome, number, print_line, signals};

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "burn-cpu",
        arguments: "[SECONDS] [THREADS]",
        help: "use CPU time, forever by default",
        run: cpu,
    },
    Command {
        name: "burn-memory",
        arguments: "MEBIBYTES [SECONDS]",
        help: "allocate memory and hold it, forever by default",
        run: memory,
    },
];

fn cpu(args: &[String]) -> Outcome {
    let until = number(args, 0, "a number of seconds")?
        .map(|seconds: u64| Instant::now() + Duration::from_secs(seconds));
    let threads = number(args, 1, "a number of threads")?.unwrap_or(1usize);
    signals::end_when_asked()?;
    let work = move || {
        let mut value = 1u64;
        while until.is_none_or(|until| Instant::now() < until) {
            for _ in 0..100_000 {
                value = black_box(
                    value
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1),
                );
            }
        }
    };
    let workers: Vec<_> = (0..threads).map(|_| thread::spawn(work)).collect();
    for worker in workers {
        let _ = worker.join();
    }
    Ok(0)
}

fn memory(args: &[String]) -> Outcome {
    let size = number::<usize>(args, 0, "a number of mebibytes")?.ok_or("how much?")?;
    let seconds = number(args, 1, "a number of seconds")?;
    signals::end_when_asked()?;
    let mut kept = Vec::new();
    for _ in 0..size {
        // Not zeros, which would not be backed by memory.
        kept.push(black_box(vec![0x5a_u8; 1 << 20]));
    }
    print_line(format_args!("holding {size} MiB"))?;
    match seconds {
        Some(seconds) => thread::sleep(Duration::from_secs(seconds)),
        None => loop {
            thread::park();
        },
    }
    drop(black_box(kept));
    Ok(0)
}
