//! Logs of every form, and what is said of broken ones.

use super::*;

fn file(content: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file
}

fn read(content: &str, options: InputOptions) -> Result<(Vec<Session>, u64), String> {
    let file = file(content.as_bytes());
    let input = Input::open(file.path(), options).map_err(|error| error.to_string());
    let input = input.map_err(|text| text.replace(&file.path().display().to_string(), "F"))?;
    let skipped = input.skipped();
    let rows: Result<Vec<Session>, String> = input.collect();
    let rows = rows.map_err(|text| text.replace(&file.path().display().to_string(), "F"))?;
    Ok((rows, skipped.get()))
}

fn rows(content: &str) -> Vec<(u64, u64, u64)> {
    let (rows, _) = read(content, InputOptions::default()).unwrap();
    let one = |session: &Session| {
        (session.start.0 / 1_000_000, session.calls[0].prompt.tokens(), session.calls[0].output_tokens)
    };
    rows.iter().map(one).collect()
}

#[test]
fn every_form_of_log_says_the_same() {
    let wanted = [(0, 374, 44), (4_314, 396, 109)];
    for content in [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
        "t_s,client,input_tokens,output_tokens\n10.5,3,374,44\n14.814,4,396,109\n",
        "output_tokens,note,input_tokens,t_s\r\n44,\"a, \"\"b\"\"\",374,0\r\n109,,396,4.314\r\n",
        "{\"arrival_unix_ms\":1000,\"id\":\"a\",\"prompt_tokens\":374,\"output_tokens\":44}\n{\"arrival_unix_ms\":5314,\"id\":\"b\",\"prompt_tokens\":396,\"output_tokens\":109}\n",
        "{\"timestamp\":\"2025-01-01T00:00:00Z\",\"rid\":\"a\",\"out\":{\"meta_info\":{\"prompt_tokens\":374,\"completion_tokens\":44}}}\n{\"timestamp\":\"2025-01-01T01:00:04.314+01:00\",\"rid\":\"b\",\"out\":{\"meta_info\":{\"prompt_tokens\":396,\"completion_tokens\":109}}}\n",
    ] {
        assert_eq!(rows(content), wanted, "{content}");
    }
}

#[test]
fn what_clients_asked_for_is_known_where_a_log_says_it() {
    let most = |content: &str| {
        let (rows, _) = read(content, InputOptions::default()).unwrap();
        rows.iter().map(|session| session.calls[0].max_output_tokens).collect::<Vec<_>>()
    };
    let log = "t_s,input_tokens,output_tokens,max_tokens\n0,5,3,64\n1,5,3,\n2,5,3,null\n3,5,0,0\n";
    assert_eq!(most(log), [Some(64), None, None, Some(0)]);
    let log = "{\"obj\":{\"sampling_params\":{\"max_new_tokens\":7}},\"out\":{\"meta_info\":{\"prompt_tokens\":4,\"completion_tokens\":4}}}\n";
    assert_eq!(most(log), [Some(7)]);
    let trace = "{\"timestamp\":0,\"input_length\":5,\"output_length\":3,\"max_tokens\":9,\"hash_ids\":[0]}\n";
    assert_eq!(most(trace), [Some(9)]);
    let log = "t_s,input_tokens,output_tokens,max_tokens\n0,5,3,many\n";
    let error = read(log, InputOptions::default()).unwrap_err();
    assert!(error.contains("\"many\" is no number of most output tokens asked for"), "{error}");
}

#[test]
fn without_times_rows_begin_at_random_at_the_rate_asked_for() {
    let mut content = "num_prefill_tokens,num_decode_tokens\n".to_owned();
    content.extend((0..2_000).map(|_| "10,5\n"));
    let options = InputOptions { starts_per_s: 4.0, seed: 3, ..InputOptions::default() };
    let (rows, _) = read(&content, options).unwrap();
    let last = rows.last().unwrap().start.as_secs_f64();
    assert!((450.0..550.0).contains(&last), "{last}");
    let (again, _) = read(&content, options).unwrap();
    assert_eq!(rows, again);
    let (other, _) = read(&content, InputOptions { seed: 4, ..options }).unwrap();
    assert_ne!(rows, other);
}

