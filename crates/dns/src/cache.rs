//! Answers of resolvers, kept for as long as they allow. Pure but for its clock.
//!
//! An answer that nobody can renew goes on for a while with a short life, and one that is asked often
//! is renewed before it ends. Replies stay as bytes: a hit changes the id, the question's letters and
//! the times to live in place.

use std::{collections::HashMap, hash::Hash, sync::Arc, time::Duration};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{RData, RecordType},
};
use jiff::Timestamp;
use parking_lot::Mutex;
use stdx::Clock;

/// The most answers that are kept.
const CAPACITY: usize = 10_000;
/// The longest that an answer is kept, whatever it says.
const LONGEST: u32 = 3600;
/// The longest that the absence of a name is kept.
const LONGEST_ABSENCE: u32 = 300;
/// How long an answer may go on when nobody can renew it, and what its life is then said to be.
const STALE: Duration = Duration::from_secs(3600);
const STALE_TTL: u32 = 30;
/// An answer that was asked for this often is renewed in the last tenth of its life.
const OFTEN: u32 = 3;

/// What is known about a question.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// An answer.
    Fresh(Vec<u8>),
    /// An answer that should be renewed after it was sent.
    Ending(Vec<u8>),
    /// An answer to use when nobody gives a better one.
    Stale(Vec<u8>),
    /// Nothing.
    Nothing,
}

struct Entry {
    reply: Arc<Vec<u8>>,
    /// Where the times to live stand in it.
    ttls: Vec<usize>,
    stored: Timestamp,
    life: u32,
    hits: u32,
}

/// See the module.
pub struct Cache<K> {
    clock: Arc<dyn Clock>,
    /// Guards all answers; held for moments only.
    entries: Mutex<HashMap<K, Entry>>,
    capacity: usize,
}

impl<K: Hash + Eq + Clone> Cache<K> {
    /// An empty one.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            entries: Mutex::default(),
            capacity: CAPACITY,
        }
    }

    /// How many answers there are.
    pub fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// Whether there are none.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks an answer up; its id is still that of the resolver's reply.
    pub fn find(&self, key: &K) -> Found {
        let now = self.clock.now();
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(key) else {
            return Found::Nothing;
        };
        let age = now.duration_since(entry.stored).as_secs().max(0);
        let age = u32::try_from(age).unwrap_or(u32::MAX);
        let Some(left) = entry.life.checked_sub(age).filter(|left| *left > 0) else {
            let over = Duration::from_secs(u64::from(age - entry.life));
            if over > STALE {
                entries.remove(key);
                return Found::Nothing;
            }
            return Found::Stale(entry.reply_with(|_| STALE_TTL));
        };
        entry.hits = entry.hits.saturating_add(1);
        let reply = entry.reply_with(|ttl| ttl.saturating_sub(age));
        if entry.hits >= OFTEN && left <= entry.life / 10 {
            // Once: whoever comes meanwhile does not renew it too.
            entry.hits = 0;
            return Found::Ending(reply);
        }
        Found::Fresh(reply)
    }

    /// Keeps a reply, if it may be kept.
    pub fn keep(&self, key: &K, reply: &[u8]) {
        let Some((life, ttls)) = life(reply) else {
            return;
        };
        let mut entries = self.entries.lock();
        if entries.len() >= self.capacity && !entries.contains_key(key) {
            self.make_room(&mut entries);
        }
        let entry = Entry {
            reply: Arc::new(reply.to_vec()),
            ttls,
            stored: self.clock.now(),
            life,
            hits: 0,
        };
        entries.insert(key.clone(), entry);
    }

    /// Drops what is over; if nothing is, any one.
    fn make_room(&self, entries: &mut HashMap<K, Entry>) {
        let now = self.clock.now();
        entries
            .retain(|_, entry| now.duration_since(entry.stored).as_secs() < i64::from(entry.life));
        if entries.len() >= self.capacity
            && let Some(any) = entries.keys().next().cloned()
        {
            entries.remove(&any);
        }
    }
}

