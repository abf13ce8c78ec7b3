//! Memoizes replies of a socket as bytes: repeated questions cost a lookup and a copy. It is
//! cleared when the cluster or the settings change, so that an answer is never older than the last
//! event.

use std::collections::HashMap;

use crate::wire::{Plain, readdress};

/// The maximum number of questions, and of bytes of their replies; then all are dropped.
const CAPACITY: usize = 8192;
const CAPACITY_BYTES: usize = 8 << 20;
/// How many replies are kept to a question whose records cannot be rotated in place.
const VARIANTS: u16 = 8;
/// A compression pointer to the question's name.
const TO_QUESTION: [u8; 2] = [0xc0, 12];

/// The result of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// This reply.
    Reply(Template),
    /// One of several replies, by the id of the request: it was truncated, or its records have different lengths, and
    /// clients should not all use the same first record.
    Varying,
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
    /// From the reply to a plain request, without rotation. `None` if it is about another question.
    pub fn fixed(reply: &[u8], question: &Plain<'_>) -> Option<Self> {
        let is_same = reply.get(12..12 + question.name.len())? == question.name;
        is_same.then(|| Self {
            bytes: reply.into(),
            turns: None,
        })
    }

    /// From the reply to a plain request. `None` if its records cannot be rotated in place.
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

impl Outcome {
    fn length(&self) -> usize {
        match self {
            Self::Reply(template) => template.bytes.len(),
            Self::Varying | Self::Forward(_) => 0,
        }
    }
}

/// Which of the replies to a question a request gets.
fn variant(request: &[u8]) -> Option<u8> {
    let id = u16::from_be_bytes(*request.first_chunk()?);
    u8::try_from(id % VARIANTS).ok()
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
    /// The bytes of all keys and replies.
    bytes: usize,
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
            self.clear();
        }
    }

    /// The generation of its replies.
    pub fn generation(&self) -> u64 {
        self.generation
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
        let mut outcome = self.outcomes.get(self.key.as_slice())?;
        if *outcome == Outcome::Varying {
            self.key.push(variant(request)?);
            outcome = self.outcomes.get(self.key.as_slice())?;
        }
        match outcome {
            Outcome::Varying => None,
            Outcome::Forward(block) => Some(MemoEntry::Forward(*block)),
            Outcome::Reply(template) => {
                template.write(request, question, reply)?;
                Some(MemoEntry::Written)
            }
        }
    }

    /// Stores the reply to a question.
    pub fn keep_reply(&mut self, request: &[u8], question: &Plain<'_>, limit: usize, reply: &[u8]) {
        if let Some(template) = Template::new(reply, question) {
            self.keep(question, limit, Outcome::Reply(template));
        } else if let Some(template) = Template::fixed(reply, question)
            && let Some(variant) = variant(request)
        {
            self.keep(question, limit, Outcome::Varying);
            self.key.push(variant);
            self.insert(Outcome::Reply(template));
        }
    }

    /// Stores the result of a question.
    pub fn keep(&mut self, question: &Plain<'_>, limit: usize, outcome: Outcome) {
        self.set_key(question, limit);
        self.insert(outcome);
    }

    fn insert(&mut self, outcome: Outcome) {
        let length = self.key.len() + outcome.length();
        if self.outcomes.len() >= CAPACITY || self.bytes + length > CAPACITY_BYTES {
            self.clear();
        }
        self.bytes += length;
        let before = self.outcomes.insert(self.key.as_slice().into(), outcome);
        if let Some(before) = before {
            self.bytes -= self.key.len() + before.length();
        }
    }

    fn clear(&mut self) {
        self.outcomes.clear();
        self.bytes = 0;
    }

    fn set_key(&mut self, question: &Plain<'_>, limit: usize) {
        self.key.clear();
        question.write_key(&mut self.key);
        self.key.push(u8::from(question.payload.is_some()));
        self.key.extend_from_slice(&limit.to_be_bytes());
    }
}
