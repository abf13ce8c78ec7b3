//! A minimal `tracing` subscriber: writes errors as lines to a file.

use std::{
    fmt::{self, Write as _},
    fs::File,
    io::Write,
    sync::Mutex,
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

pub(super) struct Complaints {
    /// Guards the file against interleaved lines.
    file: Mutex<File>,
}

impl Complaints {
    pub(super) fn new(file: File) -> Self {
        Self {
            file: Mutex::new(file),
        }
    }
}

impl Subscriber for Complaints {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        line.0.push('\n');
        if let Ok(mut file) = self.file.lock() {
            let _ = file.write_all(line.0.as_bytes());
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?} "),
            name => write!(self.0, "({name}: {value:?}) "),
        };
    }
}
