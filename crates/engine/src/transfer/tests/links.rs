//! Two ends and a socket between them.

use super::*;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future)
}

async fn both(caller: Terms, called: Terms) -> (Result<Link, TransferError>, Result<Link, TransferError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        Link::accept(stream, &called).await
    });
    let call = Link::connect("127.0.0.1", port, &caller).await;
    (call, answer.await.unwrap())
}

async fn pair(terms: &Terms) -> (Link, Link) {
    let (call, answer) = both(terms.clone(), terms.clone()).await;
    (call.unwrap(), answer.unwrap())
}

/// A peer that writes what it likes after a proper greeting.
async fn rude(terms: &Terms) -> (TcpStream, Link) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let terms = terms.clone();
    let answer = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        Link::accept(stream, &terms).await.unwrap()
    });
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut hello = Vec::new();
    let identity = super::terms().identity;
    frame::write(&mut hello, &Frame::Hello(Hello { identity, secret: false, nonce: [1; 16] }));
    stream.write_all(&hello).await.unwrap();
    let mut greeting = vec![0; hello.len()];
    stream.read_exact(&mut greeting).await.unwrap();
    (stream, answer.await.unwrap())
}

fn fill(index: u32) -> impl FnOnce(&mut [u8]) {
    move |bytes| bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (index as usize * 7 + at) as u8)
}

fn same(page: &Page<'_>, index: u32) {
    let mut bytes = [0; PAGE_BYTES];
    fill(index)(&mut bytes);
    assert_eq!(*page, Page { index, digest: digest(index), bytes: &bytes });
}

#[test]
fn many_pages_arrive_in_order_and_every_buffer_goes_back() {
    block_on(async {
        let terms = terms();
        let receiving = Terms { pool: Pool::new(PAGE_BYTES, 2), ..terms.clone() };
        let (call, answer) = both(terms.clone(), receiving.clone()).await;
        let (mut call, mut answer) = (call.unwrap(), answer.unwrap());
        // More than all buffers of both ends hold.
        let count = 8 * terms.pool.pages_per_buffer() as u32 + 5;
        let pool = terms.pool.clone();
        let sending = tokio::spawn(async move {
            call.sender.note(b"first").await.unwrap();
            let mut next = 0;
            while next < count {
                let mut pages = pool.try_take().unwrap();
                while next < count && pages.push(next, &digest(next), fill(next)) {
                    next += 1;
                }
                call.sender.pages(&mut pages).await.unwrap();
            }
            call.sender.beat().await.unwrap();
            call.sender.end(count).await.unwrap();
            call.sender.note(b"last").await.unwrap();
            call
        });
        let (mut next, mut other) = (0, Vec::new());
        while other.len() < 4 {
            match answer.receiver.next().await.unwrap() {
                Incoming::Pages(pages) => {
                    assert!(!pages.is_empty());
                    for page in pages.iter() {
                        same(&page, next);
                        next += 1;
                    }
                }
                Incoming::Note(note) => other.push(String::from_utf8(note.to_vec()).unwrap()),
                Incoming::End { pages } => other.push(pages.to_string()),
                Incoming::Beat => other.push("beat".to_owned()),
            }
        }
        assert_eq!(next, count);
        assert_eq!(other, ["first", "beat", &count.to_string(), "last"]);
        drop(sending.await.unwrap());
        assert_eq!(answer.receiver.next().await.unwrap_err(), TransferError::Closed);
        assert_eq!((terms.pool.in_use(), receiving.pool.in_use()), (0, 0));
    });
}

#[test]
fn strangers_keep_no_buffer_from_those_who_have_greeted() {
    block_on(async {
        let terms = Terms { pool: Pool::new(PAGE_BYTES, 1), ..terms() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut hello = Vec::new();
        let identity = super::terms().identity;
        frame::write(&mut hello, &Frame::Hello(Hello { identity, secret: false, nonce: [1; 16] }));
        let mut strangers = Vec::new();
        for cut in [1, 4, 5, 30, hello.len() - 1] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(&hello[..cut]).await.unwrap();
            let (accepted, _) = listener.accept().await.unwrap();
            let terms = terms.clone();
            let answer = tokio::spawn(async move { Link::accept(accepted, &terms).await.map(|_| ()) });
            strangers.push((stream, answer));
        }
        // Long enough for the strangers' bytes to be read.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(terms.pool.in_use(), 0);
        let (call, answer) = both(super::terms(), terms.clone()).await;
        let (mut call, mut answer) = (call.unwrap(), answer.unwrap());
        call.sender.note(b"welcome").await.unwrap();
        let Incoming::Note(note) = answer.receiver.next().await.unwrap() else { panic!() };
        assert_eq!(&note[..], b"welcome");
        for (stream, answer) in strangers {
            drop(stream);
            assert_eq!(answer.await.unwrap(), Err(TransferError::Truncated));
        }
    });
}

