//! cgroups that systemd manages: pods and QoS classes are slices, containers and shims are scopes.
//! systemd makes and removes them on request over D-Bus, and knows their limits, so that it does not
//! reset them. Needs cgroup v2.

use std::{io, path::Path};

use dbus::{
    Bus, Call, Error, Peer,
    message::{Argument, Message, Property, Value, Variant},
};

use crate::Hierarchies;

/// Exists where systemd is the init process.
const BOOTED: &str = "/run/systemd/system";
/// Where systemd's manager can be reached, in the order in which they are tried.
const SOCKETS: [(&str, Peer); 2] = [
    ("/run/dbus/system_bus_socket", Peer::Bus),
    ("/run/systemd/private", Peer::Service),
];
const MANAGER: Call<'static> = Call {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
    member: "",
};
const JOBS: &str = "type='signal',interface='org.freedesktop.systemd1.Manager',\
                    member='JobRemoved',path='/org/freedesktop/systemd1'";
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
/// systemd stores quotas in steps of this many microseconds a second.
const QUOTA_STEP: u64 = 10_000;
const SECOND: u64 = 1_000_000;
const INFINITY: u64 = u64::MAX;

/// Why systemd cannot manage cgroups on this machine.
pub fn unavailable() -> Option<&'static str> {
    if !Path::new(BOOTED).is_dir() {
        return Some("systemd is not the init process of this machine (no /run/systemd/system)");
    }
    let unified = Hierarchies::host().is_unified();
    (!unified).then_some("the machine has cgroups of version 1")
}

/// The path of the slice for these names, outermost first: `a`, `b-c` → `/a.slice/a-b_c.slice`.
/// A dash separates the slices in a name, so that dashes in names become underscores.
pub fn slice_path(names: &[&str]) -> String {
    let (mut path, mut prefix) = (String::new(), String::new());
    for name in names {
        let name = name.replace('-', "_");
        path = format!("{path}/{prefix}{name}.slice");
        prefix = format!("{prefix}{name}-");
    }
    path
}

/// A scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    name: String,
    slice: String,
}

impl Scope {
    /// The scope whose cgroup is at this path, if it has the name of one.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let name = unit_name(path).filter(|name| name.ends_with(".scope"))?;
        let slice = path.parent().and_then(unit_name).unwrap_or("-.slice");
        Some(Self {
            name: name.to_owned(),
            slice: slice.to_owned(),
        })
    }

    /// Starts the scope with a process in it.
    pub(crate) fn start(&self, pid: u32) -> io::Result<()> {
        Manager::connect()?.start_scope(&self.name, &self.slice, pid)
    }

    /// Sets limits.
    pub(crate) fn limit(&self, limits: &Limits) -> io::Result<()> {
        Manager::connect()?.limit(&self.name, limits)
    }
}

fn unit_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// Limits of a unit; what is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// The weight of cgroup v2.
    pub cpu_weight: Option<u64>,
    /// Quota and period in microseconds; no quota if it is not positive.
    pub cpu_quota: Option<(i64, u64)>,
    /// Bytes; unlimited if negative.
    pub memory: Option<i64>,
    /// Bytes of swap alone.
    pub swap: Option<u64>,
    /// Processes and threads; unlimited if not positive.
    pub pids: Option<i64>,
}

impl Limits {
    fn properties(&self) -> Vec<Property> {
        let mut all = Vec::new();
        let mut add = |name, number| all.push(property(name, Variant::U64(number)));
        if let Some(weight) = self.cpu_weight {
            add("CPUWeight", weight);
        }
        if let Some((quota, period)) = self.cpu_quota {
            let quota = u64::try_from(quota).ok().filter(|quota| *quota > 0);
            let each_second = quota.map_or(INFINITY, |quota| {
                let exact = quota.saturating_mul(SECOND) / period.max(1);
                exact.next_multiple_of(QUOTA_STEP)
            });
            add("CPUQuotaPerSecUSec", each_second);
            add("CPUQuotaPeriodUSec", period);
        }
        if let Some(memory) = self.memory {
            add("MemoryMax", u64::try_from(memory).unwrap_or(INFINITY));
        }
        if let Some(swap) = self.swap {
            add("MemorySwapMax", swap);
        }
        if let Some(pids) = self.pids {
            let limit = u64::try_from(pids).ok().filter(|pids| *pids > 0);
            add("TasksMax", limit.unwrap_or(INFINITY));
        }
        all
    }
}

fn property(name: &'static str, value: Variant) -> Property {
    Property { name, value }
}

/// Accounting is on in all units, as for cgroups that are made as directories.
fn common() -> Vec<Property> {
    let on = [
        "MemoryAccounting",
        "CPUAccounting",
        "IOAccounting",
        "TasksAccounting",
    ];
    let mut all: Vec<_> = on
        .into_iter()
        .map(|name| property(name, Variant::Bool(true)))
        .collect();
    all.push(property("DefaultDependencies", Variant::Bool(false)));
    all
}

