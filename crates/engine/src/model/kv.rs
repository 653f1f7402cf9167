//! Where keys and values live: pages of a fixed number of tokens, addressed through a sequence's page table.
//!
//! Inside a page, tiles of 16 positions. Keys are stored transposed (`[dimension][16 positions]`), values are not
//! (`[16 dimensions at a time][16 positions][16 dimensions]`), so that both halves of attention are products with
//! panels of weights, one output per vector lane. The KV heads of a layer lie apart, so that threads can write one each.
//! Keys and values of a head's page lie together and at a page boundary of the machine's memory: a query that reads a long
//! context jumps from page to page, and each jump costs the search for an address, once for each such boundary it crosses.
//!
//! Memory is taken as pages come into use, lowest first as the block manager hands them out: a store for a million tokens
//! costs what it holds.
//!
//! A page leaves and enters the store as bytes ([`KvStore::read_page`], [`KvStore::write_page`]): what is offloaded,
//! sent to another process or migrated is exactly what was computed.

use super::{ModelConfig, Run};
use crate::kernels::lanes::ZERO;
use crate::kernels::{Block, LANES, Square};

#[cfg(test)]
mod tests;

/// Positions per tile; a page is a multiple of it.
pub const TILE: usize = LANES;

/// Pages that get memory at once.
const BACKED_TOGETHER: usize = 64;

#[derive(Debug)]
pub struct KvStore {
    layers: Vec<Vec<HeadKv>>,
    pages: usize,
    /// Pages with memory behind them, from 0.
    backed: usize,
    /// Squares of keys and values of one page and head.
    page_squares: usize,
}

/// The KV of one head of one layer: tiles of all pages, in order of page and position.
#[derive(Debug)]
pub(crate) struct HeadKv {
    /// After `lead` blocks, for each page: keys in `[tile][dimension / 16]` squares of `[16 dimensions][16 positions]`, then
    /// values in `[tile][dimension / 16]` squares of `[16 positions][16 dimensions]`.
    blocks: Vec<Block>,
    /// Blocks up to the first boundary of [`MEMORY_PAGE`].
    lead: usize,
    tiles_per_page: usize,
    /// Squares of one tile's keys, and as many of its values.
    tile_squares: usize,
}

/// Bytes that one entry of the processor's address tables covers.
const MEMORY_PAGE: usize = 4096;

/// Why bytes cannot become a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    #[error("page {page} does not exist, the store has {pages}")]
    NoSuchPage { page: u32, pages: usize },
    #[error("a page has {expected} bytes, not {actual}")]
    WrongSize { actual: usize, expected: usize },
}

impl KvStore {
    /// `page_tokens` must be a multiple of [`TILE`].
    #[must_use]
    pub fn new(config: &ModelConfig, pages: usize, page_tokens: usize) -> Self {
        assert!(
            page_tokens > 0 && page_tokens.is_multiple_of(TILE),
            "page size {page_tokens} is not a multiple of {TILE}"
        );
        let (tiles_per_page, tile_squares) = (page_tokens / TILE, config.head_dim / LANES);
        let page_squares = 2 * tiles_per_page * tile_squares;
        let head = || HeadKv::new(pages * page_squares, tiles_per_page, tile_squares);
        let layers = (0..config.layers).map(|_| (0..config.kv_heads).map(|_| head()).collect()).collect();
        KvStore { layers, pages, backed: 0, page_squares }
    }

    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.pages * self.page_bytes()
    }

    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Gives memory to the pages that these runs write.
    pub(crate) fn back_runs(&mut self, runs: &[Run<'_>]) {
        let page_tokens = self.layers[0][0].tiles_per_page * TILE;
        let written = runs.iter().flat_map(|run| &run.pages[(run.start / page_tokens).min(run.pages.len())..]);
        if let Some(last) = written.max() {
            self.back(*last as usize);
        }
    }

    /// Gives memory to all pages up to this one, which exists.
    fn back(&mut self, page: usize) {
        if page < self.backed {
            return;
        }
        self.backed = (page + 1).next_multiple_of(BACKED_TOGETHER).min(self.pages);
        for head in self.layers.iter_mut().flatten() {
            head.blocks.resize(head.lead + self.backed * self.page_squares * LANES, ZERO);
        }
    }

    /// Bytes of one page over all layers, as [`Self::read_page`] gives and [`Self::write_page`] takes them.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.heads().count() * self.page_squares * size_of::<Square>()
    }

    /// Replaces `bytes` by the page: for each layer, for each KV head, keys `[tile][dimension][16 positions]` and then
    /// values `[tile][dimension / 16][16 positions][16 dimensions]`, f32 little-endian. Positions that were never computed
    /// hold anything.
    ///
    /// # Errors
    /// When there is no such page.
    pub fn read_page(&self, page: u32, bytes: &mut Vec<u8>) -> Result<(), PageError> {
        bytes.resize(self.page_bytes(), 0);
        self.copy_page(page, bytes)
    }

    /// As [`Self::read_page`], into memory of the right size.
    ///
    /// # Errors
    /// When there is no such page or `bytes` are not [`Self::page_bytes`] many; nothing is changed then.
    pub fn copy_page(&self, page: u32, bytes: &mut [u8]) -> Result<(), PageError> {
        let (range, expected) = (self.range(page)?, self.page_bytes());
        if bytes.len() != expected {
            return Err(PageError::WrongSize { actual: bytes.len(), expected });
        }
        if page as usize >= self.backed {
            bytes.fill(0);
            return Ok(());
        }
        let (mut words, _) = bytes.as_chunks_mut::<4>();
        for head in self.heads() {
            let (own, rest) = words.split_at_mut(self.page_squares * LANES * LANES);
            let blocks = &head.blocks[head.lead..][range.clone()];
            for (words, block) in own.as_chunks_mut::<LANES>().0.iter_mut().zip(blocks) {
                *words = block.0.map(f32::to_le_bytes);
            }
            words = rest;
        }
        Ok(())
    }

    /// Overwrites a page with bytes that [`Self::read_page`] gave, here or in another process with the same model and
    /// page size. Whether these are the right bytes for a chain of tokens is the caller's business.
    ///
    /// # Errors
    /// When there is no such page or the bytes are not [`Self::page_bytes`] many; nothing is changed then.
    pub fn write_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), PageError> {
        let (range, expected) = (self.range(page)?, self.page_bytes());
        if bytes.len() != expected {
            return Err(PageError::WrongSize { actual: bytes.len(), expected });
        }
        self.back(page as usize);
        let (mut words, _) = bytes.as_chunks::<4>();
        for head in self.layers.iter_mut().flatten() {
            let (own, rest) = words.split_at(self.page_squares * LANES * LANES);
            let blocks = &mut head.blocks[head.lead..][range.clone()];
            for (block, words) in blocks.iter_mut().zip(own.as_chunks::<LANES>().0) {
                block.0 = words.map(f32::from_le_bytes);
            }
            words = rest;
        }
        Ok(())
    }

    pub(crate) fn layer(&self, layer: usize) -> &[HeadKv] {
        &self.layers[layer]
    }

    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut [HeadKv] {
        &mut self.layers[layer]
    }

    fn heads(&self) -> impl Iterator<Item = &HeadKv> {
        self.layers.iter().flatten()
    }

    /// Blocks of a page, the same of each head.
    fn range(&self, page: u32) -> Result<std::ops::Range<usize>, PageError> {
        let at = page as usize;
        let exists = at < self.pages;
        let page_blocks = self.page_squares * LANES;
        let range = at * page_blocks..(at + 1) * page_blocks;
        exists.then_some(range).ok_or(PageError::NoSuchPage { page, pages: self.pages })
    }
}

