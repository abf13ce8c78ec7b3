//! The long-lived nftables session of the process.
//!
//! A batch is one line to `nft -i`: its statements are applied atomically. After each batch the
//! session gets a word that is no command; nft's error about it on stderr marks the end of the
//! batch's output. The kernel keeps the rules when a session dies, but whether the current batch
//! was applied is then unknown: on [`Error::NftSession`] the caller must write its whole table
//! again.

use std::{collections::HashMap, process::Stdio, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStderr, ChildStdin, Command},
    sync::Mutex,
    time::timeout,
};
use tracing::{debug, warn};

use crate::{Error, Result, drift, netfilter};

/// Bigger batches run in a process of their own, since nft keeps every line in its history.
const LARGE: usize = 256 * 1024;
/// For the same reason a session is replaced after this many bytes.
const SESSION_BYTES: usize = 4 * 1024 * 1024;
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// A large batch gets another second for each of these.
const BYTES_PER_SECOND: usize = 100_000;
const PROBE_WITHIN: Duration = Duration::from_secs(2);
/// Large tables are listed slowly.
const LISTED_WITHIN: Duration = Duration::from_secs(120);

/// Statements that are applied atomically.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    statements: Vec<String>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one statement, without a newline or a closing semicolon.
    pub fn push(&mut self, statement: impl Into<String>) {
        let statement = statement.into();
        debug_assert!(!statement.contains('\n'), "one statement is one line");
        self.statements.push(statement);
    }

    /// Removes a table whether it exists or not, so that the batch can write it again.
    pub fn replace_table(&mut self, family: &str, table: &str) {
        self.push(format!("add table {family} {table}"));
        self.push(format!("delete table {family} {table}"));
        self.push(format!("add table {family} {table}"));
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }

    /// The statements, in order.
    pub fn statements(&self) -> &[String] {
        &self.statements
    }
}

/// A handle to the session; clones share it.
#[derive(Clone, Default)]
pub struct Nft {
    shared: Arc<Mutex<State>>,
}

/// Guarded by one lock: batches are applied one after the other.
#[derive(Default)]
struct State {
    session: Option<Session>,
    /// Set if `nft -i` did not respond as expected; then every batch runs in its own process.
    one_shot: bool,
    others: ForeignChanges,
}

/// Detects changes of the ruleset by other programs.
#[derive(Default)]
struct ForeignChanges {
    /// The last known ruleset generation.
    generation: Option<u32>,
    /// How often it was not the one that our own batches lead to.
    changes: u64,
    /// The value of `changes` when each table was last found correct.
    checked: HashMap<String, u64>,
}

impl ForeignChanges {
    /// Checks the generation, after `own` batches of ours.
    fn look(&mut self, own: u32) {
        let now = netfilter::generation().ok();
        let is_ours = match (self.generation, now) {
            // A batch without effect does not increment the generation.
            (Some(before), Some(now)) => now.wrapping_sub(before) <= own,
            _ => false,
        };
        self.changes += u64::from(!is_ours);
        self.generation = now;
    }
}

struct Session {
    child: Child,
    stdin: ChildStdin,
    stderr: BufReader<ChildStderr>,
    written: usize,
    batches: u64,
}

impl Nft {
    /// A handle; the process starts with the first batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// The pid of the session's process, if one runs.
    pub async fn process_id(&self) -> Option<u32> {
        self.shared
            .lock()
            .await
            .session
            .as_ref()
            .and_then(|session| session.child.id())
    }

    /// Applies a batch atomically.
    pub async fn apply(&self, batch: &Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut state = self.shared.lock().await;
        state.others.look(0);
        let applied = state.apply(batch).await;
        state.others.look(1);
        applied
    }

    /// The batch that repairs the kernel's table if it differs from `full`. The table is read only
    /// if another program has changed the ruleset since it was last found correct.
    pub async fn find_drift(
        &self,
        table: &str,
        full: impl FnOnce() -> Batch,
    ) -> Result<Option<Batch>> {
        let changes = {
            let mut state = self.shared.lock().await;
            state.others.look(0);
            let changes = state.others.changes;
            if state.others.checked.get(table) == Some(&changes) {
                return Ok(None);
            }
            changes
        };
        let full = full();
        if drift::has_drifted(table, &full).await? {
            return Ok(Some(full));
        }
        let mut state = self.shared.lock().await;
        state.others.checked.insert(table.to_owned(), changes);
        Ok(None)
    }
}

