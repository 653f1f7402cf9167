//! The same work for both: sessions that engines hold, written down before any clock runs.
//!
//! Shaped like agent traffic: eight system prompts of 32 blocks, sessions of 512 blocks behind one of them, each on one engine
//! and every eighth on another one too, reported as engines do (a prefill in pieces, then turns). Hashes are made by a
//! mixer, chained so that a block's name covers all before it.

/// Blocks of a whole session.
pub const SESSION_BLOCKS: usize = 512;
const SHARED_BLOCKS: usize = 32;
/// Blocks of one event.
const EVENT_BLOCKS: usize = 64;

/// A block by its own tokens and by everything up to it.
#[derive(Clone, Copy)]
pub struct Block {
    pub local: u64,
    pub chained: u64,
}

/// Blocks that one engine has stored, in order.
#[derive(Clone)]
pub struct Stored {
    pub engine: u16,
    pub parent: Option<u64>,
    pub blocks: Vec<Block>,
}

fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The blocks of a session of an era; eras share nothing.
pub fn session(era: u64, session: u64, blocks: usize) -> Vec<Block> {
    let prompt = (era << 8) | (session % 8);
    let mut chained = mixed(prompt);
    (0..blocks)
        .map(|at| {
            let own = if at < SHARED_BLOCKS { prompt << 44 } else { (era << 40) | (session << 16) | (1 << 63) };
            let local = mixed(own ^ (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            chained = mixed(chained.rotate_left(23) ^ local);
            Block { local, chained }
        })
        .collect()
}

fn pieces(engine: u16, blocks: &[Block]) -> Vec<Stored> {
    let mut parent = None;
    blocks
        .chunks(EVENT_BLOCKS)
        .map(|piece| {
            let stored = Stored { engine, parent, blocks: piece.to_vec() };
            parent = piece.last().map(|block| block.chained);
            stored
        })
        .collect()
}

/// What all engines say while they come to hold the sessions of an era.
pub fn sessions(era: u64, engines: u16, sessions: u64) -> Vec<Stored> {
    let mut events = Vec::new();
    for nth in 0..sessions {
        let blocks = session(era, nth, SESSION_BLOCKS);
        events.extend(pieces((nth * 7 % u64::from(engines)) as u16, &blocks));
        if nth % 8 == 0 {
            events.extend(pieces((nth * 13 + 5).rem_euclid(u64::from(engines)) as u16, &blocks));
        }
    }
    for prompt in 0..8 {
        for engine in 0..engines {
            events.extend(pieces(engine, &session(era, prompt, SHARED_BLOCKS)));
        }
    }
    events
}

/// One session that every engine holds from its first block to its last.
pub fn shared(engines: u16) -> Vec<Stored> {
    let blocks = session(1 << 20, 0, SESSION_BLOCKS);
    (0..engines).flat_map(|engine| pieces(engine, &blocks)).collect()
}
