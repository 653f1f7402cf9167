use super::*;

fn one(line: &str) -> Sample<'_> {
    parse_line(line).unwrap_or_else(|| panic!("no sample in {line}"))
}

#[test]
fn names_keep_their_colons() {
    let s = one(r#"vllm:num_requests_running{engine="0",model_name="tiny"} 3.0"#);
    assert_eq!((s.name, s.count()), ("vllm:num_requests_running", Some(3)));
    assert_eq!(s.label("model_name").as_deref(), Some("tiny"));
    assert_eq!(s.label("absent"), None);
}

#[test]
fn braces_quotes_and_escapes_inside_label_values() {
    let s = one(r#"m{a="}",b="x\"},{y",c="back\\",d="line\nend",e="\q"} 1"#);
    assert_eq!(s.value, 1.0);
    let got: Vec<_> = ["a", "b", "c", "d", "e"].map(|k| s.label(k).unwrap().into_owned()).to_vec();
    assert_eq!(got, ["}", "x\"},{y", "back\\", "line\nend", "\\q"]);
    assert_eq!(s.labels().count(), 5);
}

#[test]
fn special_values_time_stamps_and_exemplars() {
    assert!(one("a NaN").value.is_nan());
    assert_eq!(one("a NaN").count(), None);
    assert_eq!(one("a +Inf").value, f64::INFINITY);
    assert_eq!(one("a -Inf").count(), None);
    assert_eq!(one("a -1").count(), None);
    assert_eq!(one("a 1.5e3 1795961449665").count(), Some(1500));
    let s = one(r#"h_bucket{le="1"} 4 # {trace_id="}x"} 0.5 1.7"#);
    assert_eq!((s.name, s.value), ("h_bucket", 4.0));
    assert_eq!(one("  spaced\t{ a = \"b\" , }   7\r").label("a").as_deref(), Some("b"));
}

#[test]
fn broken_lines_are_passed_over_and_the_rest_is_read() {
    let text = "# HELP a b\n# TYPE a gauge\n\na 1\nb{x=\"un\nc{ 3\nd{x=\"1\"}\ne{x=\"1\"} many\n<html>\n{\"a\":1}\n9x 1\n\u{e9} 2\nf{x=\"\u{e9}\"} 2\n# EOF\n";
    let got: Vec<_> = samples(text).map(|s| (s.name, s.value)).collect();
    assert_eq!(got, [("a", 1.0), ("f", 2.0)]);
}

#[test]
fn labels_that_are_no_labels_end_the_list() {
    assert_eq!(one(r#"a{x="1",nonsense} 2"#).labels().count(), 1);
    assert_eq!(one("a{} 2").labels().count(), 0);
    assert_eq!(one(r#"a{x="1"y="2"} 2"#).label("y").as_deref(), Some("2"));
}

#[test]
fn any_prefix_of_a_line_is_handled() {
    let line = r#"vllm:a{engine="0",b="\"}é"} 1.5 17 # {x="1"} 2"#;
    for end in (0..=line.len()).filter(|e| line.is_char_boundary(*e)) {
        if let Some(sample) = parse_line(&line[..end]) {
            assert_eq!(sample.name, &"vllm:a"[..sample.name.len()]);
            for (key, _) in sample.labels() {
                assert!(["engine", "b"].contains(&key));
            }
        }
    }
}

/// Every line of a recording that is no comment must be read.
#[test]
fn recordings_of_real_engines() {
    let Some(wire) = crate::recordings("recordings_of_real_engines") else { return };
    for (file, name) in [
        ("metrics_vllm.txt", "vllm:num_requests_running"),
        ("metrics_vllm_nixl.txt", "vllm:kv_cache_usage_perc"),
        ("metrics_sglang.txt", "sglang:num_running_reqs"),
        ("metrics_llamacpp.txt", "llamacpp:requests_processing"),
    ] {
        let text = std::fs::read_to_string(wire.join(file)).unwrap();
        let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).count();
        assert_eq!(samples(&text).count(), lines, "{file}");
        assert!(samples(&text).any(|s| s.name == name && s.count() == Some(0)), "{file} has no {name}");
    }
    let vllm = std::fs::read_to_string(wire.join("metrics_vllm.txt")).unwrap();
    let config = samples(&vllm).find(|s| s.name == "vllm:cache_config_info").unwrap();
    assert_eq!(config.label("num_gpu_blocks").as_deref(), Some("4096"));
    assert_eq!(config.label("block_size").as_deref(), Some("32"));
    let sglang = std::fs::read_to_string(wire.join("metrics_sglang.txt")).unwrap();
    assert!(samples(&sglang).find(|s| s.name == "sglang:fwd_occupancy").unwrap().value.is_nan());
}
