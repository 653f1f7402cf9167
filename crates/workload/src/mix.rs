//! One stateless integer mixer. Block text has to be a pure function of the block id (two processes, or a restart,
//! must write the same words), so it cannot come from a generator that carries state between blocks.

/// `splitmix64`'s finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit.
pub(crate) const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