#[test]
fn twice_as_fast_is_half_the_time_and_the_limit_ends_it() {
    let content = "t_s,input_tokens,output_tokens\n1,1,1\n3,1,1\n7,1,1\n";
    let (rows, _) = read(content, InputOptions { rate: 2.0, limit: Some(2), ..InputOptions::default() }).unwrap();
    assert_eq!(rows.iter().map(|row| row.start).collect::<Vec<_>>(), [Nanos::ZERO, Nanos::from_secs(1)]);
}

#[test]
fn requests_of_a_session_go_each_other_on() {
    let content = "session_id,input_tokens,output_tokens\na,200,1\nb,200,1\na,400,1\na,100,1\n";
    let (rows, _) = read(content, InputOptions::default()).unwrap();
    let prompt = |row: usize| &rows[row].calls[0].prompt;
    assert_eq!(prompt(0).common_blocks(prompt(2)), 3);
    assert_eq!(prompt(0).common_blocks(prompt(1)), 0);
    assert_eq!(prompt(2).common_blocks(prompt(3)), 1);
    assert_eq!(prompt(2).tokens(), 400);
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let mooncake = |time: u64| {
        format!("{{\"timestamp\": {time}, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, 1]}}\n")
    };
    let csv = |rows: &str| format!("t_s,input_tokens,output_tokens\n{rows}");
    let cases = [
        (String::new(), "F line 1 column 1: the file is empty"),
        (
            "a,b\n1,2\n".to_owned(),
            "F line 1 column 1: no column for input tokens in \"a,b\"; expected one of ContextTokens",
        ),
        ("t_s,input_tokens\n1,2\n".to_owned(), "F line 1 column 1: no column for output tokens"),
        (csv("1,5\n"), "F line 2 column 1: 2 values; expected 3"),
        (csv("1,5,3\nx,5,3\n"), "F line 3 column 1: \"x\" is no time"),
        (csv("-1,5,3\n"), "F line 2 column 1: \"-1\" is no time; expected a number that is not negative"),
        (csv("1,-5,3\n"), "F line 2 column 3: \"-5\" is no number of input tokens; expected 1 to 16777216"),
        (csv("1,0,3\n"), "F line 2 column 3: \"0\" is no number of input tokens"),
        (csv("1,99999999999,3\n"), "F line 2 column 3: \"99999999999\" is no number of input tokens"),
        (csv("1,5,\n"), "F line 2 column 5: \"\" is no number of output tokens"),
        (csv("5,5,3\n6,5,3\n5.5,5,3\n"), "F line 4 column 1: begins 0.500 s before the row before"),
        (csv("5,5,3\n4,5,3\n"), "F line 3 column 1: \"4\" lies before the first row's time"),
        (
            "request_id,input_tokens,output_tokens\na,1,1\nb,1,1\na,1,1\n".to_owned(),
            "F line 4 column 1: the id \"a\" was there before",
        ),
        (format!("{}{}", mooncake(9_000), mooncake(6_000)), "F line 2 column 1: begins 3.000 s before the row before"),
        (
            mooncake(1).replace("600", "60000000000"),
            "F line 1 column 18: \"input_length\" is 60000000000; expected at most",
        ),
        (mooncake(1).replace(": 1,", ": -1,"), "F line 1 column 16: invalid value: integer `-1`, expected u64"),
    ];
    for (content, wanted) in cases {
        let error = read(&content, InputOptions::default()).unwrap_err();
        assert!(error.starts_with(wanted), "{content:?}: {error}");
    }
}

#[test]
fn bad_rows_are_passed_over_and_counted_when_asked_for() {
    let content = "t_s,input_tokens,output_tokens\n1,5,3\nx,5,3\n2,5,3\n1.5,5,3\n3,5,-3\n4,5,3\n";
    let options = InputOptions { skip_bad: true, ..InputOptions::default() };
    let (rows, skipped) = read(content, options).unwrap();
    assert_eq!((rows.len(), skipped), (3, 3));
    let mooncake = "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, 1]}\n{}\n{\"timestamp\": 4, \"input_length\": 6, \"output_length\": 5, \"hash_ids\": [0]}\n";
    let (rows, skipped) = read(mooncake, options).unwrap();
    assert_eq!((rows.len(), skipped), (1, 2));
}

