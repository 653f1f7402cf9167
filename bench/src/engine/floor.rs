//! What the machine can do: reading memory, and multiplying with the `gemm` crate.

use super::Took;

/// Twice the largest third-level cache that shares of a core usually come with.
const READ_FLOATS: usize = 128 << 20;
/// Rows, inner dimension and columns: a chunk of prompt through a wide layer.
const SHAPE: (usize, usize, usize) = (512, 1024, 4096);

#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct Floors {
    read: Took,
    gemm: Took,
}

impl Floors {
    pub(super) fn best(self, other: Floors) -> Floors {
        Floors { read: self.read.best(other.read), gemm: self.gemm.best(other.gemm) }
    }

    /// Bytes per second of all threads together, by the clock and by processor time.
    pub(super) fn bandwidth(&self, threads: usize) -> (f64, f64) {
        let bytes = (READ_FLOATS * size_of::<f32>()) as f64;
        (bytes / self.read.wall_s, bytes / self.read.cpu_s * threads as f64)
    }

    /// Floating-point operations per second of all threads together, by the clock and by processor time.
    pub(super) fn peak(&self, threads: usize) -> (f64, f64) {
        let (m, k, n) = SHAPE;
        let flops = 2.0 * (m * k * n) as f64;
        (flops / self.gemm.wall_s, flops / self.gemm.cpu_s * threads as f64)
    }
}

pub(super) struct Bench {
    threads: usize,
    memory: Vec<f32>,
    pool: rayon::ThreadPool,
    left: Vec<f32>,
    right: Vec<f32>,
    product: Vec<f32>,
}

impl Bench {
    pub(super) fn new(threads: usize) -> anyhow::Result<Self> {
        let (m, k, n) = SHAPE;
        Ok(Bench {
            threads,
            memory: vec![1.0; READ_FLOATS],
            pool: rayon::ThreadPoolBuilder::new().num_threads(threads).build()?,
            left: (0..m * k).map(|i| (i % 13) as f32 * 0.1).collect(),
            right: (0..k * n).map(|i| (i % 17) as f32 * 0.1).collect(),
            product: vec![0.0; m * n],
        })
    }

    /// The best of a few tries each.
    pub(super) fn measure(&mut self) -> Floors {
        let read = |bench: &mut Self| Took::measure(|| bench.read());
        let multiply = |bench: &mut Self| Took::measure(|| bench.multiply());
        let mut floors = Floors { read: read(self), gemm: multiply(self) };
        for _ in 0..4 {
            floors = floors.best(Floors { read: read(self), gemm: multiply(self) });
        }
        floors
    }

    fn read(&self) {
        let share = self.memory.len() / self.threads;
        self.pool.scope(|scope| {
            for part in self.memory.chunks(share) {
                scope.spawn(move |_| {
                    std::hint::black_box(sum(part));
                });
            }
        });
    }

    #[allow(unsafe_code, reason = "the crate's one function is unsafe: it takes pointers")]
    fn multiply(&mut self) {
        let (m, k, n) = SHAPE;
        let parallel = if self.threads > 1 { gemm::Parallelism::Rayon(self.threads) } else { gemm::Parallelism::None };
        let Bench { pool, left, right, product, .. } = self;
        pool.install(|| {
            // SAFETY: the three slices have m*k, k*n and m*n elements, row-major, and do not overlap.
            unsafe {
                gemm::gemm(
                    m,
                    n,
                    k,
                    product.as_mut_ptr(),
                    1,
                    n as isize,
                    false,
                    left.as_ptr(),
                    1,
                    k as isize,
                    right.as_ptr(),
                    1,
                    n as isize,
                    0.0f32,
                    1.0f32,
                    false,
                    false,
                    false,
                    parallel,
                );
            }
        });
    }
}

/// 128 sums at a time: as fast as memory, not as one chain of additions.
fn sum(values: &[f32]) -> f32 {
    let mut sums = [0f32; 128];
    for block in values.chunks_exact(128) {
        for (sum, value) in sums.iter_mut().zip(block) {
            *sum += value;
        }
    }
    sums.iter().sum()
}
