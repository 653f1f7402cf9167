//! Bytes taken from SGLang and from msgspec, which both engines encode with; shapes taken from recordings.

use super::*;
use crate::namespace::Namespace;
use std::sync::Arc;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn owner(salt: Option<&str>, session: Option<&str>, lora: Option<&str>) -> Arc<Owner> {
    Arc::new(Owner {
        namespace: Namespace { extra_key: None, cache_salt: salt.map(Arc::from), lora: lora.map(Arc::from) },
        session_id: session.map(Arc::from),
    })
}

fn stored(owner: Arc<Owner>) -> KvEvent {
    KvEvent::Stored {
        names: vec![-3_488_128_144_981_237_669],
        parent: None,
        tokens: vec![1, 2, 3, 4],
        owner,
        medium: Medium::Gpu,
    }
}

#[test]
fn sglang_maps_have_sglangs_bytes() {
    assert_eq!(
        hex(&batch(Form::SglangMap, 1.5, &[stored(Arc::default())], 0)),
        "93cb3ff80000000000009187a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391d3cf97adeedb59e05bb1706172\
         656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469\
         756da347505500"
    );
}

#[test]
fn sglang_arrays_have_sglangs_bytes() {
    assert_eq!(
        hex(&batch(Form::SglangArray, 1.5, &[stored(Arc::default())], 0)),
        "93cb3ff80000000000009197ab426c6f636b53746f72656491d3cf97adeedb59e05bc0940102030404c0a347505500"
    );
}

/// As recorded from SGLang 0.5.23.
#[test]
fn a_clear_has_the_recorded_bytes() {
    let ts = f64::from_bits(0x41da_c30f_c19f_d239);
    let recorded = "93cb41dac30fc19fd2399181a474797065b0416c6c426c6f636b73436c656172656400";
    assert_eq!(hex(&batch(Form::SglangMap, ts, &[KvEvent::Cleared], 0)), recorded);
    assert_eq!(hex(&batch(Form::Vllm, ts, &[KvEvent::Cleared], 0)), recorded);
}

/// The first 48 bytes of what SGLang 0.5.23 and vLLM 0.32 sent for three blocks of 32 tokens from 1000 on.
#[test]
fn three_blocks_begin_as_recorded() {
    let event = |names: [i64; 3]| KvEvent::Stored {
        names: names.to_vec(),
        parent: None,
        tokens: (1000..1096).collect(),
        owner: Arc::default(),
        medium: Medium::Gpu,
    };
    let sglang = event([-6_094_333_126_735_423_968, -1_772_660_806_951_668_304, 5_543_050_353_075_969_508]);
    let bytes = batch(Form::SglangMap, f64::from_bits(0x41da_c30f_c161_8121), &[sglang], 0);
    assert_eq!(bytes.len(), 423);
    assert_eq!(
        hex(&bytes[..48]),
        "93cb41dac30fc16181219187a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657393d3ab6c944f"
    );
    let vllm =
        event([6_522_045_006_455_570_523, 9_939_604_838_047_613_594u64.cast_signed(), 3_508_337_578_527_034_563]);
    let bytes = batch(Form::Vllm, f64::from_bits(0x41da_c30c_a5c7_4b71), &[vllm], 0);
    assert_eq!(bytes.len(), 494);
    assert_eq!(
        hex(&bytes[..48]),
        "93cb41dac30ca5c74b71918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657393cf5a82f560"
    );
}

#[test]
fn optional_fields_are_left_out_while_empty() {
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    let all = batch(Form::SglangMap, 0.0, &[stored(owner(Some("tenant-a"), Some("s1"), Some("sql")))], 3);
    for text in ["cache_salt", "tenant-a", "session_id", "s1", "lora_name", "sql"] {
        assert!(has(&all, text), "{text}");
    }
    assert_eq!(all.last(), Some(&3));
    let array = batch(Form::SglangArray, 0.0, &[stored(owner(Some("tenant-a"), Some("s1"), None))], 0);
    assert!(has(&array, "cache_salt") && !has(&array, "session_id"));
    let vllm = batch(Form::Vllm, 0.0, &[stored(owner(Some("tenant-a"), Some("s1"), None))], 0);
    assert!(has(&vllm, "tenant-a") && has(&vllm, "session_id") && !has(&vllm, "cache_salt"));
}

#[test]
fn vllm_withdraws_one_block_per_event() {
    let removed = KvEvent::Removed { names: vec![5, -1], medium: Medium::Cpu };
    // Two maps of four entries in the list of events, the second name as an unsigned number.
    let bytes = batch(Form::Vllm, 0.0, std::slice::from_ref(&removed), 0);
    assert_eq!(hex(&bytes[9..12]), "00".to_owned() + "92" + "84");
    assert!(hex(&bytes).contains("91cfffffffffffffffff"));
    let bytes = batch(Form::SglangMap, 0.0, &[removed], 0);
    assert_eq!(hex(&bytes[9..12]), "00".to_owned() + "91" + "83");
    assert!(hex(&bytes).contains("9205ff") && hex(&bytes).contains(&hex(b"CPU_PINNED")));
}

/// Made with `msgspec.msgpack.encode`.
#[test]
fn numbers_and_lengths_are_as_msgspec_writes_them() {
    let mut out = Pack(Vec::new());
    for value in [0, 127, 128, 255, 256, 65_535, 65_536, u64::from(u32::MAX), 1 << 32, u64::MAX] {
        out.unsigned(value);
    }
    assert_eq!(hex(&out.0), "007fcc80ccffcd0100cdffffce00010000ceffffffffcf0000000100000000cfffffffffffffffff");
    let mut out = Pack(Vec::new());
    for value in [-1, -32, -33, -128, -129, -32_768, -32_769, -(1 << 31), -(1 << 31) - 1, i64::MIN, i64::MAX] {
        out.signed(value);
    }
    assert_eq!(
        hex(&out.0),
        "ffe0d0dfd080d1ff7fd18000d2ffff7fffd280000000d3ffffffff7fffffffd38000000000000000cf7fffffffffffffff"
    );
    let start = |write: &dyn Fn(&mut Pack)| {
        let mut out = Pack(Vec::new());
        write(&mut out);
        hex(&out.0[..out.0.len().min(5)])
    };
    assert_eq!([15, 16, 65_535, 65_536].map(|n| start(&|out| out.array(n))), ["9f", "dc0010", "dcffff", "dd00010000"]);
    assert_eq!(
        [31, 32, 255, 256, 65_536].map(|n| start(&|out| out.text(&"a".repeat(n)))),
        ["bf61616161", "d920616161", "d9ff616161", "da01006161", "db00010000"]
    );
}