#[test]
fn a_file_that_is_cut_short_is_an_error_whatever_is_passed_over() {
    let mut content = "t_s,input_tokens,output_tokens\n".to_owned();
    (0..100_000).for_each(|row| content.push_str(&format!("{row},{},3\n", row % 977 + 1)));
    let packed = zstd::encode_all(content.as_bytes(), 1).unwrap();
    let file = file(&packed[..packed.len() / 2]);
    let input = Input::open(file.path(), InputOptions { skip_bad: true, ..InputOptions::default() }).unwrap();
    let error = input.collect::<Result<Vec<_>, _>>().unwrap_err();
    assert!(error.contains("reading stopped") && error.contains("cut short"), "{error}");
}

#[test]
fn exponentials_are_logarithms() {
    for u in [1.0, 0.9, 0.75, 0.5, 0.1, 1e-3, 1e-9] {
        assert!((exponential(u) + f64::ln(u)).abs() < 1e-12, "{u}");
    }
}

/// Found by hand: an hour of a Mooncake trace without its blocks was taken for 41 days.
#[test]
fn milliseconds_are_told_from_seconds_where_the_form_says_so_and_doubted_elsewhere() {
    let mooncake = "{\"timestamp\":0,\"input_length\":5,\"output_length\":3}\n{\"timestamp\":3000,\"input_length\":5,\"output_length\":3}\n";
    let starts_ms = |text: &str| rows(text).into_iter().map(|(at, ..)| at).collect::<Vec<_>>();
    assert_eq!(starts_ms(mooncake), [0, 3_000]);
    assert_eq!(starts_ms(&mooncake.replace("input_length", "prompt_tokens")), [0, 3_000_000]);
    let doubted = |times: [&str; 2]| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let [first, second] = times;
        std::fs::write(file.path(), format!("time,input_tokens,output_tokens\n{first},5,3\n{second},5,3\n")).unwrap();
        let input = Input::open(file.path(), InputOptions::default()).unwrap();
        let doubt = input.doubt();
        assert_eq!(input.map_while(Result::ok).count(), 2);
        doubt.get()
    };
    assert!(doubted(["1700000000000", "1700000003000"]), "since 1970");
    assert!(doubted(["0", "40000000"]), "more than a year");
    let sparse = |gap: f64, rows: u32| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let times = (0..rows).map(|row| format!("{},5,3\n", f64::from(row) * gap)).collect::<String>();
        std::fs::write(file.path(), format!("time,input_tokens,output_tokens\n{times}")).unwrap();
        let input = Input::open(file.path(), InputOptions::default()).unwrap();
        let doubt = input.doubt();
        assert_eq!(input.map_while(Result::ok).count() as u32, rows);
        doubt.get()
    };
    assert!(sparse(700.0, 100), "two in three seconds, more likely than five an hour");
    assert!(!sparse(2.0, 1_000) && !sparse(700.0, 10) && !sparse(700.5, 100));
    for seconds in [["0", "86400"], ["1700000000", "1700000003"], ["0.5", "40000000"], ["0", "40000000.5"]] {
        assert!(!doubted(seconds), "{seconds:?}");
    }
}

/// Found in review: such times ran over, and the run stood still for ever.
#[test]
fn times_beyond_ten_years_are_refused() {
    let log = "t_s,input_tokens,output_tokens\n0,5,3\n1700000000,5,3\n";
    let error = read(log, InputOptions::default()).unwrap_err();
    assert!(error.starts_with("F line 3 column 1: begins 1700000000 s after the first row"), "{error}");
    let log = "t_s,input_tokens,output_tokens\n0,5,3\n1,5,3\n";
    let error = read(log, InputOptions { rate: 1e-9, ..InputOptions::default() }).unwrap_err();
    assert!(error.contains("--rate"), "{error}");
    let log = "input_tokens,output_tokens\n5,3\n5,3\n";
    let error = read(log, InputOptions { starts_per_s: 1e-30, ..InputOptions::default() }).unwrap_err();
    assert!(error.contains("--starts-per-s"), "{error}");
}