impl Entry {
    fn reply_with(&self, change: impl Fn(u32) -> u32) -> Vec<u8> {
        let mut reply = self.reply.as_ref().clone();
        for at in &self.ttls {
            if let Some(bytes) = reply.get_mut(*at..).and_then(<[u8]>::first_chunk_mut::<4>) {
                *bytes = change(u32::from_be_bytes(*bytes)).to_be_bytes();
            }
        }
        reply
    }
}

/// How long a reply may be kept, and where its times to live stand; `None` when it may not be.
fn life(reply: &[u8]) -> Option<(u32, Vec<usize>)> {
    let message = Message::from_vec(reply).ok()?;
    let code = message.metadata.response_code;
    let cacheable = matches!(code, ResponseCode::NoError | ResponseCode::NXDomain);
    if !cacheable || message.metadata.truncation || message.queries.len() != 1 {
        return None;
    }
    let records = message.answers.iter().chain(&message.authorities);
    let shortest = records.map(|record| record.ttl).min();
    let life = if message.answers.is_empty() || code == ResponseCode::NXDomain {
        // How long nothing is nothing, the zone says in its SOA.
        let soa = message
            .authorities
            .iter()
            .find_map(|record| match &record.data {
                RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
                _ => None,
            });
        soa?.min(shortest?).min(LONGEST_ABSENCE)
    } else {
        shortest?.min(LONGEST)
    };
    (life > 0).then_some((life, ttl_places(reply)?))
}

/// Finds the times to live of all records but the EDNS one, whose field means something else.
fn ttl_places(reply: &[u8]) -> Option<Vec<usize>> {
    let half = |at: usize| {
        let bytes = reply.get(at..)?.first_chunk::<2>()?;
        Some(u16::from_be_bytes(*bytes))
    };
    let mut at = 12;
    for _ in 0..half(4)? {
        at = after_name(reply, at)? + 4;
    }
    let records = usize::from(half(6)?) + usize::from(half(8)?) + usize::from(half(10)?);
    let mut places = Vec::new();
    for _ in 0..records {
        at = after_name(reply, at)?;
        if half(at)? != u16::from(RecordType::OPT) {
            places.push(at + 4);
        }
        at += 10 + usize::from(half(at + 8)?);
    }
    (at <= reply.len()).then_some(places)
}

/// Where a name ends: at its empty label, or behind a pointer.
fn after_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length => at += 1 + usize::from(length & 0x3f),
        }
    }
}

