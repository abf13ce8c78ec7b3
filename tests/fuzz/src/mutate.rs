//! Almost valid inputs: seeds with a few changes, from a seeded generator.

/// A small reproducible generator.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        // Zero would stay zero.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`; zero if `bound` is zero.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 {
            return 0;
        }
        (self.roll() % bound as u64) as usize
    }
}

/// Tokens of our formats.
const TOKENS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "null",
    "true",
    "-1",
    "1e400",
    "0",
    "\\u0000",
    "\\ud800",
    "$patch",
    "$retainKeys",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "replace",
    "delete",
    "merge",
    "metadata",
    "spec",
    "containers",
    "name",
    "managedFields",
    "&a ",
    "*a",
    "<<: ",
    "- ",
    "\n",
    "  ",
    "|",
    ">",
    "---\n",
    "!!str ",
    "f:spec",
    "k:{\"name\":\"a\"}",
    "v:1",
    "i:0",
    ".",
    "/",
    "~1",
    "~0",
    "=",
    "!=",
    " in (",
    " notin (",
    ")",
    "!",
    "Ki",
    "Ei",
    "m",
    "n",
    "e9",
    "%",
    "\u{0}",
    "é",
    "\u{10ffff}",
];

/// The maximum length of an input.
const MAX: usize = 16 * 1024;

/// A seed with some changes.
pub fn mutate(seed: &[u8], other: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut input = seed.to_vec();
    for _ in 0..=dice.below(6) {
        change(&mut input, other, dice);
    }
    input.truncate(MAX);
    input
}

fn change(input: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let at = dice.below(input.len() + 1);
    let end = (at + dice.below(32)).min(input.len());
    match dice.below(8) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << dice.below(8);
            }
        }
        1 => input.insert(at, dice.below(256) as u8),
        2 => drop(input.drain(at..end)),
        3 => {
            let token = TOKENS[dice.below(TOKENS.len())];
            input.splice(at..at, token.bytes());
        }
        4 => {
            // The same piece many times: shows superlinear time.
            let piece = input[at..end].to_vec();
            let times = dice.below(200);
            input.splice(at..at, piece.repeat(times));
        }
        5 => {
            let from = dice.below(other.len() + 1);
            let to = (from + dice.below(200)).min(other.len());
            input.splice(at..end, other[from..to].iter().copied());
        }
        6 => input.truncate(at),
        _ => {
            let token = TOKENS[dice.below(TOKENS.len())];
            input.splice(at..end, token.bytes());
        }
    }
}
