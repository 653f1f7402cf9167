//! Where keys and values live: pages of a fixed number of tokens, addressed through a sequence's page table.
//!
//! Inside a page, tiles of 16 positions. Keys are stored transposed (`[kv head][dimension][16 positions]`), values are
//! not (`[kv head][16 positions][dimension]`), so that both halves of attention read straight through memory with one
//! output per vector lane.

use super::ModelConfig;
use super::attention::HEAD_DIM;

/// Positions per tile; a page is a multiple of it.
pub const TILE: usize = 16;

/// Keys `[dimension][16 positions]` or values `[16 positions][dimension]` of one tile and head.
type Block = [[f32; TILE]; HEAD_DIM];

#[derive(Debug)]
pub struct KvStore {
    layers: Vec<LayerKv>,
    pages: usize,
}

/// The KV of one layer: `[page][tile][kv head]` blocks.
#[derive(Debug)]
pub(crate) struct LayerKv {
    keys: Vec<Block>,
    values: Vec<Block>,
    tiles_per_page: usize,
    kv_heads: usize,
}

impl KvStore {
    /// `page_tokens` must be a multiple of [`TILE`].
    #[must_use]
    pub fn new(config: &ModelConfig, pages: usize, page_tokens: usize) -> Self {
        assert!(
            page_tokens > 0 && page_tokens.is_multiple_of(TILE),
            "page size {page_tokens} is not a multiple of {TILE}"
        );
        let tiles_per_page = page_tokens / TILE;
        let empty = || vec![[[0.0; TILE]; HEAD_DIM]; pages * tiles_per_page * config.kv_heads];
        let layers = (0..config.layers)
            .map(|_| LayerKv { keys: empty(), values: empty(), tiles_per_page, kv_heads: config.kv_heads })
            .collect();
        KvStore { layers, pages }
    }

    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.layers.iter().map(|layer| size_of_val(&layer.keys[..]) + size_of_val(&layer.values[..])).sum()
    }

    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    pub(crate) fn kv_heads(&self) -> usize {
        self.layers.first().map_or(1, |layer| layer.kv_heads)
    }

    pub(crate) fn layer(&self, layer: usize) -> &LayerKv {
        &self.layers[layer]
    }

    pub(crate) fn write(&mut self, layer: usize, pages: &[u32], position: usize, key: &[f32], value: &[f32]) {
        let layer = &mut self.layers[layer];
        let base = layer.block(pages, position / TILE, 0);
        let slot = position % TILE;
        let (key, _) = key.as_chunks::<HEAD_DIM>();
        let (value, _) = value.as_chunks::<HEAD_DIM>();
        for (head, (key, value)) in key.iter().zip(value).enumerate() {
            for (row, key) in layer.keys[base + head].iter_mut().zip(key) {
                row[slot] = *key;
            }
            layer.values[base + head][slot] = *value;
        }
    }
}

impl LayerKv {
    #[inline]
    pub(crate) fn keys(&self, pages: &[u32], tile: usize, head: usize) -> &Block {
        &self.keys[self.block(pages, tile, head)]
    }

    #[inline]
    pub(crate) fn values(&self, pages: &[u32], tile: usize, head: usize) -> &Block {
        &self.values[self.block(pages, tile, head)]
    }

    #[inline]
    fn block(&self, pages: &[u32], tile: usize, head: usize) -> usize {
        let page = pages[tile / self.tiles_per_page] as usize;
        (page * self.tiles_per_page + tile % self.tiles_per_page) * self.kv_heads + head
    }
}