fn agentic(id: &str, block: &str, think_s: &str, first_call: &str) -> String {
    format!(
        "{{\"id\":\"{id}\",\"block_size\":{block},\"tool_tokens\":0,\"system_tokens\":0,\"reqs\":[{first_call},\
         [2,1,THINK,64,5,null,null,null,0,[[9,1]]]]}}\n"
    )
    .replace("THINK", think_s)
}

const CALL: &str = "[0,1,THINK,64,5,null,null,null,0,[[0,1]]]";

#[test]
fn sessions_are_of_one_block_size_and_end_some_day() {
    let good = agentic("a", "64", "1", CALL);
    let (rows, _) = read(&good, InputOptions::default()).unwrap();
    assert_eq!(rows[0].calls.len(), 2);
    let error = read(&agentic("a", "64", "1e11", CALL), InputOptions::default()).unwrap_err();
    assert!(error.starts_with("F line 1 column 1: pauses of 1"), "{error}");
    let other = agentic("b", "32", "1", "[0,1,1,64,5,null,null,null,0,[[0,2]]]")
        .replace("64,5,null,null,null,0,[[9,1]]", "64,5,null,null,null,0,[[9,2]]");
    let error = read(&format!("{good}{other}"), InputOptions::default()).unwrap_err();
    assert!(error.starts_with("F line 2 column 1: blocks of 32 tokens; expected 64"), "{error}");
}

/// Found in review: a line of 150 bytes filled the memory, and sums of such numbers ran over.
#[test]
fn lengths_that_no_model_takes_are_refused_in_sessions_too() {
    let max = u64::MAX;
    let cases = [
        (agentic("a", "1", "1", "[0,1,1,1099511627776,5,null,null,null,0,[[0,1099511627776]]]"), "input tokens"),
        (agentic("a", "64", "1", &format!("[0,1,1,64,{max},null,null,null,0,[[0,1]]]")), "output tokens"),
        (agentic("a", "64", "1", &format!("[0,1,1,64,5,null,null,null,{max},[[0,1]]]")), "kept blocks"),
        (agentic("a", "64", "1", &format!("[0,1,1,64,5,null,null,null,0,[[0,{max}],[0,2]]]")), "blocks in a run"),
        (agentic("a", "64", "1", &format!("[0,1,1,64,5,null,null,null,0,[[{max},1]]]")), "a block id of"),
        (agentic("a", &max.to_string(), "1", CALL), "block_size is"),
        (agentic("a", "64", "1", CALL).replace("\"tool_tokens\":0", &format!("\"tool_tokens\":{max}")), "tool_tokens"),
    ];
    for (line, wanted) in cases {
        let error = read(&line, InputOptions::default()).unwrap_err();
        assert!(error.starts_with("F line 1 column") && error.contains(wanted), "{line}: {error}");
    }
}

/// Found in review: the first row decided that there are no times, and all times were passed over in silence.
#[test]
fn rows_that_disagree_about_times_are_complained_of() {
    let log = "{\"timestamp\":null,\"prompt_tokens\":5,\"output_tokens\":3}\n{\"timestamp\":9,\"prompt_tokens\":5,\"output_tokens\":3}\n";
    let error = read(log, InputOptions::default()).unwrap_err();
    assert!(error.starts_with("F line 1 column") && error.contains("is no time"), "{error}");
    let skip = InputOptions { skip_bad: true, ..InputOptions::default() };
    assert_eq!(read(log, skip).map(|(rows, skipped)| (rows.len(), skipped)), Ok((1, 1)));
    let error = read(&log.replace("\"timestamp\":null,", ""), InputOptions::default()).unwrap_err();
    assert!(error.starts_with("F line 2 column 2: a time; expected none"), "{error}");
    // The first line may be the broken one.
    let log = log.replace("null", "").replace(":9", ":8");
    assert_eq!(read(&log, skip).map(|(rows, skipped)| (rows.len(), skipped)), Ok((1, 1)));
}