/// A connection to systemd's manager.
pub struct Manager {
    bus: Bus,
}

impl Manager {
    /// Connects over the system bus, or to systemd itself while there is no bus.
    pub fn connect() -> io::Result<Self> {
        let mut outcome = Err(io::Error::other("systemd has no socket"));
        for (socket, peer) in SOCKETS {
            outcome = Self::at(Path::new(socket), peer);
            if outcome.is_ok() {
                break;
            }
        }
        outcome.map_err(|error| io::Error::other(format!("cannot reach systemd: {error}")))
    }

    /// Connects to this socket.
    pub fn at(socket: &Path, peer: Peer) -> io::Result<Self> {
        let connect = || {
            let mut bus = Bus::connect(socket, peer)?;
            bus.add_match(JOBS)?;
            // Without it, systemd sends no signals.
            let subscribe = Call {
                member: "Subscribe",
                ..MANAGER
            };
            bus.call(&subscribe, &[])?;
            Ok(Self { bus })
        };
        connect().map_err(into_io)
    }

    /// Makes a slice and those above it. One that exists stays as it is.
    pub fn ensure_slice(&mut self, path: &str) -> io::Result<()> {
        for slice in path.split('/').filter(|part| !part.is_empty()) {
            let mut all = vec![property(
                "Description",
                Variant::Text(format!("Kubernetes pods {slice}")),
            )];
            all.extend(common());
            match self.start(slice, &all) {
                Err(Error::Answer { name, .. }) if name == UNIT_EXISTS => {}
                outcome => outcome.map_err(|error| failed("start", slice, error))?,
            }
        }
        Ok(())
    }

    /// Makes a scope in a slice, with a process in it. The unit is gone when its last process is.
    pub fn start_scope(&mut self, scope: &str, slice: &str, pid: u32) -> io::Result<()> {
        let mut all = vec![
            property("Description", Variant::Text(format!("container {scope}"))),
            property("Slice", Variant::Text(slice.to_owned())),
            // The cgroups below are not systemd's.
            property("Delegate", Variant::Bool(true)),
            property("PIDs", Variant::U32s(vec![pid])),
            // A failed scope does not stay.
            property("CollectMode", Variant::Text("inactive-or-failed".into())),
        ];
        all.extend(common());
        self.start(scope, &all)
            .map_err(|error| failed("start", scope, error))
    }

    /// Sets limits of a unit until the next reboot.
    pub fn limit(&mut self, unit: &str, limits: &Limits) -> io::Result<()> {
        let all = limits.properties();
        if all.is_empty() {
            return Ok(());
        }
        let arguments = [
            Argument::Text(unit),
            Argument::Bool(true),
            Argument::Properties(&all),
        ];
        self.call("SetUnitProperties", &arguments)
            .map_err(|error| failed("set limits of", unit, error))?;
        Ok(())
    }

    /// Stops a unit and forgets it. One that is gone is no error.
    pub fn stop(&mut self, unit: &str) -> io::Result<()> {
        let arguments = [Argument::Text(unit), Argument::Text("replace")];
        let stopped = match self.call("StopUnit", &arguments) {
            Ok(answer) => self.wait(&answer),
            Err(error) => Err(error),
        };
        let _ = self.call("ResetFailedUnit", &[Argument::Text(unit)]);
        match stopped {
            Err(Error::Answer { name, .. }) if name == NO_SUCH_UNIT => Ok(()),
            outcome => outcome.map_err(|error| failed("stop", unit, error)),
        }
    }

    fn start(&mut self, unit: &str, properties: &[Property]) -> Result<(), Error> {
        let arguments = [
            Argument::Text(unit),
            Argument::Text("replace"),
            Argument::Properties(properties),
            Argument::NoUnits,
        ];
        let answer = self.call("StartTransientUnit", &arguments)?;
        self.wait(&answer)
    }

    fn call(&mut self, member: &str, arguments: &[Argument<'_>]) -> Result<Message, Error> {
        let call = Call { member, ..MANAGER };
        self.bus.call(&call, arguments)
    }

    /// Waits until the job of an answer is done.
    fn wait(&mut self, answer: &Message) -> Result<(), Error> {
        let Some(job @ Value::Text(_)) = answer.values.first() else {
            return Err(Error::Protocol("systemd answered without a job"));
        };
        loop {
            let signal = self.bus.signal()?;
            if signal.member != "JobRemoved" || signal.values.get(1) != Some(job) {
                continue;
            }
            return match signal.values.get(3) {
                Some(Value::Text(result)) if result == "done" => Ok(()),
                Some(Value::Text(result)) => Err(Error::Answer {
                    name: "the job ended".into(),
                    message: result.clone(),
                }),
                _ => Err(Error::Protocol("systemd did not say how the job ended")),
            };
        }
    }
}

fn failed(what: &str, unit: &str, error: Error) -> io::Error {
    io::Error::other(format!("systemd cannot {what} {unit}: {error}"))
}

fn into_io(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

#[cfg(test)]
#[path = "systemd_tests.rs"]
mod tests;