impl State {
    async fn apply(&mut self, batch: &Batch) -> Result<()> {
        let line = batch.statements.join("; ");
        // Taken out while in use: if this future is dropped halfway, the session is dropped with it
        // and the next batch does not read its output.
        let session = match self.session.take() {
            Some(session) if session.written < SESSION_BYTES => Some(session),
            _ if self.one_shot || line.len() > LARGE => None,
            _ => open(&mut self.one_shot).await?,
        };
        let Some(mut session) = session else {
            return run_once(batch).await;
        };
        if line.len() > LARGE {
            self.session = Some(session);
            return run_once(batch).await;
        }
        let answer = session.exchange(&line, ANSWER_WITHIN).await?;
        self.session = Some(session);
        check_answer(&answer, &line)
    }
}

/// Starts a session and checks that it marks its output; otherwise batches run one by one.
async fn open(one_shot: &mut bool) -> Result<Option<Session>> {
    let mut session = Session::start()?;
    match session.exchange("", PROBE_WITHIN).await {
        Ok(_) => Ok(Some(session)),
        Err(error) => {
            warn!(%error, "unexpected output of nft -i, starting an nft process for every change");
            *one_shot = true;
            Ok(None)
        }
    }
}

impl Session {
    fn start() -> Result<Self> {
        let mut child = Command::new("nft")
            .arg("-i")
            // nft would keep its history in the home directory.
            .env("HOME", "/nonexistent")
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C on our terminal must not end it while services still drain.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Error::NftSession(format!("cannot start nft: {error}")))?;
        let (Some(stdin), Some(stderr)) = (child.stdin.take(), child.stderr.take()) else {
            return Err(Error::NftSession("nft has no pipes".into()));
        };
        debug!(pid = child.id(), "nft session started");
        Ok(Self {
            child,
            stdin,
            stderr: BufReader::new(stderr),
            written: 0,
            batches: 0,
        })
    }

    /// Sends one line and returns nft's errors.
    async fn exchange(&mut self, line: &str, within: Duration) -> Result<Vec<String>> {
        timeout(within, self.exchange_unbounded(line))
            .await
            .map_err(|_| Error::NftSession("nft did not answer in time".into()))?
    }

    async fn exchange_unbounded(&mut self, line: &str) -> Result<Vec<String>> {
        self.batches += 1;
        let mark = format!("end_of_batch_{}", self.batches);
        let text = format!("{line}\n{mark}\n");
        self.written += text.len();
        let died = |error: std::io::Error| Error::NftSession(error.to_string());
        self.stdin.write_all(text.as_bytes()).await.map_err(died)?;
        self.stdin.flush().await.map_err(died)?;
        let mut answer = Vec::new();
        loop {
            let mut read = String::new();
            if self.stderr.read_line(&mut read).await.map_err(died)? == 0 {
                return Err(Error::NftSession(format!(
                    "nft ended: {}",
                    answer.join(" ")
                )));
            }
            let read = read.trim_end_matches('\n');
            if read == mark {
                // The previous line is nft's error about the mark, the next one points at it.
                answer.pop();
                self.stderr
                    .read_line(&mut String::new())
                    .await
                    .map_err(died)?;
                return Ok(answer);
            }
            answer.push(read.to_owned());
        }
    }
}

/// Runs one process for one batch.
async fn run_once(batch: &Batch) -> Result<()> {
    let failed = |error: std::io::Error| Error::NftSession(format!("cannot run nft: {error}"));
    let text = batch.statements.join("\n") + "\n";
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // An error can close the pipe early; the exit status is more precise.
        let _ = stdin.write_all(text.as_bytes()).await;
    }
    let size = u64::try_from(text.len() / BYTES_PER_SECOND).unwrap_or(u64::MAX);
    let within = ANSWER_WITHIN + Duration::from_secs(size);
    let output = timeout(within, child.wait_with_output())
        .await
        .map_err(|_| Error::NftSession("nft did not end in time".into()))?
        .map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr)
        .chars()
        .take(1000)
        .collect();
    Err(Error::NftRefused { message })
}

/// Family and name of every table.
pub async fn tables() -> Result<Vec<String>> {
    let listing = list(&["list", "tables"]).await?.unwrap_or_default();
    let names = listing
        .lines()
        .filter_map(|line| line.strip_prefix("table "));
    Ok(names.map(ToOwned::to_owned).collect())
}

