//! Where keys and values live: pages of a fixed number of tokens, addressed through a sequence's page table.
//!
//! Inside a page, tiles of 16 positions. Keys are stored transposed (`[dimension][16 positions]`), values are not
//! (`[16 positions][dimension]`), so that both halves of attention read straight through memory with one output per
//! vector lane. The KV heads of a layer lie apart, so that threads can write one each.
//!
//! A page leaves and enters the store as bytes ([`KvStore::read_page`], [`KvStore::write_page`]): what is offloaded,
//! sent to another process or migrated is exactly what was computed.

use super::ModelConfig;

#[cfg(test)]
mod tests;

/// Positions per tile; a page is a multiple of it.
pub const TILE: usize = 16;

#[derive(Debug)]
pub struct KvStore {
    layers: Vec<Vec<HeadKv>>,
    pages: usize,
    page_floats: usize,
}

/// The KV of one head of one layer: tiles of all pages, in order of page and position.
#[derive(Debug)]
pub(crate) struct HeadKv {
    /// `[page][tile][dimension][16 positions]`.
    keys: Vec<f32>,
    /// `[page][tile][16 positions][dimension]`.
    values: Vec<f32>,
    tiles_per_page: usize,
    head_dim: usize,
}

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
        let page_floats = page_tokens * config.head_dim;
        let head = || HeadKv {
            keys: vec![0.0; pages * page_floats],
            values: vec![0.0; pages * page_floats],
            tiles_per_page: page_tokens / TILE,
            head_dim: config.head_dim,
        };
        let layers = (0..config.layers).map(|_| (0..config.kv_heads).map(|_| head()).collect()).collect();
        KvStore { layers, pages, page_floats }
    }

    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.pages * self.page_bytes()
    }

    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Bytes of one page over all layers, as [`Self::read_page`] gives and [`Self::write_page`] takes them.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.heads().count() * 2 * self.page_floats * size_of::<f32>()
    }

    /// Replaces `bytes` by the page: for each layer, for each KV head, keys `[tile][dimension][16 positions]` and then
    /// values `[tile][16 positions][dimension]`, f32 little-endian. Positions that were never computed hold anything.
    ///
    /// # Errors
    /// When there is no such page.
    pub fn read_page(&self, page: u32, bytes: &mut Vec<u8>) -> Result<(), PageError> {
        let range = self.range(page)?;
        bytes.resize(self.page_bytes(), 0);
        let (mut words, _) = bytes.as_chunks_mut::<4>();
        for part in self.heads().flat_map(|head| [&head.keys, &head.values]) {
            let (own, rest) = words.split_at_mut(self.page_floats);
            for (word, value) in own.iter_mut().zip(&part[range.clone()]) {
                *word = value.to_le_bytes();
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
        let (mut words, _) = bytes.as_chunks::<4>();
        for part in self.layers.iter_mut().flatten().flat_map(|head| [&mut head.keys, &mut head.values]) {
            let (own, rest) = words.split_at(self.page_floats);
            for (value, word) in part[range.clone()].iter_mut().zip(own) {
                *value = f32::from_le_bytes(*word);
            }
            words = rest;
        }
        Ok(())
    }

    pub(crate) fn layer(&self, layer: usize) -> &[HeadKv] {
        &self.layers[layer]
    }

    /// Stores the key and value rows `[kv heads][dimension]` of one position.
    pub(crate) fn write(&mut self, layer: usize, pages: &[u32], position: usize, key: &[f32], value: &[f32]) {
        for (index, head) in self.layers[layer].iter_mut().enumerate() {
            let own = index * head.head_dim..(index + 1) * head.head_dim;
            head.write(pages, position, &key[own.clone()], &value[own]);
        }
    }

    fn heads(&self) -> impl Iterator<Item = &HeadKv> {
        self.layers.iter().flatten()
    }

    fn range(&self, page: u32) -> Result<std::ops::Range<usize>, PageError> {
        let at = page as usize;
        let exists = at < self.pages;
        let range = at * self.page_floats..(at + 1) * self.page_floats;
        exists.then_some(range).ok_or(PageError::NoSuchPage { page, pages: self.pages })
    }
}

impl HeadKv {
    /// Keys `[dimension][16 positions]`.
    #[inline]
    pub(crate) fn keys(&self, pages: &[u32], tile: usize) -> &[f32] {
        &self.keys[self.at(pages, tile)..][..self.head_dim * TILE]
    }

    /// Values `[16 positions][dimension]`.
    #[inline]
    pub(crate) fn values(&self, pages: &[u32], tile: usize) -> &[f32] {
        &self.values[self.at(pages, tile)..][..self.head_dim * TILE]
    }

    fn write(&mut self, pages: &[u32], position: usize, key: &[f32], value: &[f32]) {
        let (at, slot) = (self.at(pages, position / TILE), position % TILE);
        for (row, key) in self.keys[at..].chunks_exact_mut(TILE).zip(key) {
            row[slot] = *key;
        }
        self.values[at + slot * self.head_dim..][..self.head_dim].copy_from_slice(value);
    }

    #[inline]
    fn at(&self, pages: &[u32], tile: usize) -> usize {
        let page = pages[tile / self.tiles_per_page] as usize;
        (page * self.tiles_per_page + tile % self.tiles_per_page) * self.head_dim * TILE
    }
}
