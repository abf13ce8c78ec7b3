//! A program in a pseudo-terminal: keys go in, what a screen would show comes out. `script` of
//! util-linux makes the terminal.

use std::{
    io::{Read, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use crate::{Machine, Ran, until};

/// The timeout of everything that a terminal shows.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running program and its terminal; dropping it ends both.
pub struct Terminal {
    script: Child,
    keys: Option<ChildStdin>,
    /// All output so far.
    shown: Arc<Mutex<Vec<u8>>>,
    /// The part of the output that [`Terminal::wait_for`] has passed.
    passed: usize,
    reader: Option<JoinHandle<()>>,
    device: PathBuf,
}

impl Terminal {
    /// Starts a command line of the shell on a machine, in a terminal of 80 columns and 24 rows.
    pub fn start(machine: &Machine, line: &str, environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir_in(machine.dir())
            .expect("a directory")
            .keep();
        let device_file = directory.join("tty");
        let line = format!(
            "stty cols 80 rows 24 echo; tty > {}; {line}",
            device_file.display()
        );
        let mut script = machine
            .command("script")
            .args(["--quiet", "--return", "--flush", "--command", &line])
            .arg("/dev/null")
            .env_remove("NO_COLOR")
            .env("TERM", "xterm")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script is installed");
        let mut output = script.stdout.take().expect("stdout is piped");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let screen = shown.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                screen
                    .lock()
                    .expect("a screen")
                    .extend_from_slice(&buffer[..count]);
            }
        });
        let device = until("the terminal", PATIENCE, || {
            let name = std::fs::read_to_string(&device_file).unwrap_or_default();
            match name.strip_suffix('\n') {
                Some(name) => Ok(PathBuf::from(name)),
                None => Err(name),
            }
        });
        Self {
            keys: script.stdin.take(),
            script,
            shown,
            passed: 0,
            reader: Some(reader),
            device,
        }
    }

    /// Everything shown so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("a screen")).into_owned()
    }

    /// Presses keys; `\r` is Enter, `\x03` is Ctrl-C.
    pub fn press(&mut self, keys: &str) {
        let input = self.keys.as_mut().expect("it runs");
        input.write_all(keys.as_bytes()).expect("script reads");
        input.flush().expect("script reads");
    }

    /// Waits until this text is shown after the text of the last call; returns what came before it.
    pub fn wait_for(&mut self, text: &str) -> String {
        let shown = self.shown.clone();
        let passed = self.passed;
        let (before, end) = until(&format!("{text:?}"), PATIENCE, || {
            let shown = shown.lock().expect("a screen");
            let new = &shown[passed..];
            let found = new
                .windows(text.len())
                .position(|part| part == text.as_bytes());
            let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            match found {
                Some(at) => Ok((lossy(&new[..at]), passed + at + text.len())),
                None => Err(lossy(&shown)),
            }
        });
        self.passed = end;
        before
    }

    /// Changes the size of the window.
    pub fn resize(&self, machine: &Machine, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.stty(machine, &["cols", &columns, "rows", &rows]);
    }

    /// Whether the terminal shows what is typed, as it does for a shell.
    pub fn does_echo(&self, machine: &Machine) -> bool {
        let settings = self.stty(machine, &["-a"]);
        settings.split([' ', ';', '\n']).any(|word| word == "echo")
    }

    fn stty(&self, machine: &Machine, args: &[&str]) -> String {
        let device = self.device.display().to_string();
        machine
            .run("stty", &[&["-F", &device], args].concat())
            .success()
    }

    /// Waits for the end of the program; returns its exit code and everything shown.
    pub fn end(mut self) -> Ran {
        let status = until("the program to end", PATIENCE, || {
            match self.script.try_wait() {
                Ok(Some(status)) => Ok(status),
                _ => Err(self.shown()),
            }
        });
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the output is read");
        }
        Ran {
            ok: status.success(),
            code: status.code(),
            stdout: self.shown(),
            stderr: String::new(),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}
