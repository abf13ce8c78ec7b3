//! Memoizes replies of a socket as bytes: repeated questions cost a lookup and a copy. It is
//! cleared when the cluster or the settings change, so that an answer is never older than the last
//! event.

use std::collections::HashMap;

use crate::wire::{Plain, readdress};

/// The maximum number of questions; then all are dropped.
const CAPACITY: usize = 8192;
/// A compression pointer to the question's name.
const TO_QUESTION: [u8; 2] = [0xc0, 12];

/// The result of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// This reply.
    Reply(Template),
    /// To be forwarded by this block.
    Forward(usize),
}

/// A reply to one question, for any client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    bytes: Box<[u8]>,
    /// Rotated records: their offset, length and number.
    turns: Option<(usize, usize, usize)>,
}

impl Template {
    /// From the reply to a plain request. `None` if it cannot be reused.
    pub fn new(reply: &[u8], question: &Plain<'_>) -> Option<Self> {
        let header = reply.first_chunk::<12>()?;
        let truncated = header[2] & 2 != 0;
        if truncated || reply.get(12..12 + question.name.len())? != question.name {
            return None;
        }
        let records = usize::from(u16::from_be_bytes([header[6], header[7]]));
        let turns = match records {
            0 | 1 => None,
            // Otherwise their order may matter, or they may contain compression pointers.
            _ => Some(alike(reply, question.end(), records)?),
        };
        let mut bytes: Box<[u8]> = reply.into();
        if let Some((start, length, count)) = turns {
            // Undo the rotation.
            let turn = usize::from(u16::from_be_bytes([header[0], header[1]])) % count;
            bytes[start..start + length * count].rotate_right(turn * length);
        }
        Some(Self { bytes, turns })
    }

    /// Writes the reply to a request.
    fn write(&self, request: &[u8], question: &Plain<'_>, reply: &mut Vec<u8>) -> Option<()> {
        reply.extend_from_slice(&self.bytes);
        readdress(reply, request, question)?;
        if let Some((start, length, count)) = self.turns {
            let turn = usize::from(u16::from_be_bytes(*request.first_chunk()?)) % count;
            let records = reply.get_mut(start..start + length * count)?;
            records.rotate_left(turn * length);
        }
        Some(())
    }
}

/// Whether all answers have the question's name and the same length.
fn alike(reply: &[u8], start: usize, count: usize) -> Option<(usize, usize, usize)> {
    let first = reply.get(start..)?.first_chunk::<12>()?;
    let length = 12 + usize::from(u16::from_be_bytes([first[10], first[11]]));
    let records = reply.get(start..start + length * count)?;
    let alike = |record: &[u8]| {
        // Compares everything but the TTL and the data.
        record[..2] == TO_QUESTION && record[2..6] == first[2..6] && record[10..12] == first[10..12]
    };
    // Only address records contain no names.
    let addresses = matches!(first[2..4], [0, 1] | [0, 28]);
    (addresses && records.chunks(length).all(alike)).then_some((start, length, count))
}

/// The memo of one socket.
#[derive(Default)]
pub struct Memo {
    /// The generation of the replies.
    generation: u64,
    outcomes: HashMap<Box<[u8]>, Outcome>,
    key: Vec<u8>,
}

/// The result of a lookup.
pub enum MemoEntry {
    /// The reply was written.
    Written,
    /// To be forwarded by this block.
    Forward(usize),
}

impl Memo {
    /// Clears the memo if the generation changed.
    pub fn enter(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.outcomes.clear();
        }
    }

    /// Looks a question up, and writes the reply if there is one.
    pub fn find(
        &mut self,
        request: &[u8],
        question: &Plain<'_>,
        limit: usize,
        reply: &mut Vec<u8>,
    ) -> Option<MemoEntry> {
        self.set_key(question, limit);
        match self.outcomes.get(self.key.as_slice())? {
            Outcome::Forward(block) => Some(MemoEntry::Forward(*block)),
            Outcome::Reply(template) => {
                template.write(request, question, reply)?;
                Some(MemoEntry::Written)
            }
        }
    }

    /// Stores the result of a question.
    pub fn keep(&mut self, question: &Plain<'_>, limit: usize, outcome: Outcome) {
        if self.outcomes.len() >= CAPACITY {
            self.outcomes.clear();
        }
        self.set_key(question, limit);
        self.outcomes.insert(self.key.as_slice().into(), outcome);
    }

    fn set_key(&mut self, question: &Plain<'_>, limit: usize) {
        self.key.clear();
        question.write_key(&mut self.key);
        self.key.push(u8::from(question.payload.is_some()));
        self.key.extend_from_slice(&limit.to_be_bytes());
    }
}
