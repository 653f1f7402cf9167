//! Golden vectors of both engines, through the way a sequence takes.

use super::*;
use crate::namespace::Namespace;

fn owner(extra_key: Option<&str>, cache_salt: Option<&str>, lora: Option<&str>) -> Arc<Owner> {
    let namespace = Namespace {
        extra_key: extra_key.map(Arc::from),
        cache_salt: cache_salt.map(Arc::from),
        lora: lora.map(Arc::from),
    };
    Arc::new(Owner { namespace, session_id: None })
}

fn names(scheme: Scheme, owner: &Arc<Owner>, page_tokens: usize, tokens: &[u32]) -> Vec<EventHash> {
    let mut chain = Chain::new(page_tokens, owner.namespace.seed());
    let mut names = Names::new(scheme, Arc::clone(owner), page_tokens);
    // In two pieces: names grow with the sequence.
    for end in [tokens.len() / 2, tokens.len()] {
        chain.extend(&tokens[..end]);
        names.extend(&chain, &tokens[..end]);
    }
    names.names
}

#[test]
fn plain_pages_have_sglangs_names() {
    let tokens: Vec<u32> = (1..=9).collect();
    for scheme in [Scheme::Sglang, Scheme::Dynamo] {
        let names = names(scheme, &Arc::default(), 4, &tokens);
        assert_eq!(names, [-3_488_128_144_981_237_669, 5_674_439_469_042_975_057]);
    }
}

#[test]
fn salted_pages_have_sglangs_names() {
    let salted = owner(None, Some("tenant-a"), None);
    assert_eq!(names(Scheme::Sglang, &salted, 4, &[1, 2, 3, 4]), [3_718_046_898_735_569_995]);
    assert_eq!(names(Scheme::Dynamo, &salted, 4, &[1, 2, 3, 4]), [8_062_630_728_818_998_546]);
}

/// The trap of the default format, and the way out.
#[test]
fn extra_keys_are_in_dynamos_names_only() {
    let tokens: Vec<u32> = (1..=8).collect();
    let all = |scheme| [None, Some("a"), Some("b")].map(|key| names(scheme, &owner(key, None, None), 4, &tokens));
    let [plain, a, b] = all(Scheme::Sglang);
    assert!(plain == a && a == b);
    let [plain, a, b] = all(Scheme::Dynamo);
    assert!(plain != a && a != b && plain != b);
}

#[test]
fn an_adapters_pages_are_named_apart_in_every_scheme() {
    let tokens: Vec<u32> = (1..=8).collect();
    for scheme in [Scheme::Sglang, Scheme::Dynamo, Scheme::Vllm] {
        let all: std::collections::BTreeSet<_> =
            [None, Some("x"), Some("y")].map(|lora| names(scheme, &owner(None, None, lora), 4, &tokens)).into();
        assert_eq!(all.len(), 3, "{scheme:?}");
    }
}

#[test]
fn vllms_names_match_a_recording() {
    let tokens: Vec<u32> = (1000..1100).collect();
    let unsigned = |owner: &Arc<Owner>| {
        names(Scheme::Vllm, owner, 32, &tokens).into_iter().map(i64::cast_unsigned).collect::<Vec<_>>()
    };
    assert_eq!(
        unsigned(&Arc::default()),
        [6_522_045_006_455_570_523, 9_939_604_838_047_613_594, 3_508_337_578_527_034_563]
    );
    assert_eq!(
        unsigned(&owner(None, Some("tenant-a"), None)),
        [158_587_027_064_618_347, 1_527_173_126_770_996_547, 11_159_346_658_673_430_708]
    );
    assert_ne!(unsigned(&owner(Some("tenant-a"), None, None)), unsigned(&owner(None, Some("tenant-a"), None)));
}

#[test]
fn a_label_tells_its_page() {
    let tokens: Vec<u32> = (1..=9).collect();
    let mut chain = Chain::new(4, None);
    chain.extend(&tokens);
    let mut names = Names::new(Scheme::Sglang, Arc::default(), 4);
    names.extend(&chain, &tokens);
    let label = names.label(1, &tokens);
    assert_eq!((label.name, label.parent), (5_674_439_469_042_975_057, Some(-3_488_128_144_981_237_669)));
    assert_eq!(&label.tokens[..], [5, 6, 7, 8]);
    assert_eq!(names.label(0, &tokens).parent, None);
}