impl HeadKv {
    /// Room for so many squares; memory is taken later.
    fn new(squares: usize, tiles_per_page: usize, tile_squares: usize) -> Self {
        let most_lead = MEMORY_PAGE / size_of::<Block>() - 1;
        // Never grown beyond this, so it stays where it is.
        let blocks: Vec<Block> = Vec::with_capacity(squares * LANES + most_lead);
        let beyond = blocks.as_ptr().addr() % MEMORY_PAGE;
        let lead = (MEMORY_PAGE - beyond) % MEMORY_PAGE / size_of::<Block>();
        HeadKv { blocks, lead, tiles_per_page, tile_squares }
    }

    /// Keys of a tile, `[dimension / 16]` squares of `[16 dimensions][16 positions]`.
    #[inline(always)]
    pub(crate) fn keys(&self, pages: &[u32], tile: usize) -> &[Square] {
        self.squares(self.keys_at(pages, tile))
    }

    /// Values of a tile, `[dimension / 16]` squares of `[16 positions][16 dimensions]`.
    #[inline(always)]
    pub(crate) fn values(&self, pages: &[u32], tile: usize) -> &[Square] {
        self.squares(self.values_at(pages, tile))
    }

    /// Stores the key and the value of one position, `[dimension]` in blocks.
    #[inline(always)]
    pub(crate) fn write<'a>(
        &mut self,
        pages: &[u32],
        position: usize,
        key: &[Block],
        value: impl Iterator<Item = &'a Block>,
    ) {
        let (tile, slot) = (position / TILE, position % TILE);
        let (keys, values) = (self.keys_at(pages, tile), self.values_at(pages, tile));
        for (square, key) in self.squares_mut(keys).iter_mut().zip(key) {
            for (row, key) in square.iter_mut().zip(key.0) {
                row.0[slot] = key;
            }
        }
        for (square, value) in self.squares_mut(values).iter_mut().zip(value) {
            square[slot] = *value;
        }
    }

    #[inline(always)]
    fn squares(&self, at: usize) -> &[Square] {
        self.blocks[at..][..self.tile_squares * LANES].as_chunks().0
    }

    #[inline(always)]
    fn squares_mut(&mut self, at: usize) -> &mut [Square] {
        self.blocks[at..][..self.tile_squares * LANES].as_chunks_mut().0
    }

    /// The first block of a tile's keys.
    #[inline(always)]
    fn keys_at(&self, pages: &[u32], tile: usize) -> usize {
        let page = pages[tile / self.tiles_per_page] as usize;
        self.lead + (page * 2 * self.tiles_per_page + tile % self.tiles_per_page) * self.tile_squares * LANES
    }

    /// The first block of its values.
    #[inline(always)]
    fn values_at(&self, pages: &[u32], tile: usize) -> usize {
        self.keys_at(pages, tile) + self.tiles_per_page * self.tile_squares * LANES
    }
}
