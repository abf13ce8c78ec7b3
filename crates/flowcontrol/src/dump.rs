//! `/debug/api_priority_and_fairness/…`: levels and queues as text tables.

use super::Fairness;

/// The table at a path below `/debug/api_priority_and_fairness/`, if there is one.
pub(super) fn table(fairness: &Fairness, name: &str) -> Option<String> {
    match name {
        "dump_priority_levels" => Some(levels(fairness)),
        "dump_queues" => Some(queues(fairness)),
        _ => None,
    }
}

fn levels(fairness: &Fairness) -> String {
    let header = [
        "PriorityLevelName",
        "ActiveQueues",
        "IsIdle",
        "IsQuiescing",
        "WaitingRequests",
        "ExecutingRequests",
        "DispatchedRequests",
        "RejectedRequests",
        "TimedoutRequests",
        "CancelledRequests",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let table = fairness.table.load();
    let levels = fairness.levels.lock();
    for (level, is_leaving) in levels.all() {
        let dump = level.dump();
        rows.push(vec![
            level.name.clone(),
            dump.counts.active_queues.to_string(),
            level.is_idle().to_string(),
            is_leaving.to_string(),
            dump.counts.waiting.to_string(),
            dump.counts.executing.to_string(),
            table.dispatched(level).to_string(),
            dump.rejected.to_string(),
            // As upstream counts them: a wait that timed out is cancelled.
            "0".to_owned(),
            dump.timed_out.to_string(),
        ]);
    }
    aligned(&rows)
}

fn queues(fairness: &Fairness) -> String {
    let header = [
        "PriorityLevelName",
        "Index",
        "PendingRequests",
        "ExecutingRequests",
        "SeatsInUse",
        "NextDispatchR",
        "InitialSeatsSum",
        "MaxSeatsSum",
        "TotalWorkSum",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let work = |work: f64| format!("{work:.8}ss");
    let levels = fairness.levels.lock();
    for (level, _) in levels.all() {
        for (index, queue) in level.dump_queues().iter().enumerate() {
            rows.push(vec![
                level.name.clone(),
                index.to_string(),
                queue.waiting.to_string(),
                queue.executing.to_string(),
                queue.seats_in_use.to_string(),
                work(queue.next_start),
                queue.seats_waiting.to_string(),
                queue.seats_waiting.to_string(),
                work(queue.work_waiting),
            ]);
        }
    }
    aligned(&rows)
}

/// Columns of equal width, at least eight, with commas after all but the last.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let lengths = rows.iter().map(|row| row[column].len() + 2);
        lengths.max().unwrap_or_default().max(8)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            if column + 1 == columns {
                text += cell;
            } else {
                text += &format!("{:width$}", format!("{cell},"), width = widths[column]);
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["Name", "Index", "Last"], ["workload-low", "7", "x"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let expected = "Name,         Index,  Last\nworkload-low, 7,      x\n";
        assert_eq!(aligned(&rows), expected);
    }
}
