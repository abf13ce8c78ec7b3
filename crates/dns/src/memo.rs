//! What the last questions of a socket came to, as bytes: the same question again costs a lookup and
//! a copy. Nothing is remembered across a change of the cluster or of the settings, so an answer is
//! never older than the last event.

use std::collections::HashMap;

use crate::wire::{Plain, readdress};

/// The most questions that are remembered; then all are forgotten.
const CAPACITY: usize = 8192;
/// A record that begins with a pointer to the question's name.
const TO_QUESTION: [u8; 2] = [0xc0, 12];

/// What a question came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// This reply.
    Reply(Template),
    /// A question for the resolvers of this block.
    Forward(usize),
}

/// A reply to one question, whoever asks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    bytes: Box<[u8]>,
    /// Where the records begin that take turns, how long each is and how many there are.
    turns: Option<(usize, usize, usize)>,
}

impl Template {
    /// Makes one of the reply to a plain request. `None` when it is not good for the next.
    pub fn new(reply: &[u8], question: &Plain<'_>) -> Option<Self> {
        let header = reply.first_chunk::<12>()?;
        let truncated = header[2] & 2 != 0;
        if truncated || reply.get(12..12 + question.name.len())? != question.name {
            return None;
        }
        let records = usize::from(u16::from_be_bytes([header[6], header[7]]));
        let turns = match records {
            0 | 1 => None,
            // Some of them are in an order that means something, or point at each other.
            _ => Some(alike(reply, question.end(), records)?),
        };
        let mut bytes: Box<[u8]> = reply.into();
        if let Some((start, length, count)) = turns {
            // Back to the order of the first turn.
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
        // Type, class, and everything but the time to live and the data.
        record[..2] == TO_QUESTION && record[2..6] == first[2..6] && record[10..12] == first[10..12]
    };
    // Only addresses have no names in them.
    let addresses = matches!(first[2..4], [0, 1] | [0, 28]);
    (addresses && records.chunks(length).all(alike)).then_some((start, length, count))
}

/// The memory of one socket.
#[derive(Default)]
pub struct Memo {
    /// What the outcomes were decided by.
    generation: u64,
    outcomes: HashMap<Box<[u8]>, Outcome>,
    key: Vec<u8>,
}

/// What is known about a question.
pub enum Known {
    /// The reply was written.
    Written,
    /// A question for the resolvers of this block.
    Forward(usize),
}

impl Memo {
    /// Forgets everything when the world is another one.
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
    ) -> Option<Known> {
        self.set_key(question, limit);
        match self.outcomes.get(self.key.as_slice())? {
            Outcome::Forward(block) => Some(Known::Forward(*block)),
            Outcome::Reply(template) => {
                template.write(request, question, reply)?;
                Some(Known::Written)
            }
        }
    }

    /// Remembers what a question came to.
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