/// The output of an nft listing; `None` if the object does not exist.
pub(crate) async fn list(arguments: &[&str]) -> Result<Option<String>> {
    let listed = Command::new("nft")
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(LISTED_WITHIN, listed)
        .await
        .map_err(|_| Error::NftSession("nft did not end in time".into()))?
        .map_err(|error| Error::NftSession(format!("cannot run nft: {error}")))?;
    let message = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
        false if message.contains("No such file or directory") => Ok(None),
        false => Err(Error::NftRefused {
            message: message.into_owned(),
        }),
    }
}

/// Whether the output means that the batch was applied.
fn check_answer(answer: &[String], line: &str) -> Result<()> {
    let errors: Vec<&str> = answer
        .iter()
        .map(String::as_str)
        .filter(|text| text.contains("Error:"))
        .collect();
    if errors.is_empty() {
        if !answer.is_empty() {
            warn!(answer = answer.join(" | "), "unexpected output of nft");
        }
        return Ok(());
    }
    let place = answer
        .iter()
        .find(|text| text.contains('^') && text.trim_matches([' ', '^', '~', '\t']).is_empty())
        .and_then(|text| text.find('^'))
        .map(|at| format!(" in `{}`", statement_at(line, at)))
        .unwrap_or_default();
    Err(Error::NftRefused {
        message: format!("{}{place}", errors.join("; ")),
    })
}

/// The statement at a column of a batch's line.
fn statement_at(line: &str, column: usize) -> &str {
    let mut start = 0;
    for statement in line.split("; ") {
        let end = start + statement.len();
        if column <= end {
            return statement;
        }
        start = end + 2;
    }
    ""
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use network_lab as lab;

    /// Whether the table is correct, and whether it was read.
    async fn look(nft: &Nft, table: &str, batch: &Batch) -> (bool, bool) {
        let was_read = Cell::new(false);
        let full = || {
            was_read.set(true);
            batch.clone()
        };
        let drift = nft.find_drift(table, full).await.unwrap();
        (drift.is_none(), was_read.get())
    }

    #[test]
    fn a_table_is_read_again_only_after_another_program_changed_rules() {
        lab::node(|_| async {
            let nft = Nft::new();
            let mut batch = Batch::new();
            batch.replace_table("inet", "t");
            batch.push("add chain inet t c");
            batch.push("add rule inet t c drop");
            nft.apply(&batch).await.unwrap();
            assert_eq!(look(&nft, "t", &batch).await, (true, true));
            assert_eq!(look(&nft, "t", &batch).await, (true, false));
            // Our own batches, including those without effect and rejected ones.
            let own = [
                "add table inet u",
                "add table inet u",
                "add rule inet u x drop",
            ];
            for statement in own {
                let mut own = Batch::new();
                own.push(statement);
                assert_eq!(nft.apply(&own).await.is_ok(), statement.contains("table"));
                assert_eq!(look(&nft, "t", &batch).await, (true, false), "{statement}");
            }
            lab::command("nft add table inet another");
            assert_eq!(look(&nft, "t", &batch).await, (true, true));
            assert_eq!(look(&nft, "t", &batch).await, (true, false));
            lab::command("nft flush chain inet t c");
            assert_eq!(look(&nft, "t", &batch).await, (false, true));
            // Until it is correct again.
            assert_eq!(look(&nft, "t", &batch).await, (false, true));
            nft.apply(&batch).await.unwrap();
            assert_eq!(look(&nft, "t", &batch).await, (true, true));
            assert_eq!(look(&nft, "t", &batch).await, (true, false));
        });
    }

    #[test]
    fn an_answer_without_an_error_means_applied() {
        assert!(check_answer(&[], "add table inet x").is_ok());
        assert!(check_answer(&["Warning: odd".into()], "add table inet x").is_ok());
    }

    #[test]
    fn an_error_names_the_statement_it_points_at() {
        let line = "add table inet x; add chain inet y c";
        let answer = vec![
            "Error: No such file or directory".to_owned(),
            line.to_owned(),
            format!("{}^", " ".repeat(33)),
        ];
        let error = check_answer(&answer, line).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
        assert!(error.contains("`add chain inet y c`"), "{error}");
    }
}