#[test]
fn what_comes_behind_the_greeting_in_the_same_write_is_not_lost() {
    block_on(async {
        let terms = terms();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut bytes = Vec::new();
        let identity = super::terms().identity;
        frame::write(&mut bytes, &Frame::Hello(Hello { identity, secret: false, nonce: [1; 16] }));
        frame::write(&mut bytes, &Frame::Note(b"at once"));
        stream.write_all(&bytes).await.unwrap();
        let mut link = Link::accept(listener.accept().await.unwrap().0, &terms).await.unwrap();
        let Incoming::Note(note) = link.receiver.next().await.unwrap() else { panic!() };
        assert_eq!(&note[..], b"at once");
    });
}

#[test]
fn how_the_bytes_are_cut_does_not_matter() {
    block_on(async {
        for piece in [1, 7, 64, 137, 138, 1000] {
            let terms = terms();
            let (mut stream, mut link) = rude(&terms).await;
            let mut bytes = Vec::new();
            for index in 0..9 {
                let mut page = [0; PAGE_BYTES];
                fill(index)(&mut page);
                frame::write(&mut bytes, &Frame::Page { index, digest: digest(index), bytes: &page });
                if index % 4 == 3 {
                    frame::write(&mut bytes, &Frame::Note(b"between"));
                }
            }
            frame::write(&mut bytes, &Frame::End { pages: 9 });
            let writing = tokio::spawn(async move {
                for piece in bytes.chunks(piece) {
                    stream.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
                stream
            });
            let (mut next, mut notes) = (0, 0);
            loop {
                match link.receiver.next().await.unwrap() {
                    Incoming::Pages(pages) => pages.iter().for_each(|page| {
                        same(&page, next);
                        next += 1;
                    }),
                    Incoming::Note(_) => notes += 1,
                    Incoming::End { pages } => break assert_eq!((pages, next, notes), (9, 9, 2)),
                    Incoming::Beat => panic!("no beat was sent"),
                }
            }
            drop(writing.await.unwrap());
            assert_eq!(terms.pool.in_use(), 0, "an idle link holds no buffer");
        }
    });
}

#[test]
fn a_bad_frame_ends_the_link_and_keeps_nothing() {
    let page = |index: u32| {
        let mut bytes = Vec::new();
        frame::write(&mut bytes, &Frame::Page { index, digest: digest(index), bytes: &[3; PAGE_BYTES] });
        bytes
    };
    let mut damaged = page(0);
    damaged[80] ^= 1;
    let cases: [(Vec<u8>, TransferError); 5] = [
        (damaged, TransferError::Checksum),
        (vec![0xff; 40], TransferError::Kind(0xff)),
        (
            [&[0xff, 0xff, 0xff, 0, 4][..], &[0; 40]].concat(),
            TransferError::Oversized { bytes: 0xff_ffff + 4, limit: 141 },
        ),
        (page(0)[..60].to_vec(), TransferError::Truncated),
        (Vec::new(), TransferError::Closed),
    ];
    block_on(async {
        for (bytes, error) in cases {
            let terms = terms();
            let (mut stream, mut link) = rude(&terms).await;
            stream.write_all(&page(9)).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            drop(stream);
            let mut good = 0;
            let found = loop {
                match link.receiver.next().await {
                    Ok(Incoming::Pages(pages)) => good += pages.len(),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => break error,
                }
            };
            assert_eq!(found, error);
            // The page before it may have been read together with it.
            assert!(good <= 1);
            drop(link);
            assert_eq!(terms.pool.in_use(), 0);
        }
    });
}

#[test]
fn only_the_same_engine_with_the_same_secret_is_talked_to() {
    let with = |change: &dyn Fn(&mut Terms)| {
        let mut terms = terms();
        change(&mut terms);
        terms
    };
    let secret = |secret: &str| with(&|terms| terms.secret = Some(Secret::new(secret)));
    block_on(async {
        let (call, answer) = both(secret("anchor"), secret("anchor")).await;
        let (mut call, mut answer) = (call.unwrap(), answer.unwrap());
        call.sender.note(b"here").await.unwrap();
        assert!(matches!(answer.receiver.next().await, Ok(Incoming::Note(note)) if note == "here"[..]));
        let cases = [
            (secret("anchor"), secret("buoy"), TransferError::Secret),
            (secret("anchor"), terms(), TransferError::Secret),
            (terms(), secret("anchor"), TransferError::Secret),
            (with(&|terms| terms.identity.model = [8; 32]), terms(), TransferError::Model),
            (
                with(&|terms| terms.identity.page_tokens = 32),
                terms(),
                TransferError::PageTokens { theirs: 32, ours: 16 },
            ),
            (
                with(&|terms| terms.identity.page_bytes = 1),
                terms(),
                TransferError::PageBytes { theirs: 1, ours: PAGE_BYTES as u32 },
            ),
        ];
        for (caller, called, expected) in cases {
            let (call, answer) = both(caller, called).await;
            assert_eq!(answer.err().unwrap(), expected);
            // The caller learns it by itself or is told.
            match call {
                Err(error) => assert!(error.is_mismatch() || matches!(error, TransferError::Aborted(_)), "{error}"),
                Ok(mut link) => {
                    assert!(matches!(link.receiver.next().await, Err(TransferError::Aborted(_))));
                }
            }
        }
    });
}

#[test]
fn strangers_are_recognised_and_silence_ends() {
    block_on(async {
        let quick = Terms { deadline: Duration::from_millis(50), ..terms() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // Nobody greets.
        let silent = TcpStream::connect(address).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let error = Link::accept(stream, &quick).await.err().unwrap();
        assert!(matches!(error, TransferError::Deadline { .. }), "{error}");
        drop(silent);
        // Somebody speaks HTTP.
        let mut browser = TcpStream::connect(address).await.unwrap();
        browser.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        assert_eq!(Link::accept(stream, &terms()).await.err().unwrap(), TransferError::Stranger);
        // Nobody is there.
        drop(listener);
        let error = Link::connect("127.0.0.1", address.port(), &terms()).await.err().unwrap();
        assert!(matches!(error, TransferError::Io { .. }), "{error}");
    });
}

#[test]
fn a_peer_that_takes_nothing_is_given_up_and_its_link_is_broken() {
    block_on(async {
        let terms = Terms { deadline: Duration::from_millis(100), ..terms() };
        let (mut call, answer) = pair(&terms).await;
        let mut pages = terms.pool.try_take().unwrap();
        while pages.push(0, &digest(0), |_| {}) {}
        let error = loop {
            if let Err(error) = call.sender.pages(&mut pages).await {
                break error;
            }
        };
        assert_eq!(error, TransferError::Deadline { what: "room to write", after: terms.deadline });
        assert_eq!(call.sender.beat().await, Err(TransferError::Broken));
        drop(answer);
    });
}

#[test]
fn an_abort_says_why() {
    block_on(async {
        let (mut call, mut answer) = pair(&terms()).await;
        call.sender.abort("the request was cancelled").await.unwrap();
        let error = answer.receiver.next().await.unwrap_err();
        assert_eq!(error, TransferError::Aborted("the request was cancelled".into()));
    });
}

/// The step loop takes what a full pool allows and no more.
#[test]
fn the_pool_is_bounded() {
    let pool = Pool::new(PAGE_BYTES, 3);
    let taken: Vec<Pages> = std::iter::from_fn(|| pool.try_take()).collect();
    assert_eq!((taken.len(), pool.in_use()), (3, 3));
    drop(taken);
    assert_eq!(pool.in_use(), 0);
    let mut pages = pool.try_take().unwrap();
    let mut count = 0;
    while pages.push(count, &digest(count), fill(count)) {
        count += 1;
    }
    assert_eq!((count as usize, pages.len()), (pool.pages_per_buffer(), pool.pages_per_buffer()));
    pages.iter().zip(0..).for_each(|(page, index)| same(&page, index));
}
