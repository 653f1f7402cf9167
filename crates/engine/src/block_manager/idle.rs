//! Cached pages that nobody holds, least recently released first, every operation in constant time.
//!
//! A sequence releases its pages from the last to the first, and whoever holds a page holds its ancestors; so a page
//! always stands before its ancestors here, and the first page of the list is a leaf. Evicting from the front is
//! therefore "leaf first, and of the leaves the oldest" without looking for leaves.

/// No page.
const NONE: u32 = u32::MAX;

/// A list through an array: one link per page of the pool.
#[derive(Debug)]
pub(super) struct IdleList {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

impl IdleList {
    pub(super) fn new(pages: usize) -> Self {
        let links = vec![Link { older: NONE, newer: NONE }; pages];
        IdleList { links, oldest: NONE, newest: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// A page that is not in the list becomes its newest.
    pub(super) fn push(&mut self, page: u32) {
        self.links[page as usize] = Link { older: self.newest, newer: NONE };
        match self.newest {
            NONE => self.oldest = page,
            newest => self.links[newest as usize].newer = page,
        }
        self.newest = page;
        self.len += 1;
    }

    /// Takes out a page that is in the list.
    pub(super) fn remove(&mut self, page: u32) {
        let Link { older, newer } = self.links[page as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        self.len -= 1;
    }

    /// From the oldest to the newest.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let real = |page: u32| (page != NONE).then_some(page);
        std::iter::successors(real(self.oldest), move |page| real(self.links[*page as usize].newer))
    }
}
