//! Sixteen f32 at a time on whatever the processor has, with one meaning everywhere.
//!
//! The only operation that matters is the fused multiply-add, which IEEE defines to the last bit; so AVX-512, AVX2 and
//! the portable form give equal results, and a test holds them against each other. `pulp` makes the instructions safe to
//! call and chooses at run time, so there is one binary for all processors and no `unsafe` of our own.

use pulp::{Simd, WithSimd};

/// f32 per block: the width of a weight panel, and of everything that is laid out in blocks.
pub const LANES: usize = 16;

/// Sixteen neighbours, one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub struct Block(pub [f32; LANES]);

/// Sixteen blocks: 16 steps of an inner dimension for 16 outputs.
pub type Square = [Block; LANES];

pub(crate) const ZERO: Block = Block([0.0; LANES]);

/// Registers that hold a block.
pub(crate) trait Lanes: Copy + Send + Sync {
    type V: Copy;
    /// Panels that a tile takes side by side: as many as the registers hold with six rows.
    const PANELS: usize;
    fn load(self, from: &Block) -> Self::V;
    fn store(self, value: Self::V, to: &mut Block);
    /// `factor * row + sums`, rounded once.
    fn add_scaled(self, factor: f32, row: Self::V, sums: Self::V) -> Self::V;
    /// Asks for a cache line that is read soon. Changes nothing but the time it takes.
    fn prefetch(self, line: &Block);
}

/// [`Lanes::prefetch`] for 16 steps of an inner dimension. Every second line: processors fetch its neighbour too, and have
/// few places for lines that a program waits for (a fifth faster than to ask for all, on Zen 4).
#[inline(always)]
pub(crate) fn prefetch_square<L: Lanes>(lanes: L, square: &Square) {
    for line in square.iter().step_by(2) {
        lanes.prefetch(line);
    }
}

/// Every `share.1`-th line of a square, from number `share.0` on: one of several who ask for it together.
#[inline(always)]
pub(crate) fn prefetch_share<L: Lanes>(lanes: L, square: &Square, share: (usize, usize)) {
    for line in square[share.0.min(LANES)..].iter().step_by(share.1) {
        lanes.prefetch(line);
    }
}

/// Work that is compiled once for each instruction set. `run` must be `#[inline(always)]`, and what it calls too.
pub(crate) trait Kernel {
    type Output;
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// An instruction set that this processor has.
#[derive(Clone, Copy, Debug)]
pub enum Isa {
    /// What every processor of the target has. Fast where that includes fused multiply-add (aarch64), correct elsewhere.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(pulp::x86::V3),
    #[cfg(target_arch = "x86_64")]
    Avx512(pulp::x86::V4),
}

impl Isa {
    /// Everything this processor has, the best last.
    #[must_use]
    pub fn all() -> Vec<Isa> {
        #[cfg(target_arch = "x86_64")]
        {
            let mut all = vec![Isa::Portable];
            all.extend(pulp::x86::V3::try_new().map(Isa::Avx2));
            all.extend(pulp::x86::V4::try_new().map(Isa::Avx512));
            all
        }
        #[cfg(not(target_arch = "x86_64"))]
        vec![Isa::Portable]
    }

    #[must_use]
    pub fn best() -> Isa {
        Isa::all().pop().unwrap_or(Isa::Portable)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => "avx512",
        }
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Isa::Portable => kernel.run(Portable),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(simd) => Simd::vectorize(simd, On { lanes: simd, kernel }),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(simd) => Simd::vectorize(simd, On { lanes: simd, kernel }),
        }
    }
}

/// A kernel bound to its registers, in the form that `pulp` compiles with the features of those registers.
struct On<L, K> {
    lanes: L,
    kernel: K,
}

impl<L: Lanes, K: Kernel> WithSimd for On<L, K> {
    type Output = K::Output;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> K::Output {
        self.kernel.run(self.lanes)
    }
}

#[derive(Clone, Copy)]
struct Portable;

impl Lanes for Portable {
    type V = [f32; LANES];
    const PANELS: usize = 1;

    #[inline(always)]
    fn load(self, from: &Block) -> [f32; LANES] {
        from.0
    }

    #[inline(always)]
    fn store(self, value: [f32; LANES], to: &mut Block) {
        to.0 = value;
    }

    #[inline(always)]
    fn add_scaled(self, factor: f32, row: [f32; LANES], mut sums: [f32; LANES]) -> [f32; LANES] {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum = factor.mul_add(value, *sum);
        }
        sums
    }

    #[inline(always)]
    fn prefetch(self, _: &Block) {}
}

/// Into the second-level cache: the first is full of what is in use.
#[cfg(target_arch = "x86_64")]
const SECOND_LEVEL: i32 = std::arch::x86_64::_MM_HINT_T1;

#[cfg(target_arch = "x86_64")]
impl Lanes for pulp::x86::V3 {
    type V = [pulp::f32x8; 2];
    const PANELS: usize = 1;

    #[inline(always)]
    fn load(self, from: &Block) -> [pulp::f32x8; 2] {
        pulp::cast(from.0)
    }

    #[inline(always)]
    fn store(self, value: [pulp::f32x8; 2], to: &mut Block) {
        to.0 = pulp::cast(value);
    }

    #[inline(always)]
    fn add_scaled(self, factor: f32, row: [pulp::f32x8; 2], sums: [pulp::f32x8; 2]) -> [pulp::f32x8; 2] {
        let factor = self.splat_f32s(factor);
        [self.mul_add_f32s(factor, row[0], sums[0]), self.mul_add_f32s(factor, row[1], sums[1])]
    }

    #[inline(always)]
    fn prefetch(self, line: &Block) {
        self.sse._mm_prefetch::<SECOND_LEVEL>(std::ptr::from_ref(line).cast());
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for pulp::x86::V4 {
    type V = pulp::f32x16;
    const PANELS: usize = 4;

    #[inline(always)]
    fn load(self, from: &Block) -> pulp::f32x16 {
        pulp::cast(from.0)
    }

    #[inline(always)]
    fn store(self, value: pulp::f32x16, to: &mut Block) {
        to.0 = pulp::cast(value);
    }

    #[inline(always)]
    fn add_scaled(self, factor: f32, row: pulp::f32x16, sums: pulp::f32x16) -> pulp::f32x16 {
        self.mul_add_f32s(self.splat_f32s(factor), row, sums)
    }

    #[inline(always)]
    fn prefetch(self, line: &Block) {
        self.sse._mm_prefetch::<SECOND_LEVEL>(std::ptr::from_ref(line).cast());
    }
}