/// Found in review: a row that was passed over changed what its session went on from.
#[test]
fn a_row_that_is_passed_over_leaves_no_trace() {
    let log = "t_s,input_tokens,output_tokens,session\n1,640,3,s\n2,64,3,s\n0,640,3,s\n3,640,3,s\n";
    let options = InputOptions { skip_bad: true, ..InputOptions::default() };
    let with = read(log, options).unwrap();
    assert_eq!(with.1, 1);
    let (without, _) = read(&log.replace("0,640,3,s\n3", "3"), options).unwrap();
    let common = |rows: &[Session]| {
        let ids = |at: usize| rows[at].calls[0].prompt.block_ids().collect::<Vec<_>>();
        ids(0).iter().zip(ids(2)).filter(|(a, b)| *a == b).count()
    };
    assert_eq!((common(&with.0), common(&without)), (1, 1));
}

/// Found in review: this program's own log could not be read back.
#[test]
fn a_decision_log_is_sorted_by_its_arrivals() {
    let log = "{\"arrival_unix_ms\":5000,\"id\":\"b\",\"prompt_tokens\":7,\"reported_prompt_tokens\":9,\"output_tokens\":3}\n\
               {\"arrival_unix_ms\":6000,\"id\":\"c\",\"prompt_tokens\":7,\"reported_prompt_tokens\":null,\"output_tokens\":null}\n\
               {\"arrival_unix_ms\":4000,\"id\":\"a\",\"prompt_tokens\":8,\"reported_prompt_tokens\":null,\"output_tokens\":4}\n";
    let options = InputOptions { unordered: true, skip_bad: true, ..InputOptions::default() };
    let file = file(log.as_bytes());
    let input = Input::open(file.path(), options).unwrap();
    let skipped = input.skipped();
    let rows = input.sorted().unwrap();
    let starts: Vec<u64> = rows.iter().map(|row| row.start.0 / 1_000_000).collect();
    let inputs: Vec<u64> = rows.iter().map(|row| row.calls[0].prompt.tokens()).collect();
    assert_eq!((starts, inputs, skipped.get()), (vec![0, 1_000], vec![8, 9], 1));
    // Told in that order it cannot be replayed.
    assert!(read(log, InputOptions { skip_bad: false, ..InputOptions::default() }).is_err());
}

/// Found in review: the first line was read, and then the path opened again.
#[cfg(unix)]
#[test]
fn a_pipe_is_read_once() {
    for content in ["t_s,input_tokens,output_tokens\n1,5,3\n", &agentic("a", "64", "1", CALL)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (to, text) = (path.clone(), content.to_owned());
        let writer = std::thread::spawn(move || std::fs::write(to, text).unwrap());
        let rows: Vec<_> = Input::open(&path, InputOptions::default()).unwrap().collect::<Result<_, _>>().unwrap();
        writer.join().unwrap();
        assert_eq!(rows.len(), 1);
    }
}

/// A column under a name that is not known gave a plausible report of a load that nobody had measured.
#[test]
fn a_log_without_known_times_says_that_they_are_drawn_and_what_was_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = |text: &str| {
        let path = folder.path().join("log.csv");
        std::fs::write(&path, text).unwrap();
        Input::open(&path, InputOptions::default()).unwrap().drawn()
    };
    let said = drawn("arrival_msec,prompt_tokens,completion_tokens\n0,1200,50\n1000,1300,50\n").unwrap();
    assert!(said.contains("drawn, 1 a second") && said.ends_with("read from: arrival_msec"), "{said}");
    assert_eq!(drawn("arrival_unix_ms,prompt_tokens,completion_tokens\n0,1200,50\n1000,1300,50\n"), None);
    let said = drawn("{\"prompt_tokens\": 5, \"completion_tokens\": 5}\n").unwrap();
    assert!(said.ends_with("in the mean"), "{said}");
}
