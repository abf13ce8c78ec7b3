//! Tests with a fake systemd manager in a thread.

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    thread::JoinHandle,
};

use dbus::message::{Builder, Reader};

use super::*;

/// A manager that knows some units and records the calls: the method and the unit.
struct FakeManager {
    stream: UnixStream,
    received: Vec<u8>,
    calls: Vec<String>,
    units: Vec<String>,
}

impl FakeManager {
    /// Serves one connection; the calls are the thread's result.
    fn serve(socket: &Path, units: &[&str], result: &'static str) -> JoinHandle<Vec<String>> {
        let listener = UnixListener::bind(socket).unwrap();
        let units = units.iter().map(|&unit| unit.to_owned()).collect();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut manager = Self {
                stream,
                received: Vec::new(),
                calls: Vec::new(),
                units,
            };
            manager.authenticate();
            while let Some((serial, message)) = manager.message() {
                manager.answer(serial, &message, result);
            }
            manager.calls
        })
    }

    /// As systemd, expects that nothing follows until it has answered.
    fn authenticate(&mut self) {
        while !self.received.ends_with(b"\r\nBEGIN\r\n") {
            assert!(self.receive());
        }
        assert!(self.received.starts_with(b"\0AUTH EXTERNAL "));
        self.received.clear();
        self.stream.write_all(b"OK 00\r\n").unwrap();
    }

    fn receive(&mut self) -> bool {
        let mut buffer = [0; 1024];
        let count = self.stream.read(&mut buffer).unwrap_or(0);
        self.received.extend_from_slice(&buffer[..count]);
        count > 0
    }

    fn message(&mut self) -> Option<(u32, Message)> {
        loop {
            if self.received.len() >= 16 {
                let length = Reader::length(&self.received).unwrap();
                if self.received.len() >= length {
                    let bytes: Vec<u8> = self.received.drain(..length).collect();
                    let serial = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
                    return Some((serial, Message::read(&bytes).unwrap()));
                }
            }
            if !self.receive() {
                return None;
            }
        }
    }

    fn answer(&mut self, serial: u32, message: &Message, result: &str) {
        let unit = match message.values.first() {
            Some(Value::Text(unit)) => unit.clone(),
            _ => String::new(),
        };
        self.calls.push(format!("{} {unit}", message.member));
        if message.destination.is_some() {
            // As systemd on its own socket.
            return;
        }
        let error = |name: &str| Builder::error(serial, name, "no").finish(serial);
        let job = format!("/job/{serial}");
        let done = [
            Argument::U32(serial),
            Argument::Path(&job),
            Argument::Text(&unit),
            Argument::Text(result),
        ];
        let signal = Call {
            member: "JobRemoved",
            ..MANAGER
        };
        let other = [Argument::U32(0), Argument::Path("/job/other")];
        let known = self.units.contains(&unit);
        let bytes = match message.member.as_str() {
            "StartTransientUnit" if known => error(UNIT_EXISTS),
            "StopUnit" if !known => error(NO_SUCH_UNIT),
            "StartTransientUnit" | "StopUnit" => {
                let mut bytes = Builder::signal(&signal, &other).finish(1);
                // The job may end before the caller has the reply.
                bytes.extend(Builder::signal(&signal, &done).finish(2));
                bytes.extend(Builder::answer(serial, &[Argument::Path(&job)], 0).finish(serial));
                bytes
            }
            _ => Builder::answer(serial, &[], 0).finish(serial),
        };
        self.stream.write_all(&bytes).unwrap();
    }
}

/// What a client does with a manager that has these units, and its calls after the subscription.
fn calls(
    units: &[&str],
    result: &'static str,
    work: impl FnOnce(&mut Manager) -> io::Result<()>,
) -> (Result<(), String>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("private");
    let manager = FakeManager::serve(&socket, units, result);
    let outcome = {
        let mut client = Manager::at(&socket, Peer::Service).unwrap();
        work(&mut client).map_err(|error| error.to_string())
    };
    let mut calls = manager.join().unwrap();
    assert_eq!(calls.remove(0), "Subscribe ");
    (outcome, calls)
}

#[test]
fn slices_are_made_from_the_outermost_and_those_that_exist_stay() {
    let path = slice_path(&["kubepods", "burstable", "pod1-2"]);
    assert_eq!(
        path,
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"
    );
    let (made, calls) = calls(&["kubepods.slice"], "done", |manager| {
        manager.ensure_slice(&path)
    });
    assert_eq!(made, Ok(()));
    assert_eq!(
        calls,
        [
            "StartTransientUnit kubepods.slice",
            "StartTransientUnit kubepods-burstable.slice",
            "StartTransientUnit kubepods-burstable-pod1_2.slice"
        ]
    );
}

#[test]
fn a_job_that_failed_is_an_error_with_the_units_name() {
    let (made, _) = calls(&[], "failed", |manager| {
        manager.start_scope("c.scope", "p.slice", 7)
    });
    let expected = "systemd cannot start c.scope: the job ended: failed";
    assert_eq!(made, Err(expected.to_owned()));
}

#[test]
fn a_unit_is_stopped_and_forgotten_and_one_that_is_gone_is_no_error() {
    for units in [&["a.slice"][..], &[]] {
        let (stopped, calls) = calls(units, "done", |manager| manager.stop("a.slice"));
        assert_eq!(stopped, Ok(()));
        assert_eq!(calls, ["StopUnit a.slice", "ResetFailedUnit a.slice"]);
    }
}

#[test]
fn limits_become_the_properties_of_the_unit() {
    let limits = Limits {
        cpu_weight: Some(39),
        cpu_quota: Some((12_345, 100_000)),
        memory: Some(1 << 20),
        swap: None,
        pids: Some(7),
    };
    let number = |name, number| property(name, Variant::U64(number));
    assert_eq!(
        limits.properties(),
        [
            number("CPUWeight", 39),
            number("CPUQuotaPerSecUSec", 130_000),
            number("CPUQuotaPeriodUSec", 100_000),
            number("MemoryMax", 1 << 20),
            number("TasksMax", 7)
        ]
    );
    let lifted = Limits {
        cpu_quota: Some((-1, 100_000)),
        memory: Some(-1),
        pids: Some(-1),
        ..Limits::default()
    };
    let infinite = lifted.properties();
    for name in ["CPUQuotaPerSecUSec", "MemoryMax", "TasksMax"] {
        assert!(infinite.contains(&number(name, INFINITY)), "{name}");
    }
    let (set, calls) = calls(&[], "done", |manager| manager.limit("c.scope", &limits));
    assert_eq!(set, Ok(()));
    assert_eq!(calls, ["SetUnitProperties c.scope"]);
    assert!(Limits::default().properties().is_empty());
}

#[test]
fn a_scope_is_known_by_the_name_of_its_cgroup() {
    let scope = Scope::at(Path::new("kubepods.slice/kubepods-podx.slice/cri-1.scope")).unwrap();
    assert_eq!(scope.name, "cri-1.scope");
    assert_eq!(scope.slice, "kubepods-podx.slice");
    for other in ["", "mainstay-1/pods/x", "kubepods.slice"] {
        assert_eq!(Scope::at(Path::new(other)), None, "{other}");
    }
}