/// Gives a kept reply the id and the question's letters of the request that it answers.
pub fn readdress(reply: &mut [u8], request: &[u8]) -> Option<()> {
    let end = after_name(request, 12)?;
    let same = after_name(reply, 12)? == end;
    if same {
        reply
            .get_mut(12..end)?
            .copy_from_slice(request.get(12..end)?);
    }
    reply.get_mut(..2)?.copy_from_slice(request.get(..2)?);
    Some(())
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::{MessageType, OpCode, Query},
        rr::{
            Name, Record,
            rdata::{A, SOA},
        },
    };
    use stdx::FakeClock;

    use super::*;

    fn cache() -> (Cache<&'static str>, FakeClock) {
        let clock = FakeClock::at(Timestamp::UNIX_EPOCH);
        let mut cache = Cache::new(Arc::new(clock.clone()));
        cache.capacity = 3;
        (cache, clock)
    }

    fn name() -> Name {
        Name::from_ascii("www.example.com.").unwrap()
    }

    fn reply(ttls: &[u32]) -> Message {
        let mut message = Message::new(7, MessageType::Response, OpCode::Query);
        message.add_query(Query::query(name(), RecordType::A));
        for ttl in ttls {
            let data = RData::A(A::new(192, 0, 2, 1));
            message.answers.push(Record::from_rdata(name(), *ttl, data));
        }
        message
    }

    fn absence(minimum: u32) -> Message {
        let mut message = reply(&[]);
        message.metadata.response_code = ResponseCode::NXDomain;
        let soa = SOA::new(name(), name(), 1, 2, 3, 4, minimum);
        message
            .authorities
            .push(Record::from_rdata(name(), 900, RData::SOA(soa)));
        message
    }

    fn ttl(found: &Found) -> Option<u32> {
        let (Found::Fresh(bytes) | Found::Ending(bytes) | Found::Stale(bytes)) = found else {
            return None;
        };
        let message = Message::from_vec(bytes).unwrap();
        let mut records = message.answers.iter().chain(&message.authorities);
        records.next().map(|record| record.ttl)
    }

    #[test]
    fn an_answer_ages_and_ends_with_its_shortest_record() {
        let (cache, clock) = cache();
        cache.keep(&"a", &reply(&[60, 20]).to_vec().unwrap());
        clock.advance(Duration::from_secs(5));
        let found = cache.find(&"a");
        assert!(matches!(found, Found::Fresh(_)));
        assert_eq!(ttl(&found), Some(55));
        clock.advance(Duration::from_secs(15));
        let found = cache.find(&"a");
        assert!(matches!(found, Found::Stale(_)));
        assert_eq!(ttl(&found), Some(STALE_TTL));
        clock.advance(STALE + Duration::from_secs(1));
        assert_eq!(cache.find(&"a"), Found::Nothing);
        assert!(cache.is_empty());
    }

    #[test]
    fn a_name_that_does_not_exist_is_remembered_as_its_zone_says() {
        let (cache, clock) = cache();
        cache.keep(&"a", &absence(10).to_vec().unwrap());
        cache.keep(&"b", &absence(100_000).to_vec().unwrap());
        clock.advance(Duration::from_secs(9));
        assert!(matches!(cache.find(&"a"), Found::Fresh(_)));
        clock.advance(Duration::from_secs(1));
        assert!(matches!(cache.find(&"a"), Found::Stale(_)));
        clock.advance(Duration::from_secs(u64::from(LONGEST_ABSENCE)));
        assert!(matches!(cache.find(&"b"), Found::Stale(_)));
    }

    #[test]
    fn what_may_not_be_kept_is_not() {
        let (cache, _) = cache();
        let mut truncated = reply(&[60]);
        truncated.metadata.truncation = true;
        let mut failed = reply(&[60]);
        failed.metadata.response_code = ResponseCode::ServFail;
        for message in [truncated, failed, reply(&[0]), reply(&[])] {
            cache.keep(&"a", &message.to_vec().unwrap());
            assert_eq!(cache.find(&"a"), Found::Nothing);
        }
        let whole = reply(&[60]).to_vec().unwrap();
        for length in 0..whole.len() {
            cache.keep(&"a", &whole[..length]);
        }
        assert_eq!(cache.find(&"a"), Found::Nothing);
    }

    #[test]
    fn what_is_asked_often_is_renewed_once_before_it_ends() {
        let (cache, clock) = cache();
        cache.keep(&"a", &reply(&[100]).to_vec().unwrap());
        cache.keep(&"rare", &reply(&[100]).to_vec().unwrap());
        for _ in 0..OFTEN {
            assert!(matches!(cache.find(&"a"), Found::Fresh(_)));
        }
        clock.advance(Duration::from_secs(95));
        assert!(matches!(cache.find(&"a"), Found::Ending(_)));
        assert!(matches!(cache.find(&"a"), Found::Fresh(_)));
        assert!(matches!(cache.find(&"rare"), Found::Fresh(_)));
    }

    #[test]
    fn there_are_never_more_answers_than_there_is_room_for() {
        let (cache, clock) = cache();
        for key in ["a", "b", "c"] {
            cache.keep(&key, &reply(&[10]).to_vec().unwrap());
        }
        clock.advance(Duration::from_secs(11));
        cache.keep(&"d", &reply(&[10]).to_vec().unwrap());
        assert_eq!(cache.len(), 1, "what is over goes first");
        for key in ["a", "b", "c", "e"] {
            cache.keep(&key, &reply(&[10]).to_vec().unwrap());
            assert!(cache.len() <= 3);
        }
    }

    #[test]
    fn a_reply_gets_the_id_and_the_letters_of_its_request() {
        let mut request = Message::new(99, MessageType::Query, OpCode::Query);
        let spelled = Name::from_ascii("wWw.ExAmple.com.").unwrap();
        request.add_query(Query::query(spelled, RecordType::A));
        let request = request.to_vec().unwrap();
        let mut bytes = reply(&[60]).to_vec().unwrap();
        readdress(&mut bytes, &request).unwrap();
        assert_eq!(bytes[..2], request[..2]);
        assert_eq!(bytes[12..29], request[12..29]);
    }
}
