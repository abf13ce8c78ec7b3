//! Queries the cluster's DNS by the pod's `/etc/resolv.conf`.

use stdx::resolve::{Kind, Settings, resolve};

use crate::{Command, Outcome, print_line};

pub(crate) const COMMANDS: &[Command] = &[Command {
    name: "lookup",
    arguments: "NAME [A|AAAA|SRV|PTR]",
    help: "query the name servers of /etc/resolv.conf",
    run,
}];

fn run(args: &[String]) -> Outcome {
    let name = args.first().ok_or("which name?")?;
    let kind = match args.get(1).map(|kind| kind.to_ascii_uppercase()) {
        None => None,
        Some(kind) => Some(match kind.as_str() {
            "A" => Kind::A,
            "AAAA" => Kind::Aaaa,
            "SRV" => Kind::Srv,
            "PTR" => Kind::Ptr,
            other => return Err(format!("records of type {other:?} are not known here").into()),
        }),
    };
    let records = match kind {
        Some(kind) => Settings::load().lookup(name, kind)?,
        None => resolve(name)?.iter().map(ToString::to_string).collect(),
    };
    for record in &records {
        print_line(record)?;
    }
    Ok(u8::from(records.is_empty()))
}
